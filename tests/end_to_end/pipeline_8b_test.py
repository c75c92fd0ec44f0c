"""The loss head of an 8B model over 4 and 8 tensor-parallel ranks at reduced size, with a sidecar watching: the whole head's loss and gradients, no logits beyond
a chunk, and each fault named at its first step with the rank whose fault it is."""

import os
import re
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(__file__))
import pipeline_faults  # noqa: E402
from stack import Stack, wait_for  # noqa: E402

FAULT_STEP, STEPS, FAULT_RANK = 30, 60, 2
SMALL = ["--length=64", "--width=32", "--vocab_size=512", "--chunk_rows=64"]


class Pipeline8bTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.stack = Stack(prometheus=False)
        cls.stack.__enter__()
        cls.addClassCleanup(cls.stack.close)

    def run_job(self, run, *flags, binary="pipeline_8b"):
        return subprocess.run([str(self.stack.bin / binary), f"--run={run}", f"--ring_dir={self.stack.ring_dir}", *flags],
                              capture_output=True, text=True, timeout=300)

    def run_fault(self, fault, ranks=4, step=FAULT_STEP):
        run = f"{fault}-{ranks}"
        job = self.run_job(run, *SMALL, f"--ranks={ranks}", f"--steps={STEPS}", "--step_ms=30", "--check=false", f"--fault={fault}",
                           f"--fault_step={step}", f"--fault_rank={FAULT_RANK}", binary="pipeline_8b_with_faults")
        self.losses = pipeline_faults.losses(job.stdout)
        return run, job

    def test_four_and_eight_ranks_give_the_result_of_one_device_and_are_healthy(self):
        for ranks in (4, 8):
            run = f"clean-{ranks}"
            job = self.run_job(run, f"--ranks={ranks}", "--steps=40")
            self.assertEqual(job.returncode, 0, job.stderr)
            found = re.search(r"relative: loss (\S+), grad_hidden (\S+), grad_weight (\S+)", job.stdout)
            loss, hidden, weight = (float(x) for x in found.groups())
            self.assertLess(loss, 1e-6)
            self.assertLess(hidden, 5e-3)  # each rank rounds its part to bf16
            self.assertLess(weight, 1e-6)
            rows = re.findall(r"^\| \d+ \|.*$", job.stdout, re.M)
            self.assertEqual(len(rows), ranks)
            for row in rows:
                cells = [float(x) for x in row.strip("| ").split("|")]
                logits_mb = cells[9]
                self.assertLessEqual(logits_mb, 128 * (2048 / ranks + 64) * 4 / 1e6, "more than a chunk of the shard's logits")
            pipeline_faults.wait_for_end(self.stack, run)
            self.assertEqual(pipeline_faults.integrity(self.stack, run), [])
            self.assertEqual([i for i in self.stack.incidents(run) if i["severity"] != "INFO"], [])
            self.assertEqual(int(self.stack.api("steps", run=run, tail=1)["steps"][0]["step"]), 39)

    def expect_named(self, name, ranks=4):
        fault = next(f for f in pipeline_faults.SEEN_BY_SUMS if f.name == name)
        run, job = self.run_fault(name, ranks, fault.begins(FAULT_STEP))
        self.assertEqual(job.returncode, 0, job.stderr)
        pipeline_faults.wait_for_end(self.stack, run)
        self.assertEqual(pipeline_faults.wrong_by_sums(self.stack, run, fault, self.losses, ranks, FAULT_STEP, FAULT_RANK), [])

    def test_a_rank_whose_part_is_missing(self):
        self.expect_named("missing_rank")

    def test_the_part_of_the_step_before(self):
        self.expect_named("stale_contribution")

    def test_a_flipped_bit(self):
        self.expect_named("bit_flip")

    def test_a_stale_maximum(self):
        self.expect_named("stale_max")

    def test_a_sum_added_twice(self):
        self.expect_named("sum_twice")

    def test_a_sum_added_twice_among_eight(self):
        self.expect_named("sum_twice", ranks=8)

    def test_another_mask(self):
        self.expect_named("other_mask")

    def test_other_labels(self):
        self.expect_named("other_labels")

    def test_gathered_logits(self):
        self.expect_named("gathered_logits")
        self.assertGreater(min(self.losses), 1.38, "ln 4 too much")

    def test_a_wrong_offset_is_refused_on_every_rank(self):
        run, job = self.run_fault("wrong_offset")
        self.assertEqual(job.returncode, 1)
        for rank in range(4):
            self.assertRegex(job.stderr, f"rank {rank}: .*shard_offset: expected the ranks' columns to cover .*; those of rank {FAULT_RANK} of the group begin at 257")
        self.assertEqual(len(self.losses), FAULT_STEP)
        steps = wait_for("the last step before", lambda: self.stack.api("steps", run=run, tail=1)["steps"], 20)
        self.assertEqual(int(steps[0]["step"]), FAULT_STEP - 1)

    def test_shards_that_keep_every_sum_right_show_in_the_loss(self):
        for name in pipeline_faults.SEEN_BY_LOSS:
            run, job = self.run_fault(name)
            self.assertEqual(job.returncode, 0, job.stderr)
            pipeline_faults.wait_for_end(self.stack, run)
            self.assertEqual(pipeline_faults.wrong_by_loss(self.stack, run, self.losses, FAULT_STEP), [])

    def test_a_build_without_faults_refuses_them(self):
        job = self.run_job("none", "--ranks=2", "--fault=bit_flip")
        self.assertEqual(job.returncode, 2)
        self.assertIn("--fault=bit_flip: this build has no faults", job.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
