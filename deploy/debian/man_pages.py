#!/usr/bin/env python3
"""Manual pages from what the programs say of themselves, so that they cannot differ from the flags.

    man_pages.py LOSSGAUGED LOSSGAUGECTL OUTPUT_DIR      writes lossgauged.8 and lossgaugectl.1
"""

import pathlib
import re
import subprocess
import sys


def said(*command):
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, check=True).stdout


def escaped(text):
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("\u00a0", " ")
    return re.sub(r"(?m)^([.'])", r"\\&\1", text)


def head(name, section, what, version):
    return f'.TH {name.upper()} {section} "" "lossgauge {version}"\n.SH NAME\n{name} \\- {escaped(what)}\n'


def paragraph(text):
    return escaped(" ".join(text.split())) + "\n"


def daemon_page(binary):
    text = said(binary, "--help")
    version = said(binary, "--version").split()[-1]
    usage, flags = text.split("Flags:\n")
    page = head("lossgauged", 8, "watches training jobs: loss, verdicts, metrics", version) + ".SH SYNOPSIS\n"
    for line in re.findall(r"(?m)^lossgauged .*$", usage):
        page += f".B {escaped(line)}\n.br\n"
    page += ".SH DESCRIPTION\n" + paragraph(" ".join(re.findall(r"(?m)^  (\S.*)$", usage)))
    page += ".SH OPTIONS\n"
    options = re.findall(r"(?m)^  (--\w+) \(default: (.*?)\)\n((?:      .*\n)+)", flags)
    assert len(options) > 10, "the flags were not understood"
    for name, default, meaning in options:
        shown = "" if default == "see below" else f" (default: {default})"
        page += f".TP\n.B {escaped(name)}{escaped(shown)}\n{paragraph(meaning)}"
    for title, label in (("ENVIRONMENT", "Environment"), ("SIGNALS", "Signals"), ("EXIT STATUS", "Exit codes")):
        page += f".SH {title}\n" + paragraph(re.search(rf"(?m)^{label}: (.*)$", usage).group(1))
    return page + ".SH SEE ALSO\n.BR lossgaugectl (1)\n"


def terms(block):
    """(term, explanation) of a list as --help prints it: the explanation beside its term, or under it."""
    found = []
    for line in block.splitlines():
        start = re.match(r"  (\S.*)$", line)
        if start and not line.startswith("   "):
            term, _, rest = start.group(1).partition("  ")
            found.append([term, rest.strip()])
        elif line.strip() and found:
            found[-1][1] += " " + line.strip()
    return found


def ctl_page(binary):
    text = said(binary, "--help")
    version = said(binary, "--version").split()[-1]
    commands = terms(text.split("[FLAGS]\n\n", 1)[1].split("\n\n")[0])
    assert len(commands) > 10, "the commands were not understood"
    page = head("lossgaugectl", 1, "asks lossgauged about training runs, and reads ring files and training logs without it", version)
    page += ".SH SYNOPSIS\n.B lossgaugectl\n.I COMMAND\n[\\fIOPERANDS\\fR] [\\fIFLAGS\\fR]\n.SH COMMANDS\n"
    for command, summary in commands:
        name = command.split()[0]
        help_text = said(binary, name, "--help")
        body, flags = help_text.split("\nFlags:\n")
        page += f".SS {escaped(command)}\n" + ".PP\n".join(paragraph(part) for part in body.split("\n\n")[1:] or [summary])
        for flag, meaning in terms(flags.split("\n\n")[0]):
            page += f".TP\n.B {escaped(flag)}\n{paragraph(meaning)}"
    page += ".SH EXIT STATUS\n" + paragraph(text[text.index("Exit codes:") + len("Exit codes:"):])
    page += ".SH ENVIRONMENT\n.TP\n.B LOSSGAUGE_ADDRESS\nwhom to ask, host:port\n.TP\n.B NO_COLOR\nno colours\n"
    return page + ".SH SEE ALSO\n.BR lossgauged (8)\n"


if __name__ == "__main__":
    lossgauged, lossgaugectl, output = sys.argv[1:]
    directory = pathlib.Path(output)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "lossgauged.8").write_text(daemon_page(lossgauged))
    (directory / "lossgaugectl.1").write_text(ctl_page(lossgaugectl))
