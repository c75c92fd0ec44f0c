"""Reads what a gauge wrote, with lossgaugectl (LOSSGAUGE_CTL)."""

import json
import os
import subprocess

CTL = os.environ.get("LOSSGAUGE_CTL")


def dump(path):
    """A ring file as `lossgaugectl dump` sees it."""
    return json.loads(subprocess.run([CTL, "dump", "--json", "--tail=0", path], check=True, stdout=subprocess.PIPE, text=True).stdout)


def records(gauge):
    return [entry for entry in dump(gauge.state().steps_path)["records"]]
