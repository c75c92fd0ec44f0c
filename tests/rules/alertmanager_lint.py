"""The shipped Prometheus and Alertmanager configurations: accepted by the tools that read them, and meaning what they say."""

import datetime
import json
import re
import shutil
import socket
import subprocess
import tempfile
import time
import unittest
import urllib.error
import urllib.request

import yaml

from promql_names import DASHBOARDS, rules

ALERTMANAGER = DASHBOARDS / "alertmanager.example.yml"
PROMETHEUS = DASHBOARDS / "prometheus.example.yml"


def run(*command):
    return subprocess.run([str(part) for part in command], capture_output=True, text=True)


class ConfigurationTest(unittest.TestCase):
    def tool(self, name):
        path = shutil.which(name)
        if not path:
            self.skipTest(f"{name} was not found")
        return path

    def test_amtool_accepts_the_alertmanager_example(self):
        done = run(self.tool("amtool"), "check-config", ALERTMANAGER)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_promtool_accepts_the_prometheus_example_and_finds_the_rules_through_it(self):
        done = run(self.tool("promtool"), "check", "config", PROMETHEUS)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("3 rule files found", done.stdout)

    def test_every_alert_reaches_a_person_unless_it_is_information(self):
        amtool = self.tool("amtool")
        for severity, receiver in (("critical", "on-call"), ("warning", "on-call"), ("info", "nobody")):
            done = run(amtool, "config", "routes", "test", f"--config.file={ALERTMANAGER}", f"severity={severity}", "run=a")
            self.assertEqual(done.stdout.strip(), receiver)
        done = run(amtool, "config", "routes", "test", f"--config.file={ALERTMANAGER}", "severity=info", "alertname=LossgaugeWatchdog")
        self.assertEqual(done.stdout.strip(), "dead-mans-switch")

    def test_alerts_are_grouped_by_run(self):
        self.assertIn("run", yaml.safe_load(ALERTMANAGER.read_text())["route"]["group_by"])

    def test_inhibition_names_alerts_that_exist_and_never_silences_its_own_source(self):
        names = {rule["alert"] for rule in rules() if "alert" in rule}
        for rule in yaml.safe_load(ALERTMANAGER.read_text())["inhibit_rules"]:
            self.assertTrue(rule["equal"])
            for matcher in rule["source_matchers"] + rule["target_matchers"]:
                if matcher.startswith("alertname"):
                    for name in matcher.split('"')[1].split("|"):
                        self.assertIn(name, names)
            self.assertNotEqual(rule["source_matchers"], rule["target_matchers"])

    def test_the_job_name_is_the_one_that_the_exporter_alerts_look_for(self):
        jobs = [config["job_name"] for config in yaml.safe_load(PROMETHEUS.read_text())["scrape_configs"]]
        self.assertTrue(all("lossgauge" in job for job in jobs))

    def test_no_alert_is_silenced_by_what_it_silences(self):
        """Two alerts that silence each other are both silent."""
        found = [rule for rule in rules() if "alert" in rule]
        labels = [{"alertname": rule["alert"], **rule["labels"]} for rule in found]
        inhibitions = yaml.safe_load(ALERTMANAGER.read_text())["inhibit_rules"]

        def silences(source, target):
            # Alertmanager itself spares an alert that matches both sides.
            return any(matches(rule["source_matchers"], source) and matches(rule["target_matchers"], target) and
                       not (matches(rule["source_matchers"], target) and matches(rule["target_matchers"], source)) for rule in inhibitions)

        mutual = [(a["alertname"], b["alertname"]) for a in labels for b in labels if silences(a, b) and silences(b, a)]
        self.assertEqual(mutual, [])


def matches(matchers, labels):
    for matcher in matchers:
        name, operator, value = re.fullmatch(r'(\w+) (=~|!~|!=|=) "(.*)"', matcher).groups()
        hit = bool(re.fullmatch(value, labels.get(name, ""))) if "~" in operator else labels.get(name, "") == value
        if hit == operator.startswith("!"):
            return False
    return True


class InhibitionTest(unittest.TestCase):
    """A real Alertmanager with the shipped example: who is silenced by whom."""

    @classmethod
    def setUpClass(cls):
        binary = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")
        if not binary:
            raise unittest.SkipTest("Alertmanager was not found")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            cls.address = "http://127.0.0.1:%d" % free.getsockname()[1]
        storage = tempfile.TemporaryDirectory()
        cls.addClassCleanup(storage.cleanup)
        process = subprocess.Popen([binary, f"--config.file={ALERTMANAGER}", f"--storage.path={storage.name}",
                                    f"--web.listen-address={cls.address.removeprefix('http://')}", "--cluster.listen-address="],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        cls.addClassCleanup(process.wait)
        cls.addClassCleanup(process.terminate)
        cls.until(lambda: urllib.request.urlopen(cls.address + "/-/ready").read())
        severities = {}
        for rule in rules():
            if "alert" in rule:
                severities.setdefault(rule["alert"], rule["labels"])
        cls.labels = severities

    @staticmethod
    def until(condition):
        deadline = time.monotonic() + 30
        while True:
            try:
                if value := condition():
                    return value
            except (urllib.error.URLError, OSError):
                pass
            if time.monotonic() > deadline:
                raise AssertionError("not within 30 s")
            time.sleep(0.1)

    def silenced(self, run_name, *names):
        """Names of the alerts of a run that nobody is told of while all of `names` fire."""
        now = datetime.datetime.now(datetime.timezone.utc).isoformat()
        body = [{"labels": {"alertname": name, "run": run_name, "instance": "node-1", **self.labels[name]}, "startsAt": now} for name in names]
        urllib.request.urlopen(urllib.request.Request(
            self.address + "/api/v2/alerts", json.dumps(body).encode(), {"Content-Type": "application/json"})).read()

        def states():
            alerts = json.loads(urllib.request.urlopen(self.address + "/api/v2/alerts").read())
            mine = {a["labels"]["alertname"]: a["status"] for a in alerts if a["labels"]["run"] == run_name}
            return mine if len(mine) == len(names) and all(s["state"] != "unprocessed" for s in mine.values()) else None

        # An alert has a state a moment after it came.
        return {name for name, status in self.until(states).items() if status["inhibitedBy"]}

    def test_a_halt_silences_its_symptoms_and_no_other_runs(self):
        symptoms = {"LossgaugeNonfinite", "LossgaugeReductionMismatch", "LossgaugeLossSpike", "LossgaugeVerdictRestart"}
        self.assertEqual(self.silenced("halted", "LossgaugeVerdictHalt", *symptoms), symptoms)
        self.assertEqual(self.silenced("another", "LossgaugeReductionMismatch"), set())

    def test_a_critical_condition_stands_for_the_restart_that_follows_from_it(self):
        self.assertEqual(self.silenced("diverged", "LossgaugeDivergence", "LossgaugeLossSpike", "LossgaugeGradExplosion", "LossgaugeVerdictRestart"),
                         {"LossgaugeLossSpike", "LossgaugeGradExplosion", "LossgaugeVerdictRestart"})

    def test_a_lost_process_explains_the_rest_of_its_run(self):
        self.assertEqual(self.silenced("lost", "LossgaugeProducerLost", "LossgaugeStall", "LossgaugeRankMissing"), {"LossgaugeStall", "LossgaugeRankMissing"})


if __name__ == "__main__":
    unittest.main()
