"""Every query of every panel and annotation of the shipped dashboards returns data from a real Prometheus that scraped the real sidecar, while a run
is in trouble; and nothing of the ended run's gauges stays."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "rules")]
from dashboards_lint import FILES, queries  # noqa: E402
from stack import Stack, get, wait_for  # noqa: E402

RUN = "panels"


class DashboardsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.stack = Stack()
        cls.stack.__enter__()
        cls.addClassCleanup(cls.stack.close)

    def answered(self, expression):
        return bool(self.stack.query(expression.replace("$__rate_interval", "15s").replace("${run:regex}", RUN).replace("$run", RUN)))

    def test_every_query_of_every_panel_returns_data(self):
        train = self.stack.train(RUN, "--steps=1000000", "--ranks=2", "--micro_batches=2", "--step_ms=10", "--eval_every=50", "--fault=divergence",
                                 "--fault_step=300", "--label_smoothing=0.01", wait=False)
        try:
            open_queries = {(path.name, title, expression)
                            for path in FILES for title, expression in queries(json.loads(path.read_text()))}
            self.assertTrue(open_queries)
            deadline = time.monotonic() + 150
            # Some need trouble (annotations), some two scrapes, some a steady state: each has to answer at some moment of the run's life.
            while open_queries and time.monotonic() < deadline:
                open_queries = {query for query in open_queries if not self.answered(query[2])}
                time.sleep(1)
            self.assertEqual(sorted(open_queries), [], "no data from these")
        finally:
            subprocess.run(["pkill", "-KILL", "-P", str(train.pid)], check=False)
            train.send_signal(signal.SIGKILL)
            train.wait()

    def test_gauges_of_an_ended_run_go_at_once_and_counters_stay(self):
        self.assertEqual(self.stack.train("short", "--steps=60"), 0)
        wait_for("the run's end", lambda: self.stack.api("run", run="short").get("ended"), 20)
        page = get(self.stack.http + "/metrics")
        self.assertIn('lossgauge_nll_nats_total{rank="0",run="short"}', page.replace('run="short",rank="0"', 'rank="0",run="short"'))
        self.assertNotIn('lossgauge_run_loss_nats{run="short"}', page)


if __name__ == "__main__":
    os.chdir(HERE)
    unittest.main(verbosity=2)
