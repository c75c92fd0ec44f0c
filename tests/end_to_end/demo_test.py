"""deploy/demo.sh, the first command of the README, tells its story to the end."""

import os
import subprocess
import unittest

from stack import ROOT, free_port


class DemoTest(unittest.TestCase):
    def test_every_part_of_the_story_happens(self):
        ports = " ".join(str(free_port()) for _ in range(4))
        done = subprocess.run([ROOT / "deploy" / "demo.sh", "--once"], capture_output=True, text=True, timeout=800, env={**os.environ, "LOSSGAUGE_DEMO_PORTS": ports})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        for part in ("closed at step", "LossgaugeDivergence", "RESTART", "exit code of lossgaugectl verdict: 20", "The story is complete."):
            self.assertIn(part, done.stdout)

    def test_another_argument_is_refused_by_name(self):
        done = subprocess.run([ROOT / "deploy" / "demo.sh", "--twice"], capture_output=True, text=True, timeout=60)
        self.assertEqual((done.returncode, "--twice" in done.stderr), (2, True))


if __name__ == "__main__":
    unittest.main(verbosity=2)
