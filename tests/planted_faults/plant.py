"""Plants wrong values in a copy of the CPU kernels, one after the other, and sees the tests go red.

    plant.py --build FOLDER [--case B05]     (ctest -C nightly -L planted_faults)

FOLDER/tree is a copy of what builds the library and its tests; FOLDER/build is built there, once, and from then on only what a fault touches. A fault counts as
seen if every test that its entry names ran and failed: no failure of the build, no timeout, and no crash, unless the entry says that its test dies of it. Exits
with 0 if all were seen.
"""

import argparse
import filecmp
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

import fault_list

TOP = pathlib.Path(__file__).resolve().parents[2]
COPIED = ("CMakeLists.txt", "LICENSE", "README.md", "client", "deploy/debian", "kernels", "proto", "tests")
NOT_COPIED = {"node_modules", "__pycache__", "build"}
TEST_SECONDS = 300  # a fault may turn a loop into an endless one


class Unseen(Exception):
    """Why a fault does not count as seen."""


class Died(Unseen):
    """A program ended by a signal; `test` is the one that it was in, or ""."""

    def __init__(self, program, signal, test):
        super().__init__(f"{program} died of signal {signal} in {test or 'no test'}")
        self.test = test


def files_of(top):
    for name in COPIED:
        path = top / name
        if path.is_file():
            yield pathlib.Path(name)
        for folder, below, files in os.walk(path):
            below[:] = sorted(set(below) - NOT_COPIED)
            for file in files:
                yield (pathlib.Path(folder) / file).relative_to(top)


def copy_tree(top, tree, edits):
    """Copies what differs, so that a second run builds little. `edits` by file are applied on the way."""
    wanted = set()
    for file in files_of(top):
        wanted.add(file)
        source, target = top / file, tree / file
        target.parent.mkdir(parents=True, exist_ok=True)
        if str(file) in edits:
            text = source.read_text()
            for edit in edits[str(file)]:
                text = text.replace(edit.text, edit.replacement)
            if not target.exists() or target.read_text() != text:
                target.write_text(text)
        elif not target.exists() or not filecmp.cmp(source, target, shallow=False):
            shutil.copyfile(source, target)
            shutil.copymode(source, target)
    for path in [path for path in tree.rglob("*") if path.is_file()]:
        if path.relative_to(tree) not in wanted:
            path.unlink()


class Bench:
    """The copy, its build, and the programs that it makes."""

    def __init__(self, folder):
        self.tree, self.build_folder, self.log = folder / "tree", folder / "build", folder / "log.txt"
        folder.mkdir(parents=True, exist_ok=True)
        self.log.write_text("")

    def _run(self, command, **options):
        with self.log.open("a") as log:
            log.write(f"\n$ {' '.join(map(str, command))}\n")
            log.flush()
            return subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, check=False, **options).returncode

    def configure(self):
        # Debug without symbols: tests compute their own right values in float64, which -O0 would make slow.
        options = {"CMAKE_BUILD_TYPE": "Debug", "CMAKE_C_FLAGS_DEBUG": "-O1", "CMAKE_CXX_FLAGS_DEBUG": "-O1", "LOSSGAUGE_WERROR": "OFF",
                   "LOSSGAUGE_CUDA": "OFF", "LOSSGAUGE_BUILD_SERVER": "OFF", "LOSSGAUGE_BUILD_EXAMPLES": "OFF", "LOSSGAUGE_BUILD_BENCHMARKS": "OFF",
                   "LOSSGAUGE_BUILD_TESTS": "ON", "Python3_EXECUTABLE": sys.executable}
        command = ["cmake", "-S", self.tree, "-B", self.build_folder, "-G", "Ninja", *(f"-D{name}={value}" for name, value in options.items())]
        if self._run(command) != 0:
            sys.exit(f"the copy cannot be configured; see {self.log}")

    def build(self, programs):
        return self._run(["cmake", "--build", self.build_folder, "--parallel", str(min(2, os.cpu_count() or 1)), "--target", *sorted(programs)]) == 0

    def run(self, program, tests):
        """{test: whether it passed} of those that ran."""
        report = self.build_folder / "report.json"
        report.unlink(missing_ok=True)
        # The variant that every machine can run is the only one in the copy.
        environment = {**os.environ, "GTEST_OUTPUT": f"json:{report}"}
        for name in ("GTEST_FILTER", "LOSSGAUGE_CPU_ISA", "GTEST_SHUFFLE", "GTEST_BREAK_ON_FAILURE"):
            environment.pop(name, None)
        said = len(self.log.read_text(errors="replace"))
        try:
            code = self._run([self.build_folder / "bin" / program, f"--gtest_filter={':'.join(tests)}"], env=environment, timeout=TEST_SECONDS)
        except subprocess.TimeoutExpired:
            raise Unseen(f"{program} does not end in {TEST_SECONDS} s") from None
        if code < 0:
            begun = re.findall(r"^\[ RUN      \] (\S+)$", self.log.read_text(errors="replace")[said:], re.M)
            raise Died(program, -code, begun[-1] if begun else "")
        if code not in (0, 1) or not report.exists():
            raise Unseen(f"{program} ended with {code}, before its tests did")
        results = {}
        for suite in json.loads(report.read_text())["testsuites"]:
            for test in suite["testsuite"]:
                if test["result"] == "COMPLETED":
                    results[f"{suite['name']}.{test['name']}"] = not test.get("failures")
        return results


def see_green(bench, faults):
    """All tests of the list pass where nothing is planted."""
    programs = {}
    for fault in faults:
        programs.setdefault(fault.program, set()).update(fault.tests)
    if not bench.build(programs):
        sys.exit(f"the copy does not build; see {bench.log}")
    for program, tests in sorted(programs.items()):
        try:
            results = bench.run(program, sorted(tests))
        except Unseen as error:
            sys.exit(f"nothing planted, but {error}; see {bench.log}")
        if missing := tests - results.keys():
            sys.exit(f"{program}: no such tests, or they were skipped: {', '.join(sorted(missing))}")
        if red := sorted(test for test in tests if not results[test]):
            sys.exit(f"{program}: red though nothing is planted: {', '.join(red)}; see {bench.log}")
        print(f"{program}: {len(tests)} tests are green where nothing is planted", flush=True)


def see_red(bench, fault):
    """The tests that failed; Unseen if one that should did not."""
    before = fault.edit.apply(fault.name, bench.tree)
    try:
        if not bench.build({fault.program}):
            raise Unseen("does not build")
        results = bench.run(fault.program, fault.tests)
    except Died as death:
        if not fault.dies or death.test != fault.tests[0]:
            raise
        results = {death.test: False}
    finally:
        (bench.tree / fault.edit.file).write_text(before)
    if green := [test for test in fault.tests if results.get(test, True)]:
        raise Unseen(f"stayed green: {', '.join(green)}")
    return fault.tests


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, required=True, metavar="FOLDER", help="where the copy and its build are kept")
    parser.add_argument("--case", action="append", help="only faults of this case; may be repeated")
    options = parser.parse_args()
    try:
        preparations, faults = fault_list.load()
        fault_list.check(preparations, faults, TOP)
    except fault_list.BadList as error:
        sys.exit(f"faults.toml: {error}")
    if options.case:
        faults = [fault for fault in faults if set(fault.cases) & set(options.case)]
    if not faults:
        sys.exit(f"no fault of case {', '.join(options.case)}")
    bench = Bench(options.build.resolve())
    edits = {}
    for _, edit in preparations:
        edits.setdefault(edit.file, []).append(edit)
    copy_tree(TOP, bench.tree, edits)
    bench.configure()
    see_green(bench, faults)
    begin, seen = time.monotonic(), 0
    for fault in faults:
        with bench.log.open("a") as log:
            log.write(f"\n==== {fault.name}\n")
        try:
            result = ", ".join(see_red(bench, fault))
            seen += 1
        except Unseen as error:
            result = f"NOT SEEN: {error}"
        print(f"{' '.join(fault.cases):11} {fault.fault:77} {result}", flush=True)
    print(f"{len(faults)} planted, {seen} seen in {time.monotonic() - begin:.0f} s; the programs' own words are in {bench.log}")
    return 0 if seen == len(faults) else 1


if __name__ == "__main__":
    sys.exit(main())
