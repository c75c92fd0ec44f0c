"""What a user can get wrong, and what the place can lack: an exception that names argument, expected and got, or nothing at all; never a crash."""

import copy
import os
import pickle
import subprocess
import sys
import tempfile
import unittest

import torch

import lossgauge
import ring
from device import ON_CUDA

try:
    import numpy
except ImportError:
    numpy = None

COLUMNS, WIDTH = 33, 6


def run_script(text, **environment):
    return subprocess.run([sys.executable, "-c", text], env=dict(os.environ, **environment), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120)


class Misuse(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(8)
        self.logits, self.labels = torch.randn(2, 4, COLUMNS), torch.randint(0, COLUMNS, (2, 4))
        self.hidden, self.weight, self.bias = torch.randn(2, 4, WIDTH), torch.randn(COLUMNS, WIDTH), torch.randn(COLUMNS)
        self.directory = tempfile.TemporaryDirectory()
        self.addCleanup(self.directory.cleanup)
        self.gauge = lossgauge.Gauge(run="misuse", ring_dir=self.directory.name)
        self.addCleanup(self.gauge.close)

    def refused(self, said, function, *arguments, **options):
        with self.assertRaisesRegex(lossgauge.Error, said):
            function(*arguments, **options)

    def test_logits_and_labels(self):
        loss = self.gauge.cross_entropy
        for said, logits, labels in (
                ("logits: expected a tensor, got list", [1.0], self.labels), ("logits: expected float32.*got int64", self.labels, self.labels),
                ("logits: expected float32.*got float64", self.logits.double(), self.labels), ("logits: expected a dense", self.logits.to_sparse(), self.labels),
                ("logits: expected at least one dimension", torch.tensor(1.0), torch.tensor(1)), ("labels: expected a tensor.*got NoneType", self.logits, None),
                ("labels: expected integers, got float32", self.logits, self.labels.float()), ("labels: expected integers, got bool", self.logits, self.labels > 3),
                (r"labels: expected shape \[2, 4\], as logits without.*got int64 \[8\]", self.logits, self.labels.view(-1)),
                (r"labels: expected shape.*got float32|labels: expected integers", self.logits, self.logits.softmax(-1))):
            with self.subTest(said):
                self.refused(said, loss, logits, labels)

    def test_options(self):
        for said, options in (
                ("reduction: expected 'mean'.*got 'average'", {"reduction": "average"}), (r"reduction: expected 'mean'.*got \['mean'\]", {"reduction": ["mean"]}),
                ("reduction: expected 'mean'.*got None", {"reduction": None}),
                ("ignore_index: expected an int of 64 bits, got 18446744073709551516", {"ignore_index": 2**64 - 100}),
                ("ignore_index: expected an int of 64 bits, got float", {"ignore_index": -100.0}),
                ("label_smoothing: expected a number, got str", {"label_smoothing": "0.1"}), ("label_smoothing", {"label_smoothing": 1.5}),
                ("label_smoothing", {"label_smoothing": float("nan")}), ("z_loss", {"z_loss": -1.0}), ("logit_scale", {"logit_scale": float("inf")}),
                ("logit_softcap", {"logit_softcap": -3.0}), ("vocab_size: expected 1 to 33, got 34", {"vocab_size": 34}),
                ("vocab_size: expected 1 to 33, got 0", {"vocab_size": 0}), ("denominator: expected a number above 0, got 0", {"denominator": 0}),
                ("denominator: expected one element", {"denominator": torch.ones(2)}), ("denominator: expected reduction='mean'", {"denominator": 3, "reduction": "sum"}),
                ("grad_scale: expected a number or one element", {"grad_scale": torch.ones(2)}), ("grad_scale: expected a number, got str", {"grad_scale": "2"}),
                ("block: expected an int of 32 bits, got 4294967296", {"block": 2**32}), ("block: expected an int of 32 bits, got str", {"block": "train"}),
                ("block", {"block": 8}), ("position_base: expected an int of 64 bits", {"position_base": 2**63}), ("position_base", {"position_base": -1})):
            with self.subTest(options):
                self.refused(said, self.gauge.cross_entropy, self.logits, self.labels, **options)
        self.gauge.cross_entropy(self.logits, self.labels)
        self.gauge.step()
        if ring.CTL:
            self.assertEqual("8", ring.records(self.gauge)[0]["tokens"], "a refused call was counted")

    def test_heads(self):
        def loss(hidden=self.hidden, weight=self.weight, labels=self.labels, bias=None, **options):
            return self.gauge.linear_cross_entropy(hidden, weight, labels, bias, **options)

        for said, options in (
                ("weight: expected a tensor, got NoneType", {"weight": None}), (r"weight: expected \[V, 6\]", {"weight": self.weight.t()}),
                ("weight: expected 2 dimensions", {"weight": self.bias}), ("weight: expected torch.float32", {"weight": self.weight.half()}),
                (r"bias: expected \[33\]", {"bias": self.bias[1:]}), ("bias: expected 1 dimension,", {"bias": self.weight}),
                ("hidden: expected a tensor", {"hidden": 3}), ("labels: expected shape", {"labels": self.labels[:1]}),
                ("chunk_rows: expected an int", {"chunk_rows": 1.5}), ("chunk_rows", {"chunk_rows": -1}), ("memory_budget", {"memory_budget": -1}),
                ("most_unmasked: expected an int", {"most_unmasked": "8"})):
            with self.subTest(said):
                self.refused(said, loss, **options)

    def test_labels_out_of_range_are_no_error_and_are_counted(self):
        labels = self.labels.clone()
        labels[0, 0], labels[0, 1], labels[1, 3] = COLUMNS, -5, 2**40
        z = self.logits.clone().requires_grad_()
        loss = self.gauge.cross_entropy(z, labels)
        loss.backward()
        kept = (labels >= 0) & (labels < COLUMNS)
        torch.testing.assert_close(loss.double(), torch.nn.functional.cross_entropy(self.logits[kept].double(), labels[kept]), rtol=1e-6, atol=0)
        self.assertEqual(0, int(z.grad[~kept].count_nonzero()))
        self.gauge.step()
        if ring.CTL:
            self.assertEqual("3", ring.records(self.gauge)[0]["bad_targets"])

    def test_numbers_of_a_step(self):
        for said, options in (("grad_norm: expected a number, got str", {"grad_norm": "1"}), ("grad_norm: expected a number", {"grad_norm": torch.ones(2)}),
                              ("lr: expected a number, got list", {"lr": [1e-3]}), ("step: expected an int of 64 bits, got float", {"step": 1.0}),
                              ("step", {"step": -1}), ("loss: expected a number", {"loss": "3"})):
            with self.subTest(said):
                self.refused(said, self.gauge.step, **options)
        # A job that diverges must be able to say so.
        for value in (float("nan"), float("inf"), torch.tensor(float("nan"))):
            self.gauge.step(grad_norm=value, lr=0.0, loss=float(value))
        for said, call in (("step: expected an int", lambda: self.gauge.checkpoint_saved("1")), ("step: expected an int", lambda: self.gauge.resume(None)),
                           ("step: expected an int", lambda: self.gauge.evaluation(1.5, 2.0, 3)), ("tokens: expected an int", lambda: self.gauge.evaluation(1, 2.0, 3.5)),
                           ("text: expected text, got int", lambda: self.gauge.note(1, 7)), ("positions: expected a number", lambda: self.gauge.observe(1.0, 1, positions="1")),
                           ("tokens: expected a number", lambda: self.gauge.observe(1.0, float("nan"))),
                           ("nonfinite_rows: expected an int", lambda: self.gauge.observe(1.0, 1, nonfinite_rows="2")),
                           ("block: expected an int", lambda: self.gauge.observe(1.0, 1, block="train"))):
            with self.subTest(said):
                self.refused(said, call)

    def test_gauges(self):
        for said, options in (("run: expected text, got int", {"run": 5}), ("rank: expected an int", {"rank": "0"}), ("world_size: expected an int", {"world_size": 2.0}),
                              ("tp: expected", {"tp": ("a", 0)}), ("vocab_size: expected an int", {"vocab_size": "9"}), ("blocks: expected", {"blocks": [1]}),
                              ("blocks: expected", {"blocks": 5}), ("byte_table: expected", {"byte_table": "abc", "vocab_size": 3}),
                              ("label_smoothing: expected a number", {"label_smoothing": "x"}), ("first_step: expected an int", {"first_step": 0.5}),
                              ("gradient_reduction: expected", {"gradient_reduction": ["mean"]}), ("ring_dir: expected text, got int", {"ring_dir": 5}),
                              ("sidecar: expected text, got int", {"sidecar": 9788}), ("byte_table: expected bytes", {"byte_table": [300], "vocab_size": 1})):
            with self.subTest(said):
                self.refused(said, lossgauge.Gauge, **dict(dict(run="x", ring_dir=self.directory.name), **options))
        rings = [name for name in os.listdir(self.directory.name) if name.endswith(".steps")]
        self.assertEqual(1, len(rings), "a refused gauge left its ring, which nobody can close")
        for bad in (5, "gauge", object()):
            self.refused("gauge: expected a lossgauge.Gauge, got", lossgauge.cross_entropy, self.logits, self.labels, gauge=bad)

    def test_a_distributed_tensor_is_told_from_a_plain_one(self):
        class Sharded(torch.Tensor):
            def full_tensor(self):
                return self

        z = self.logits.as_subclass(Sharded)
        self.refused(r"logits: expected this rank's own part of a distributed tensor.*vocab_parallel_cross_entropy", lossgauge.cross_entropy, z, self.labels)

    def test_a_gradient_of_a_gradient_is_refused(self):
        z = self.logits.clone().requires_grad_()
        scale = torch.tensor(2.0, requires_grad=True)
        (gradient,) = torch.autograd.grad(self.gauge.cross_entropy(z, self.labels) * scale, z, create_graph=True)
        with self.assertRaisesRegex(RuntimeError, "once_differentiable"):
            gradient.sum().backward()

    @unittest.skipIf(ON_CUDA, "CUDA does not work in a forked child")
    def test_a_forked_child_has_its_losses_and_changes_nothing(self):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                z = self.logits.clone().requires_grad_()
                loss = self.gauge.cross_entropy(z, self.labels)
                loss.backward()
                self.gauge.accumulate([self.labels])
                self.gauge.verdict()
                gauge = self.gauge
                for call in (gauge.step, lambda: gauge.note(1, "x"), lambda: gauge.checkpoint_saved(1), lambda: gauge.observe(loss_sum=1.0, tokens=1),
                             lambda: gauge.phase("evaluation").__enter__()):
                    self.refused("gauge: belongs to the process that opened it", call)
                gauge.close()
                gauge.close()
                code = 0 if torch.isfinite(loss) else 2
            except BaseException as error:
                print("in the child:", type(error).__name__, error, file=sys.stderr)
            finally:
                os._exit(code)
        self.assertEqual(0, os.waitpid(child, 0)[1])
        self.gauge.cross_entropy(self.logits, self.labels)
        self.gauge.step()
        if ring.CTL:
            (record,) = ring.records(self.gauge)
            self.assertEqual(("0", "8"), (record["step"], record["tokens"]))

    def test_a_run_of_any_bytes_has_a_gauge(self):
        for name in (os.fsdecode(b"\xff\xfe"), "half \ud800", b"bytes", "\n\x1b[31m"):
            with self.subTest(name), lossgauge.Gauge(run=name, ring_dir=self.directory.name) as gauge:
                self.assertTrue(gauge.state().telemetry_on)
                self.assertEqual("unknown", gauge.verdict().action)

    def test_numbers_of_numpy_and_of_tensors_are_numbers(self):
        if numpy is None:
            self.skipTest("numpy is not there")
        one, half = numpy.int64(1), numpy.float32(0.5)
        self.gauge.cross_entropy(self.logits, self.labels, ignore_index=numpy.int32(-100), vocab_size=numpy.int64(COLUMNS), label_smoothing=half, z_loss=half)
        self.gauge.checkpoint_saved(torch.tensor(1), "x")
        self.gauge.evaluation(one, half, torch.tensor([3]))
        self.gauge.step(step=numpy.uint8(7), lr=half, grad_norm=one)
        self.assertEqual(8, self.gauge.state().next_step)
        for bad in (numpy.float64(1), numpy.bool_(True), torch.tensor(True), torch.tensor([1, 2]), torch.tensor(1.0), numpy.uint64(2**63)):
            with self.subTest(repr(bad)):
                self.refused("step: expected an int of 64 bits, got " + type(bad).__name__, self.gauge.step, step=bad)

    def test_a_step_without_tokens_is_no_error(self):
        labels = torch.full_like(self.labels, -100)
        for nothing in (0, 0.0, torch.tensor(0)):
            z = self.logits.clone().requires_grad_()
            self.gauge.cross_entropy(z, labels, reduction="sum").backward()
            self.assertEqual(0, int(z.grad.count_nonzero()))
            self.gauge.step(denominator=nothing)
        self.refused("denominator", self.gauge.step, denominator=-1)
        if ring.CTL:
            self.assertEqual([False] * 3, ["denominator_max" in record for record in ring.records(self.gauge)])

    def test_a_model_that_holds_a_gauge_is_copied_and_saved(self):
        model = torch.nn.Linear(2, 2)
        model.gauge = self.gauge
        for copied in (copy.copy(model), copy.deepcopy(model)):
            self.assertIs(self.gauge, copied.gauge)
        restored = pickle.loads(pickle.dumps(model)).gauge
        self.assertTrue(restored.closed)
        self.assertEqual("unknown", restored.verdict().action)
        restored.close()
        for call in (restored.step, restored.state, lambda: restored.cross_entropy(self.logits, self.labels), lambda: restored.phase("evaluation").__enter__()):
            self.refused("got one that was pickled; open one in this process", call)
        self.gauge.cross_entropy(self.logits, self.labels)
        self.gauge.step()
        self.assertEqual(1, self.gauge.state().published)

    def test_a_script_that_exits_with_0_has_finished(self):
        if not ring.CTL:
            self.skipTest("LOSSGAUGE_CTL names no lossgaugectl")
        for code, ended in ((None, "finished"), (0, "finished"), (3, "failed"), ("no data", "failed")):
            with self.subTest(code), self.assertRaises(SystemExit):
                with lossgauge.Gauge(run="exits", ring_dir=self.directory.name) as gauge:
                    path = gauge.state().steps_path
                    raise SystemExit(code)
            self.assertEqual(ended, ring.dump(path)["status"]["closed"])

    def test_an_exception_is_not_lost_for_another_one(self):
        class Bad(Exception):
            def __str__(self):
                raise RuntimeError("no words")

        for error in (KeyError("\ud800 \0 half"), Bad()):
            gauge = lossgauge.Gauge(run="misuse-2", ring_dir=self.directory.name)
            with self.assertRaises(type(error)):
                with gauge:
                    raise error
            self.assertTrue(gauge.closed)
        gauge = lossgauge.Gauge(run="misuse-3", ring_dir=self.directory.name)
        self.refused("reason: expected text, got int", gauge.close, 5)
        self.assertFalse(gauge.closed)
        gauge.close("half \ud800")

    def test_a_full_ring_directory(self):
        if not (os.geteuid() == 0 and os.path.isdir("/dev/shm")):
            self.skipTest("needs root to make a small file system")
        with tempfile.TemporaryDirectory() as directory:
            if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", directory], stderr=subprocess.DEVNULL).returncode != 0:
                self.skipTest("may not mount")
            try:
                gauge = lossgauge.Gauge(run="full", ring_dir=directory)
                z = self.logits.clone().requires_grad_()
                gauge.cross_entropy(z, self.labels).backward()
                gauge.step(grad_norm=1.0)
                state = gauge.state()
                self.assertFalse(state.telemetry_on)
                self.assertEqual(8, state.code, state.message)  # LG_RESOURCE_EXHAUSTED
                plain = self.logits.clone().requires_grad_()
                lossgauge.cross_entropy(plain, self.labels).backward()
                self.assertTrue(torch.equal(plain.grad, z.grad))
                gauge.close()
            finally:
                subprocess.run(["umount", "-l", directory])

    def test_a_script_that_ends_anyhow_ends(self):
        begin = ("import os, sys, threading, torch, lossgauge\ngauge = lossgauge.Gauge(run='end', ring_dir=os.environ['RING'])\n"
                 "z, y = torch.randn(2, 3).requires_grad_(), torch.tensor([0, 1])\ngauge.cross_entropy(z, y).backward()\ngauge.verdict()\n")
        for end, code in (("", 0), ("sys.exit(3)", 3), ("os._exit(4)", 4), ("raise SystemExit", 0), ("raise KeyboardInterrupt", -2),
                          ("os.kill(os.getpid(), 9)", -9), ("os.kill(os.getpid(), 15)", -15),
                          ("threading.Thread(target=lambda: [gauge.cross_entropy(z.detach(), y) for _ in range(20)]).start()", 0),
                          ("threading.Thread(target=gauge.close).start(); gauge.cross_entropy(z.detach(), y) if not gauge.closed else None", None)):
            with self.subTest(end), tempfile.TemporaryDirectory() as directory:
                said = run_script(begin + end, RING=directory, LOSSGAUGE_TEST_DEVICE="cpu")
                if code is not None:
                    self.assertEqual(code, said.returncode, said.stderr)
                self.assertIn(said.returncode, (0, 1, 3, 4, -2, -9, -15), said.stderr)


if __name__ == "__main__":
    unittest.main()
