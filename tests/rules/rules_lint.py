"""Rules and runbooks: every alert can be acted on, every name exists, every alert is tried by promtool, quiet and firing."""

import json
import re
import unittest

import yaml

from promql_names import DASHBOARDS, ROOT, conditions, known, problems, rules

ALERTS = [rule for rule in rules() if "alert" in rule]
# Of lossgaugectl: each command names itself.
COMMANDS = {name for path in (ROOT / "server" / "ctl").glob("*.cc") for name in re.findall(r'return \{\.name = "(\w+)"', path.read_text())}
NAMES = sorted({rule["alert"] for rule in ALERTS})
SECTIONS = ["## Meaning", "## Impact", "## Diagnosis", "## Mitigation"]
# Values that a NaN or an Inf can reach: a rule that compares one of them is silent, or shouts, when it matters most.
NAN_PRONE = re.compile(r"_(loss_nats|perplexity|grad_norm|log_z\w*|max_abs_logit|bits_per_byte|objective_nats|learning_rate)\b(?!:)")


class RulesTest(unittest.TestCase):
    def test_every_name_and_label_is_in_the_catalogue(self):
        for rule in rules():
            if rule.get("alert") != "LossgaugeWatchdog":  # which asks for nothing
                self.assertEqual(problems(rule["expr"], known()), [], rule)

    def test_every_condition_has_an_alert(self):
        told = {rule["labels"]["condition"] for rule in ALERTS if "condition" in rule["labels"]}
        self.assertEqual(told, conditions())

    def test_every_alert_says_what_it_is_and_where_to_read_on(self):
        for rule in ALERTS:
            with self.subTest(rule["alert"]):
                self.assertRegex(rule["alert"], r"^Lossgauge([A-Z][a-z]+)+$")
                self.assertIn(rule["labels"]["severity"], ("critical", "warning", "info"))
                self.assertIn(rule["labels"]["category"], ("condition", "verdict", "exporter", "watchdog"))
                self.assertEqual(set(rule["annotations"]), {"summary", "description", "runbook_url"})
                self.assertTrue(rule["annotations"]["runbook_url"].endswith(f"/runbooks/{rule['alert']}.md"))

    def test_no_alert_compares_what_can_be_nan(self):
        for rule in ALERTS:
            self.assertIsNone(NAN_PRONE.search(rule["expr"]), rule)

    def test_no_rule_depends_on_honor_labels(self):
        for rule in rules():
            self.assertNotIn("exported_", rule["expr"])

    def test_every_alert_is_expected_by_a_promtool_test_and_seen_quiet_in_it(self):
        tried, quiet = set(), 0
        for path in sorted((ROOT / "tests" / "rules" / "promtool").glob("*.yml")):
            for test in yaml.safe_load(path.read_text())["tests"]:
                checks = test.get("promql_expr_test", [])
                here = {name for check in checks for sample in check["exp_samples"] for name in re.findall(r'alertname="(\w+)"', sample["labels"])}
                tried |= here
                if here and any(not any(name in sample["labels"] for name in here for sample in check["exp_samples"]) for check in checks):
                    quiet += 1
        self.assertEqual(sorted(tried), NAMES)
        self.assertGreaterEqual(quiet, len(NAMES))


class RunbooksTest(unittest.TestCase):
    def test_there_is_one_page_for_each_alert_and_no_other(self):
        pages = sorted(path.stem for path in (DASHBOARDS / "runbooks").glob("Lossgauge*.md"))
        self.assertEqual(pages, NAMES)

    def test_every_page_answers_the_four_questions_in_order(self):
        for name in NAMES:
            text = (DASHBOARDS / "runbooks" / f"{name}.md").read_text()
            with self.subTest(name):
                self.assertTrue(text.startswith(f"# {name}\n"))
                self.assertEqual([line for line in text.splitlines() if line.startswith("## ")], SECTIONS)
                for before, after in zip(SECTIONS, SECTIONS[1:] + [None]):
                    body = text.split(before)[1].split(after)[0] if after else text.split(before)[1]
                    self.assertGreater(len(body.split()), 10, before)
                self.assertRegex(text.split("## Diagnosis")[1].split("## Mitigation")[0], r"lossgaugectl|lossgauge_|curl|journalctl|promql")

    def test_every_query_on_a_page_speaks_of_metrics_that_exist(self):
        names = known()
        for name in NAMES:
            text = (DASHBOARDS / "runbooks" / f"{name}.md").read_text()
            with self.subTest(name):
                for query in re.findall(r"```promql\n(.*?)```", text, re.S):
                    self.assertEqual(problems(query, names), [])
                for word in re.findall(r"`((?:lossgauge_|process_)[a-z0-9_]+)(?:\{[^`]*\})?`", text):
                    self.assertIn(word, names)

    def test_every_page_names_the_dashboard_and_panels_to_look_at(self):
        dashboards = [json.loads(path.read_text()) for path in sorted((DASHBOARDS / "grafana").glob("*.json")) if not path.name.startswith("package")]
        panels = {one["title"]: {panel["title"] for row in one["panels"] for panel in [row, *row.get("panels", [])]} for one in dashboards}
        for name in sorted(set(NAMES) - {"LossgaugeWatchdog"}):
            with self.subTest(name):
                text = " ".join((DASHBOARDS / "runbooks" / f"{name}.md").read_text().split("## Diagnosis")[1].split())
                named = re.findall(r"Dashboard \*([^*]+)\*, panels? \*([^*]+)\*(?:(?:,| and) \*([^*]+)\*)*", text)
                self.assertTrue(named)
                for dashboard, *titles in named:
                    self.assertIn(dashboard, panels)
                    self.assertLessEqual(set(filter(None, titles)), panels[dashboard])
                self.assertLessEqual(set(re.findall(r"[^d], panels? \*([^*]+)\*", text)), set().union(*panels.values()))

    def test_every_command_on_a_page_is_one_that_lossgaugectl_has(self):
        for name in NAMES:
            text = (DASHBOARDS / "runbooks" / f"{name}.md").read_text()
            for command in re.findall(r"lossgaugectl (\w+)", text):
                self.assertIn(command, COMMANDS, name)


if __name__ == "__main__":
    unittest.main()
