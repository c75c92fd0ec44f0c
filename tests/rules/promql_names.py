"""What a PromQL expression speaks of, and what there is to speak of: the catalogue (dashboards/METRICS.md) and the recording rules."""

import pathlib
import re

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
DASHBOARDS = ROOT / "dashboards"
# Made by Prometheus itself, with the labels that every target has.
BUILT_IN = {"up": set(), "ALERTS": {"alertname", "alertstate", "severity", "category", "condition", "run", "kind", "action"}}
TARGET_LABELS = {"job", "instance", "pod", "namespace", "container", "endpoint", "node"}

_SERIES = re.compile(r"(?<![\w:.\"'])((?:lossgauge_|process_|run:|up\b|ALERTS\b)[a-zA-Z0-9_:]*)\s*(\{[^}]*\})?")
_MATCHER = re.compile(r"(\w+)\s*(=~|!~|!=|=)\s*[\"`]([^\"`]*)[\"`]")


def conditions():
    source = (ROOT / "server" / "state" / "names.cc").read_text()
    found = set(re.findall(r'"(\w+)"', re.search(r"kConditionNames = \{(.*?)\};", source, re.S).group(1)))
    assert len(found) > 15, "the conditions were not read"
    return found


# Labels that have no other values: a query for another one is quiet for ever.
CLOSED = {"condition": conditions(), "severity": {"critical", "warning", "info"}, "state": {"live", "frozen", "lost", "ended"},
          "action": {"CONTINUE", "WATCH", "RESTART", "HALT", "UNKNOWN"}}


def catalogue():
    """Metric name -> set of its labels."""
    metrics = {}
    for line in (DASHBOARDS / "METRICS.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) == 8 and cells[1].startswith("`"):
            metrics[cells[1].strip("`")] = {label for label in cells[4].split(",") if label}
    assert len(metrics) > 100, "the catalogue was not read"
    return metrics


def rules():
    """All rules of dashboards/rules, as dictionaries."""
    found = []
    for path in sorted((DASHBOARDS / "rules").glob("*.yml")):
        for group in yaml.safe_load(path.read_text())["groups"]:
            found += group["rules"]
    assert found, "no rules found"
    return found


def known():
    """Every name that rules, dashboards and runbooks may use, with its labels."""
    names = {**BUILT_IN, **catalogue()}
    for rule in rules():
        if "record" in rule:
            names[rule["record"]] = {"run"}
    return names


def problems(expression, names):
    """Names that nothing exports, and labels that their metric does not have."""
    found = []
    for name, matchers in _SERIES.findall(expression):
        if name not in names:
            found.append(f"no such metric: {name}")
            continue
        for label, operator, value in _MATCHER.findall(matchers):
            if label not in names[name] | TARGET_LABELS:
                found.append(f"{name} has no label {label}")
            if operator in ("=", "!=") and value not in CLOSED.get(label, {value}):
                found.append(f"no {label} is called {value}")
    if not _SERIES.search(expression):
        found.append(f"speaks of no metric: {expression}")
    return found
