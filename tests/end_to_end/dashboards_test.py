"""Every query of every panel and annotation of the shipped dashboards returns data from a real Prometheus that scraped the real sidecar and the daemon that
it forwards to, while a run is in trouble; no series of a run is there twice; and nothing of the ended run's gauges stays."""

import collections
import json
import os
import pathlib
import re
import sys
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "rules")]
from dashboards_lint import FILES, filled, queries  # noqa: E402
from stack import Stack, get, get_json, wait_for  # noqa: E402

# As the dashboards' variables choose them. Not every job has all signals: one diverges, one has its head and loss in one call on one rank, one is tensor parallel.
ODD = 'AD\\g.5+ "s" \'x\' 🚀'
RUNS = [(ODD, "sibling"), ("sibling", ODD), ("shards", ODD)]


def series(*pages):
    """How often each series stands on pages of /metrics: {(name, labels): times}."""
    found = collections.Counter()
    for line in "".join(pages).splitlines():
        if line and not line.startswith("#"):
            name, labels = re.fullmatch(r"(\w+)(\{.*\})? [^ }]+", line).groups()
            found[name, frozenset(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels or ""))] += 1
    return found


def twice(*pages):
    return sorted(f"{name}{sorted(labels)}" for (name, labels), times in series(*pages).items() if times > 1)


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
            self.assertIn('<th scope="row" role="rowheader">AD\\g.5+ &quot;s&quot; &#39;x&#39; 🚀</th>', get(self.stack.http + "/plain"))
        finally:
            for job in jobs:
                self.stack.end_session(job)

    def test_no_series_of_a_run_is_on_both_pages(self):
        """By the pages themselves: Prometheus passes over the second of two equal samples, and knows of a page only what it has scraped so far."""
        job = self.stack.train("once", "--steps=1000000", "--ranks=2", "--step_ms=25", wait=False, start_new_session=True)
        try:
            # What a page shows is the snapshot that the API answers from: a run that is there is on the page, or is left off it.
            def knows_both_ranks(one):
                run = get_json(one.http + "/api/v1/run?run=once")
                return len(run["producers"]) == 2 and int(run["lastStep"]["step"]) > 10

            for one in (self.stack.first, self.daemon):
                wait_for(f"{one.name} knows both ranks", lambda: knows_both_ranks(one), 60)  # noqa: B023
            sidecar, daemon = (get(one.http + "/metrics") for one in (self.stack.first, self.daemon))
            of_runs = lambda page: "".join(line + "\n" for line in page.splitlines() if re.search(r'[{,]run="', line))  # noqa: E731
            self.assertGreater(len(series(of_runs(daemon))), 100)
            self.assertEqual(sum(name == "lossgauge_step" and ("run", "once") in labels for name, labels in series(daemon)), 2, "two ranks")
            self.assertEqual([twice(sidecar), twice(daemon), twice(of_runs(sidecar), of_runs(daemon))], [[], [], []])
            # That it can be told: the same with a line of the daemon's on the sidecar's page, its labels the other way round.
            self.assertEqual(len(twice(of_runs(sidecar) + 'lossgauge_step{rank="1",run="once"} 7\n', of_runs(daemon))), 1)
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
