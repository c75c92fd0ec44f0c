"""Every query of every panel and annotation of the shipped dashboards returns data from a real Prometheus that scraped the real sidecar and the daemon that
it forwards to, while a run is in trouble; no series of a run is there twice; and nothing of the ended run's gauges stays."""

import json
import os
import pathlib
import sys
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "rules")]
from dashboards_lint import FILES, filled, queries  # noqa: E402
from stack import Stack, get, wait_for  # noqa: E402

# As the dashboards' variables choose them. Not every job has all signals: one diverges, one has its head and loss in one call on one rank, one is tensor parallel.
ODD = 'gpt "small" \'x\' 🚀'
RUNS = [(ODD, "sibling"), ("sibling", ODD), ("shards", ODD)]


class DashboardsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.stack = Stack(more=("daemon",))
        cls.daemon = cls.stack.further["daemon"]
        cls.stack.sidecar_flags.append(f"--forward_to={cls.daemon.grpc}")
        cls.stack.__enter__()
        cls.addClassCleanup(cls.stack.close)
        cls.stack.start(cls.daemon, f"--remote_write_url={cls.stack.prometheus}/api/v1/write", role="daemon")

    def answered(self, expression):
        for run, other in RUNS:
            if self.stack.query(filled(expression, interval="15s", run=run, other=other)):
                return True
        return False

    def test_every_query_of_every_panel_returns_data(self):
        common = ("--steps=1000000", "--ranks=2", "--step_ms=25", "--eval_every=50")
        jobs = [
            self.stack.train(ODD, *common, "--micro_batches=2", "--z_loss=1e-4", "--fault=divergence", "--fault_step=200", wait=False, start_new_session=True),
            self.stack.train("sibling", *common, "--ranks=1", "--linear_head", wait=False, start_new_session=True),
            self.stack.train_tensor_parallel("shards", fault_step=200),
        ]
        try:
            open_queries = {(path.name, title, expression) for path in FILES for title, expression in queries(json.loads(path.read_text()))}
            self.assertGreater(len(open_queries), 100)
            deadline = time.monotonic() + 240
            # Some need trouble (annotations), some two scrapes, some a steady state: each has to answer at some moment of the runs' lives.
            while open_queries and time.monotonic() < deadline:
                open_queries = {query for query in open_queries if not self.answered(query[2])}
                time.sleep(1)
            self.assertEqual(sorted(open_queries), [], "no data from these")
            # And the other views of a run with such a name.
            self.assertEqual(self.stack.ctl("verdict", ODD).returncode, 20)
            self.assertIn(f"RESTART  {ODD}  attempt", self.stack.ctl("verdict", ODD).stdout)
            self.assertIn(ODD, self.stack.ctl("runs").stdout)
            wait_for("the alert", lambda: "LossgaugeDivergence" in self.stack.webhook.fired(ODD), 60)
            alert = next(one for body in self.stack.webhook.bodies for one in body["alerts"] if one["labels"].get("run") == ODD)
            self.assertIn(f"Run {ODD}", alert["annotations"]["summary"])
            self.assertIn('<th scope="row" role="rowheader">gpt &quot;small&quot; &#39;x&#39; 🚀</th>', get(self.stack.http + "/plain"))
        finally:
            for job in jobs:
                self.stack.end_session(job)

    def test_no_series_of_a_run_is_on_both_pages(self):
        job = self.stack.train("once", "--steps=1000000", "--ranks=2", "--step_ms=25", wait=False, start_new_session=True)
        try:
            wait_for("both pages", lambda: self.stack.query('lossgauge_run_step{run="once"} > 200') and self.stack.query("lossgauge_forward_records_sent_total > 400"), 60)
            series = [frozenset((name, value) for name, value in one["metric"].items() if name != "instance")
                      for one in self.stack.query('{__name__=~"lossgauge_.*", run="once"}')]
            self.assertGreater(len(series), 100)
            self.assertEqual([sorted(one) for one in set(series) if series.count(one) > 1], [])
            self.assertEqual(len(self.stack.query('lossgauge_step{run="once"}')), 2, "two ranks")
        finally:
            self.stack.end_session(job)

    def test_gauges_of_an_ended_run_go_at_once_and_counters_stay(self):
        self.assertEqual(self.stack.train("short", "--steps=60"), 0)
        wait_for("the run's end", lambda: self.stack.api("run", run="short").get("ended"), 20)
        wait_for("the run's end on the daemon", lambda: 'lossgauge_run_active{run="short"} 0' in get(self.daemon.http + "/metrics"), 20)
        page = get(self.daemon.http + "/metrics")
        self.assertIn('lossgauge_nll_nats_total{rank="0",run="short"}', page.replace('run="short",rank="0"', 'rank="0",run="short"'))
        self.assertNotIn('lossgauge_run_loss_nats{run="short"}', page)


if __name__ == "__main__":
    os.chdir(HERE)
    unittest.main(verbosity=2)
