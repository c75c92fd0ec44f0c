"""What a runbook page asks, and what it shows as the answer.

Indented blocks hold commands, and below each the lines of its answer that the page explains. A query is fenced as promql; an indented block right below it
that begins with no program is its answer, one series a line. Numbers, names of incidents and times differ from run to run, so lines are compared without them.
"""

import dataclasses
import difflib
import re

ALIKE = 0.85
PROGRAMS = ("lossgaugectl", "curl", "journalctl", "ps", "df")


@dataclasses.dataclass
class Question:
    text: str  # a command, or a query
    is_query: bool
    first: int  # the answer's lines are lines[first:last] of the page
    last: int
    shown: list


def questions(text):
    """Every command and every query of a page, in order."""
    lines = text.split("\n")
    found = []
    indented = [line.startswith("    ") and line.strip() != "" for line in lines] + [False]
    i = 0
    while i < len(lines):
        if lines[i] == "```promql":
            end = lines.index("```", i)
            found.append(Question("\n".join(lines[i + 1:end]), True, end + 1, end + 1, []))
            i = end + 1
            if indented[i + 1] and lines[i] == "" and lines[i + 1].split()[0] not in PROGRAMS:
                found[-1].first = i + 1
                i += 1
                while indented[i]:
                    i += 1
                found[-1].last = i
            continue
        if indented[i] and lines[i].split()[0] in PROGRAMS:
            found.append(Question(lines[i][4:], False, i + 1, i + 1, []))
            i += 1
            while indented[i] and lines[i].split()[0] not in PROGRAMS:
                i += 1
            found[-1].last = i
            continue
        if indented[i]:
            raise ValueError(f"line {i + 1} is an answer to nothing: {lines[i]}")
        i += 1
    for one in found:
        one.shown = [line[4:] for line in lines[one.first:one.last]]
    return found


def series(result, address):
    """A query's answer as pages show it: labels that a reader can use, and the value. `address` stands for every lossgauged's."""
    lines = []
    for one in result:
        labels = {name: address if name == "instance" else value for name, value in one["metric"].items() if name not in ("__name__", "job")}
        lines.append("{" + ", ".join(f'{name}="{value}"' for name, value in sorted(labels.items())) + "}  " + f"{float(one['value'][1]):.4g}")
    return sorted(lines)


def unwrapped(lines):
    """One line for each that was broken to the width of the terminal: where it was broken depends on its numbers."""
    whole = []
    for line in lines:
        if whole and line.startswith(" " * 8):
            whole[-1] += " " + line.strip()
        elif line.strip():
            whole.append(line)
    return whole


def shape(line):
    """The line without what differs from run to run."""
    line = re.sub(r"\b[0-9a-f]{8}-\d+\b", "ID", line)
    line = re.sub(r"/\S+", "PATH", line)
    return " ".join(re.sub(r"[-+]?\d[\d.,:]*(e[-+]?\d+)?", "#", line).split())


def resembles(shown, answer):
    """Whether some line of the answer begins with the same word and says much the same."""
    if shown.strip().isdigit():  # an exit code
        return shown.strip() == answer.split()[-1]
    wanted = shape(shown)
    # A sentence may name another cause or place the next time; a code is what programs and readers act on.
    alike = 1 if wanted.split()[0] == "codes" else ALIKE
    return any(one.split()[0] == wanted.split()[0] and difflib.SequenceMatcher(None, wanted, one).ratio() >= alike
               for one in map(shape, unwrapped(answer.split("\n"))))


def same_lines(question, answer, condition):
    """Those lines of the answer that the page shows, as they are now; of several incidents the one of `condition`."""
    chosen = question.text.startswith(("ps ", "lossgaugectl dump"))  # of so many lines a page shows single ones
    lines = [line for line in answer.rstrip("\n").split("\n") if line.strip()]
    wanted = [line.split()[0] for line in question.shown] or ["summary", "reason", "codes"]
    incident = re.compile(r"[0-9a-f]{8}-\d+ ")
    heads = [i for i, line in enumerate(lines) if incident.match(line)]
    if heads:
        mine = next((i for i in heads if condition in lines[i]), len(lines))
        lines = lines[mine:next((i for i in heads if i > mine), len(lines))]
    keep, inside = [], False
    for line in lines:
        if not (line.startswith(" " * 8) and inside):
            inside = line.split()[0] in wanted or incident.match(line) is not None or not (chosen or line.startswith(" "))
        if inside:
            keep.append(line)
    return keep
