"""Dashboards: work in any Grafana, at any scrape interval, on metrics that exist; and are what the generator makes."""

import json
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

from promql_names import DASHBOARDS, known, problems

GRAFANA = DASHBOARDS / "grafana"
FILES = sorted(path for path in GRAFANA.glob("*.json") if not path.name.startswith("package"))
LITERAL_WINDOW = re.compile(r"\[\s*\d+\w*(:\w*)?\s*\]")
# What a name may hold that means something to PromQL, to a regular expression or to Grafana; and beside each, what one that is read as a pattern, or not read to
# its end, would take for it.
ODD_NAMES = {
    "gpt \"small\" 'x' 🚀": "gpt \\\"small\\\" 'x' 🚀", "CORP\\alice": "CORPXalice", "ends in \\": "ends in ", "v1.5+wd": "v1x5+wd", "a|b": "a", "lr=[1e-4]": "lr=1", "(best)": "best",
    "why?": "wh", "all*": "allllll", "^$": "", "a/b {2}": "a/bb", "two\nlines": "two lines", "$run": "a", "100%": "100", '"}) or vector(1) #': "or", "tab\t": "tab"}


def walk(node):
    yield node
    for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from walk(child)


def queries(dashboard):
    """(where, PromQL) of every panel and annotation."""
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"]
    for entry in dashboard["annotations"].get("list", []):
        yield entry["name"], entry["expr"]


def filled(query, interval="1m", **variables):
    """The query as Grafana sends it."""
    values = {"__rate_interval": interval, "run": "a", "other": "b", "shift": "1s", "instance": ".*", **variables}

    def value(found):
        if found["format"] is None:
            return values[found["bare"] or found["name"]]
        assert found["format"] == "regex", found[0]
        return re.sub(r"[\\^$*+?.()|[\]{}/]", r"\\\g<0>", values[found["name"]])  # as escapeRegex of @grafana/data does

    return re.sub(r"\$(?P<bare>\w+)|\$\{(?P<name>\w+)(:(?P<format>\w+))?\}", value, query)


class DashboardsTest(unittest.TestCase):
    def setUp(self):
        self.assertTrue(FILES, "no dashboards found")
        self.dashboards = {path.name: json.loads(path.read_text()) for path in FILES}

    def test_no_datasource_is_named_by_a_literal_uid(self):
        for name, dashboard in self.dashboards.items():
            self.assertNotIn("__inputs", dashboard, name)
            sources = [node["datasource"] for node in walk(dashboard) if isinstance(node, dict) and "datasource" in node]
            self.assertTrue(sources, name)
            for source in sources:
                self.assertEqual(source, {"type": "prometheus", "uid": "${datasource}"}, name)
            self.assertNotIn("${DS_", json.dumps(dashboard), name)

    def test_each_has_the_variables_a_stable_uid_and_a_schema(self):
        for name, dashboard in self.dashboards.items():
            variables = {variable["name"]: variable for variable in dashboard["templating"]["list"]}
            self.assertEqual(variables["datasource"]["type"], "datasource", name)
            used = {word for _, query in queries(dashboard) for word in re.findall(r"\$\{?(\w+)", query)} - {"__rate_interval"}
            self.assertEqual(used, variables.keys() - {"datasource"}, name)
            self.assertFalse([key for variable in variables.values() for key in variable if key.startswith("auto")], name)
            self.assertRegex(dashboard["uid"], r"^lossgauge-[a-z-]{1,30}$", name)
            self.assertGreaterEqual(dashboard["schemaVersion"], 36, name)
            ids = [panel["id"] for panel in dashboard["panels"]]
            self.assertEqual(len(ids), len(set(ids)), name)

    def test_every_panel_has_a_unit_a_description_and_queries(self):
        for name, dashboard in self.dashboards.items():
            for panel in dashboard["panels"]:
                if panel["type"] == "row":
                    continue
                where = f"{name}: {panel['title']}"
                self.assertTrue(panel.get("description"), where)
                self.assertTrue(panel["fieldConfig"]["defaults"].get("unit"), where)
                self.assertTrue(panel.get("targets"), where)
                refs = [target["refId"] for target in panel["targets"]]
                self.assertEqual(len(refs), len(set(refs)), where)

    def test_no_query_has_a_literal_rate_window(self):
        for name, dashboard in self.dashboards.items():
            for where, query in queries(dashboard):
                self.assertIsNone(LITERAL_WINDOW.search(query), f"{name}: {where}: {query}")
                if re.search(r"\b(rate|increase|irate)\(", query):
                    self.assertIn("[$__rate_interval]", query, f"{name}: {where}")

    def test_every_query_speaks_of_the_catalogue(self):
        names = known()
        for name, dashboard in self.dashboards.items():
            for where, query in queries(dashboard):
                self.assertEqual(problems(filled(query), names), [], f"{name}: {where}")

    def test_prometheus_can_parse_every_query(self):
        promtool = shutil.which("promtool")
        if not promtool:
            self.skipTest("promtool was not found")
        expressions = [query for dashboard in self.dashboards.values() for _, query in queries(dashboard)]
        odd = {"run": 'CORP\\gpt "small" \'x\' 🚀', "other": '"}) or vector(1) #'}
        rules = [{"record": f"q:{i}:q", "expr": filled(query, **variables)} for i, query in enumerate(expressions) for variables in ({}, odd)]
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory) / "rules.yml"
            path.write_text(json.dumps({"groups": [{"name": "queries", "rules": rules}]}, ensure_ascii=False))  # JSON is YAML
            done = subprocess.run([promtool, "check", "rules", str(path)], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_a_run_is_matched_in_the_one_way_that_its_name_cannot_break(self):
        for name, dashboard in self.dashboards.items():
            for where, query in queries(dashboard):
                self.assertNotRegex(re.sub(r"\brun=~`\$\{(run|other):regex\}`", "", query), r"\$\{?(run|other)\b", f"{name}: {where}: {query}")

    def test_a_run_may_be_called_anything(self):
        """By Prometheus' own engine: the matcher of every query finds the run of that name, and no other."""
        promtool = shutil.which("promtool")
        if not promtool:
            self.skipTest("promtool was not found")
        matchers = {matcher for dashboard in self.dashboards.values() for _, query in queries(dashboard) for matcher in re.findall(r"run=~`\$\{\w+:regex\}`", query)}
        self.assertEqual(len(matchers), 2, matchers)
        labelled = lambda name: 'lossgauge_run_step{run=' + json.dumps(name, ensure_ascii=False) + '}'  # noqa: E731
        every = sorted({*ODD_NAMES, *ODD_NAMES.values()})
        tests = [{"expr": filled("lossgauge_run_step{%s}" % matcher, run=name, other=name), "eval_time": "0s",
                  "exp_samples": [{"labels": labelled(name), "value": every.index(name)}]} for name in every if name for matcher in matchers]
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory) / "test.yml"
            path.write_text(json.dumps({"evaluation_interval": "1m", "tests": [{
                "interval": "1m", "input_series": [{"series": labelled(name), "values": str(i)} for i, name in enumerate(every)],
                "promql_expr_test": tests}]}, ensure_ascii=False))
            done = subprocess.run([promtool, "test", "rules", str(path)], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertGreater(len(tests), 50)

    def test_each_leads_to_the_others_and_to_runbooks_that_exist(self):
        pages = {path.name for path in (DASHBOARDS / "runbooks").glob("*.md")}
        for name, dashboard in self.dashboards.items():
            self.assertIn(["lossgauge"], [link["tags"] for link in dashboard["links"] if link["type"] == "dashboards"], name)
            self.assertIn("lossgauge", dashboard["tags"], name)
            linked = re.findall(r"https://lossgauge\.example/runbooks/([\w.]+)", json.dumps(dashboard))
            self.assertTrue(linked, name) if name != "compare-runs.json" else None
            self.assertLessEqual(set(linked), pages, name)
            self.assertEqual(dashboard["editable"], False, name)

    def test_there_are_five_with_uids_of_their_own(self):
        self.assertEqual(sorted(dashboard["uid"] for dashboard in self.dashboards.values()),
                         ["lossgauge-compare-runs", "lossgauge-fleet", "lossgauge-itself", "lossgauge-reduction-integrity", "lossgauge-training-run"])

    def test_averages_are_ratios_of_sums(self):
        for name, dashboard in self.dashboards.items():
            for where, query in queries(dashboard):
                self.assertIsNone(re.search(r"\bavg(_over_time)?\b", query), f"{name}: {where}")

    def test_the_verdict_and_its_reason_come_first(self):
        panels = [panel["title"] for panel in self.dashboards["training-run.json"]["panels"] if panel["type"] != "row"]
        self.assertEqual(panels[:2], ["Verdict", "Reason"])


class GeneratorTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.node, npm = shutil.which("node"), shutil.which("npm")
        if not cls.node or not npm:
            raise unittest.SkipTest("node was not found")
        directory = tempfile.TemporaryDirectory()
        cls.addClassCleanup(directory.cleanup)
        cls.directory = directory.name
        for path in GRAFANA.iterdir():
            if path.is_file():
                shutil.copy(path, directory.name)
        installed = subprocess.run([npm, "ci", "--no-audit", "--no-fund"], cwd=directory.name, capture_output=True, text=True)
        if installed.returncode != 0:
            raise unittest.SkipTest(f"the generator's packages could not be installed: {installed.stderr.strip().splitlines()[-1:]}")

    def run_node(self, *arguments):
        done = subprocess.run([self.node, *arguments], cwd=self.directory, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_the_committed_files_are_what_the_generator_makes(self):
        self.run_node("generate.js", "--check")

    def test_grafanas_published_types_accept_them(self):
        self.run_node("check_schema.js")

    def test_the_lock_file_names_no_registry(self):
        self.assertNotIn("resolved", (GRAFANA / "package-lock.json").read_text())


if __name__ == "__main__":
    unittest.main()
