"""Each fault of train_text, from the training job to the delivered alert: the right one, and only it, and the right verdict. A clean run of
2,000 steps raises nothing.

Real processes throughout: train_text -> ring -> lossgauged -> Prometheus with the shipped rules -> Alertmanager -> a webhook. The policy is the
shipped one; only stall and join limits are shortened by flag-file, since a test cannot wait ten minutes for a hang to be one.
"""

import os
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.dirname(__file__))
from stack import Stack, wait_for  # noqa: E402

FAULT_STEP = 300
# What may fire beside the alert that a fault is for: the verdict's own alert says what to do about it.
VERDICT_ALERTS = {"LossgaugeVerdictRestart", "LossgaugeVerdictHalt"}


class FaultsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.stack = Stack()
        cls.stack.__enter__()
        cls.addClassCleanup(cls.stack.close)
        # A hang takes a minute to be one: it hangs while the others run.
        cls.stopped = cls.train("stopped", "stop_rank", "--fault_rank=1", steps=100000, wait=False)
        cls.addClassCleanup(lambda: cls.stopped.poll() is None and cls.stop(cls.stopped))

    @classmethod
    def train(cls, run, fault, *flags, steps=700, ranks=2, wait=True, **options):
        return cls.stack.train(run, f"--steps={steps}", f"--ranks={ranks}", "--z_loss=1e-4", "--step_ms=8", f"--fault={fault}",
                                f"--fault_step={FAULT_STEP}", "--barrier_timeout_s=600", *flags, wait=wait, **options)

    def expect_alert(self, run, alert, seconds=60):
        """The alert is delivered, and nothing else about this run is (verdict alerts aside)."""
        wait_for(f"alert {alert} of run {run} at the webhook", lambda: alert in self.stack.webhook.fired(run), seconds)
        time.sleep(3)  # three scrapes and evaluations more, for anything that should not be there
        self.assertEqual(self.stack.webhook.fired(run) - VERDICT_ALERTS, {alert}, self.stack.incidents(run))

    def expect_action(self, run, action, seconds=60):
        return wait_for(f"verdict {action} of run {run}",
                        lambda: (v := self.stack.verdict(run)) and v["action"] == action and v, seconds)

    @staticmethod
    def stop(process):
        process.send_signal(signal.SIGCONT)
        subprocess.run(["pkill", "-KILL", "-P", str(process.pid)], check=False)
        process.kill()
        process.wait()

    def test_a_clean_run_of_2000_steps_raises_nothing(self):
        self.assertEqual(self.stack.train("clean", "--steps=2000", "--ranks=2", "--z_loss=1e-4"), 0)
        wait_for("the run's end", lambda: self.stack.api("run", run="clean").get("ended"), 10)
        time.sleep(3)
        self.assertEqual(self.stack.webhook.fired("clean"), set())
        severe = [i for i in self.stack.incidents("clean") if i["severity"] != "INFO"]
        self.assertEqual(severe, [])
        verdict = self.stack.verdict("clean")
        self.assertEqual((verdict["action"], verdict["reasonCodes"]), ("UNKNOWN", ["ended"]))
        steps = self.stack.api("steps", run="clean", tail=1)["steps"]
        self.assertEqual(int(steps[0]["step"]), 1999)

    def test_a_pathological_document_is_a_spike_that_recovers_and_never_a_restart(self):
        run = "spike"
        # The spike is open for about 45 steps: at 60 ms a step that is more than two scrapes. At 8 ms it may begin and end between two.
        process = self.train(run, "spike", "--step_ms=60", steps=100000, wait=False)
        self.expect_alert(run, "LossgaugeLossSpike", 90)
        spike = wait_for("the spike to close", lambda: [i for i in self.stack.incidents(run) if i["condition"] == "loss_spike" and not i.get("open")], 60)[0]
        self.assertLessEqual(abs(int(spike["onsetStep"]) - FAULT_STEP), 3)
        self.assertEqual(spike["kind"], "logit_blowup", spike)
        self.expect_action(run, "CONTINUE")
        history = [v["action"] for v in self.stack.api("verdicts", run=run)["verdicts"]]
        self.assertIn("WATCH", history)
        self.assertNotIn("RESTART", history)
        self.assertNotIn("HALT", history)
        self.stop(process)

    def test_a_learning_rate_blow_up_is_a_divergence_with_a_resume_point(self):
        run = "divergence"
        checkpoints = self.stack.dir / "divergence-checkpoints"
        checkpoints.mkdir()
        process = self.train(run, "divergence", f"--checkpoint_dir={checkpoints}", "--checkpoint_every=50", steps=100000, wait=False)
        verdict = self.expect_action(run, "RESTART", 120)
        wait_for("alert LossgaugeDivergence", lambda: "LossgaugeDivergence" in self.stack.webhook.fired(run), 60)
        # A divergence begins as a spike, and is seen as one before it is known for what it is.
        self.assertLessEqual(self.stack.webhook.fired(run) - VERDICT_ALERTS, {"LossgaugeDivergence", "LossgaugeLossSpike"})
        self.assertLessEqual(int(verdict["resumePoint"]["step"]), FAULT_STEP)
        self.assertTrue(os.path.exists(verdict["resumePoint"]["path"]), verdict)
        self.assertEqual(self.stack.ctl("verdict", run).returncode, 20)
        self.stop(process)

    def test_a_nan_weight_is_nonfinite_and_a_restart(self):
        run = "nan"
        process = self.train(run, "nan", steps=100000, wait=False)
        self.expect_alert(run, "LossgaugeNonfinite")
        self.expect_action(run, "RESTART")
        self.stop(process)

    def test_a_mean_of_means_is_named_as_such(self):
        run = "means"
        process = self.train(run, "mean_of_means", "--micro_batches=2", steps=100000, wait=False)
        self.expect_alert(run, "LossgaugeReductionMismatch")
        kinds = {i["kind"] for i in self.stack.incidents(run) if i["condition"] == "accounting"}
        self.assertEqual(kinds, {"mean_of_means"})
        self.expect_action(run, "WATCH")
        self.stop(process)

    def test_a_wrong_denominator_is_named_as_such(self):
        run = "denominator"
        process = self.train(run, "wrong_denominator", steps=100000, wait=False)
        self.expect_alert(run, "LossgaugeReductionMismatch")
        kinds = {i["kind"] for i in self.stack.incidents(run) if i["condition"] == "accounting"}
        self.assertEqual(kinds, {"denominator"})
        self.expect_action(run, "WATCH")
        self.stop(process)

    def test_a_loss_that_each_rank_reports_for_itself_is_named_as_such(self):
        run = "reported"
        process = self.train(run, "local_report", steps=100000, wait=False)
        self.expect_alert(run, "LossgaugeReductionMismatch")
        kinds = {i["kind"] for i in self.stack.incidents(run) if i["condition"] == "accounting"}
        self.assertEqual(kinds, {"reported_loss"})
        self.stop(process)

    def test_one_bad_row_is_counted_and_is_no_restart(self):
        run = "nan-once"
        self.assertEqual(self.train(run, "nan_once", steps=500), 0)
        wait_for("the run's end", lambda: self.stack.api("run", run=run).get("ended"), 10)
        self.assertEqual(int(self.stack.api("run", run=run)["totals"]["nonfiniteRows"]), 1)
        nonfinite = [i for i in self.stack.incidents(run) if i["condition"] == "nonfinite"]
        self.assertEqual([(int(i["onsetStep"]), i.get("open", False)) for i in nonfinite], [(FAULT_STEP, False)])
        history = [v["action"] for v in self.stack.api("verdicts", run=run)["verdicts"]]
        self.assertIn("WATCH", history)
        self.assertNotIn("RESTART", history)
        self.assertLessEqual(self.stack.webhook.fired(run), {"LossgaugeNonfinite"})

    def test_a_long_evaluation_is_watched_and_never_a_stall(self):
        run = "evaluation"
        process = self.train(run, "eval_pause", "--fault_seconds=12", steps=420, wait=False)
        verdict = self.expect_action(run, "WATCH", 60)
        self.assertIn("evaluation", verdict["reason"].lower(), verdict)
        self.assertEqual(process.wait(timeout=120), 0)
        self.assertEqual([i for i in self.stack.incidents(run) if i["condition"] == "stall"], [])
        self.assertEqual(self.stack.webhook.fired(run), set())

    def test_a_batch_handed_out_again_and_again_is_seen(self):
        run = "repeated"
        self.assertEqual(self.train(run, "repeat_batch", steps=400), 0)
        repeated = wait_for("the incident", lambda: [i for i in self.stack.incidents(run) if i["condition"] == "repeated_batch"], 20)
        self.assertLessEqual(abs(int(repeated[0]["onsetStep"]) - FAULT_STEP), 3)
        self.assertNotIn("RESTART", [v["action"] for v in self.stack.api("verdicts", run=run)["verdicts"]])

    def test_a_rank_that_stops_is_named(self):
        run = "stopped"
        self.expect_alert(run, "LossgaugeStall", 180)
        stalls = [i for i in self.stack.incidents(run) if i["condition"] == "stall"]
        self.assertEqual(stalls[0].get("rank"), 1, stalls)
        self.stop(self.stopped)

    def test_a_killed_rank_is_a_lost_producer_and_hides_what_follows_from_it(self):
        run = "killed"
        process = self.train(run, "kill", "--fault_rank=1", steps=100000, wait=False)
        self.expect_alert(run, "LossgaugeProducerLost", 90)
        self.expect_action(run, "RESTART")
        self.stop(process)

    def test_a_frozen_rank_is_seen_as_frozen(self):
        run = "frozen"
        process = self.train(run, "freeze", "--fault_rank=1", steps=100000, wait=False)
        self.expect_alert(run, "LossgaugeFrozen", 90)
        self.expect_action(run, "WATCH")
        subprocess.run(["pkill", "-CONT", "-P", str(process.pid)], check=False)
        self.stop(process)


if __name__ == "__main__":
    unittest.main(verbosity=2)
