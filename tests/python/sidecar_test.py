"""From a Python script to a real sidecar's verdict and incidents."""

import os
import pathlib
import subprocess
import sys
import unittest

import torch

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "end_to_end"))
import lossgauge  # noqa: E402
from lossgauge import verdict  # noqa: E402
from stack import Stack, wait_for  # noqa: E402


@unittest.skipUnless(os.environ.get("LOSSGAUGE_BUILD"), "LOSSGAUGE_BUILD names no build directory")
class Sidecar(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.stack = Stack(build=os.environ["LOSSGAUGE_BUILD"], prometheus=False)
        cls.stack.__enter__()
        cls.addClassCleanup(cls.stack.close)

    def test_a_loop_sees_the_verdict_of_its_own_run(self):
        verdict.SECONDS_BETWEEN, before = 0.2, verdict.SECONDS_BETWEEN
        self.addCleanup(setattr, verdict, "SECONDS_BETWEEN", before)
        torch.manual_seed(1)
        with lossgauge.Gauge(run="loop", ring_dir=self.stack.ring_dir, sidecar=self.stack.http) as gauge:
            self.assertEqual("unknown", gauge.verdict().action)
            for step in range(60):
                loss = gauge.cross_entropy(torch.randn(64, 33), torch.randint(0, 33, (64,)))
                gauge.step(grad_norm=1.0 + 0.01 * (step % 3))
            said = wait_for("verdict continue", lambda: gauge.verdict() if gauge.verdict().action == "continue" else None, 20)
            self.assertIn("Step 59", said.reason)
        newest = self.stack.api("steps", run="loop", page_size=100)["steps"][-1]
        self.assertEqual(59, int(newest["step"]))
        self.assertAlmostEqual(loss.item(), newest["lossNats"], places=5)

    def test_the_toy_example_and_its_spike(self):
        script = HERE.parent.parent / "client" / "python" / "examples" / "train_toy.py"
        said = subprocess.run([sys.executable, script, "--run=toy", "--steps=60", "--spike_at=45"], stdout=subprocess.PIPE, text=True, check=True,
                              env=dict(os.environ, LOSSGAUGE_RING_DIR=str(self.stack.ring_dir), OMP_NUM_THREADS="2")).stdout
        self.assertRegex(said, r"step 59: loss [0-9.]+ nats")

        def spike():
            found = self.stack.api("incidents", run="toy")["incidents"]
            return [incident for incident in found if incident["condition"] == "loss_spike"]

        (incident,) = wait_for("loss_spike", spike, 20)
        self.assertEqual(45, int(incident["onsetStep"]))


if __name__ == "__main__":
    unittest.main()
