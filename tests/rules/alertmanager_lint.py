"""The shipped Prometheus and Alertmanager configurations: accepted by the tools that read them, and meaning what they say."""

import shutil
import subprocess
import unittest

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
        self.assertIn("2 rule files found", done.stdout)

    def test_every_alert_reaches_a_person_unless_it_is_information(self):
        amtool = self.tool("amtool")
        for severity, receiver in (("critical", "on-call"), ("warning", "on-call"), ("info", "nobody")):
            done = run(amtool, "config", "routes", "test", f"--config.file={ALERTMANAGER}", f"severity={severity}", "run=a")
            self.assertEqual(done.stdout.strip(), receiver)

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


if __name__ == "__main__":
    unittest.main()
