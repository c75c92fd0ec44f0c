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


def walk(node):
    yield node
    for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from walk(child)


def queries(dashboard):
    """(where, PromQL) of every panel and annotation."""
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"]
    for entry in dashboard["annotations"]["list"]:
        yield entry["name"], entry["expr"]


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
            self.assertIn("run", variables, name)
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
                self.assertEqual(problems(query, names), [], f"{name}: {where}")

    def test_prometheus_can_parse_every_query(self):
        promtool = shutil.which("promtool")
        if not promtool:
            self.skipTest("promtool was not found")
        expressions = [query for dashboard in self.dashboards.values() for _, query in queries(dashboard)]
        rules = [{"record": f"q:{i}:q", "expr": query.replace("$__rate_interval", "1m").replace("$run", "a")} for i, query in enumerate(expressions)]
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory) / "rules.yml"
            path.write_text(json.dumps({"groups": [{"name": "queries", "rules": rules}]}))  # JSON is YAML
            done = subprocess.run([promtool, "check", "rules", str(path)], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_the_verdict_and_its_reason_come_first(self):
        panels = [panel["title"] for panel in self.dashboards["training-run.json"]["panels"] if panel["type"] != "row"]
        self.assertEqual(panels[:2], ["Verdict", "Reason"])


class GeneratorTest(unittest.TestCase):
    def test_the_committed_files_are_what_the_generator_makes(self):
        node, npm = shutil.which("node"), shutil.which("npm")
        if not node or not npm:
            self.skipTest("node was not found")
        with tempfile.TemporaryDirectory() as directory:
            for path in GRAFANA.iterdir():
                if path.is_file():
                    shutil.copy(path, directory)
            if (GRAFANA / "node_modules").is_dir():
                (pathlib.Path(directory) / "node_modules").symlink_to(GRAFANA / "node_modules")
            else:
                installed = subprocess.run([npm, "ci", "--no-audit", "--no-fund"], cwd=directory, capture_output=True, text=True)
                if installed.returncode != 0:
                    self.skipTest(f"the generator's packages could not be installed: {installed.stderr.strip().splitlines()[-1:]}")
            done = subprocess.run([node, "generate.js", "--check"], cwd=directory, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_the_lock_file_names_no_registry(self):
        self.assertNotIn("resolved", (GRAFANA / "package-lock.json").read_text())


if __name__ == "__main__":
    unittest.main()
