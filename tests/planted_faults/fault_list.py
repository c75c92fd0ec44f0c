"""faults.toml: what is planted in a copy of the tree, and which tests must see it. Its words are explained there."""

import dataclasses
import pathlib
import tomllib


class BadList(Exception):
    """An entry that cannot be planted; the message names it."""


@dataclasses.dataclass(frozen=True)
class Edit:
    file: str  # from the top of the tree
    text: str
    replacement: str

    def apply(self, name, tree):
        """Edits the file under `tree`; gives what it held before."""
        path = tree / self.file
        before = self._read(name, path)
        path.write_text(before.replace(self.text, self.replacement))
        return before

    def check(self, name, tree):
        self._read(name, tree / self.file)

    def _read(self, name, path):
        try:
            held = path.read_text()
        except OSError as error:
            raise BadList(f"{name}: {self.file}: {error.strerror}") from error
        found = held.count(self.text)
        if found != 1:
            raise BadList(f"{name}: {self.file}: expected this text once, found it {found} times; whoever edits the code edits the entry:\n{self.text}")
        return held


@dataclasses.dataclass(frozen=True)
class Fault:
    cases: tuple[str, ...]
    fault: str
    edit: Edit
    program: str
    tests: tuple[str, ...]
    dies: bool  # in its only test, which protects its memory: by a signal

    @property
    def name(self):
        return f"{' '.join(self.cases)}, {self.fault}"


def _words(entry, name, types, optional=frozenset()):
    for word, kind in types.items():
        may_be_empty = word == "replacement"  # text that is taken away
        if not isinstance(entry.get(word), kind) or not (entry[word] or may_be_empty):
            raise BadList(f"{name}: {word}: expected a {kind.__name__} that is not empty, got {entry.get(word)!r}")
    if unknown := entry.keys() - types.keys() - optional:
        raise BadList(f"{name}: unknown words {sorted(unknown)}")


def _edit(entry, name):
    if entry["text"] == entry["replacement"]:
        raise BadList(f"{name}: replacement: is the text itself")
    return Edit(entry["file"], entry["text"], entry["replacement"])


def parse(text):
    """(preparations, faults) of the list; BadList names what is wrong with it."""
    try:
        entries = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadList(str(error)) from error
    edit_words = {"file": str, "text": str, "replacement": str}
    preparations, faults = [], []
    for number, entry in enumerate(entries.get("preparation", []), 1):
        name = f"preparation {number}"
        _words(entry, name, edit_words)
        preparations.append((name, _edit(entry, name)))
    for number, entry in enumerate(entries.get("fault", []), 1):
        name = f"fault {number} ({entry.get('fault')})"
        _words(entry, name, {"cases": list, "fault": str, **edit_words, "program": str, "tests": list}, optional={"dies"})
        if entry.get("dies", False) not in (False, True) or (entry.get("dies") and len(entry["tests"]) != 1):
            raise BadList(f"{name}: dies: expected true or false, and one test to die in")
        faults.append(Fault(tuple(entry["cases"]), entry["fault"], _edit(entry, name), entry["program"], tuple(entry["tests"]), entry.get("dies", False)))
    if not faults:
        raise BadList("no [[fault]] in the list")
    names = [fault.name for fault in faults]
    for name in names:
        if names.count(name) > 1:
            raise BadList(f"{name}: stands there twice")
    return preparations, faults


def load(path=pathlib.Path(__file__).with_name("faults.toml")):
    return parse(path.read_text())


def check(preparations, faults, tree):
    """Every text stands exactly once in its file."""
    for name, edit in preparations:
        edit.check(name, tree)
    for fault in faults:
        fault.edit.check(fault.name, tree)
