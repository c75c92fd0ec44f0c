"""Every command and every query of every runbook is run, at incidents that are made here; what a page shows as an answer is what comes.

    runbooks_test.py            checks
    runbooks_test.py --update   puts the answers of today's incidents into the pages
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from runbook_incidents import FOREIGN_NAME, INCIDENTS, Incidents  # noqa: E402
from runbook_pages import questions, resembles, same_lines, series, unwrapped  # noqa: E402
from stack import ROOT  # noqa: E402

RUNBOOKS = sorted((ROOT / "dashboards" / "runbooks").glob("Lossgauge*.md"))
CODES = {"lossgaugectl verdict": (0, 10, 20, 30, 40)}
ADDRESS = "127.0.0.1:9788"
# Of a run that was killed or frozen for good some values are gone with its processes.
ANSWERED = ("loss_spike", "accounting", "producer_lost", "frozen", "attempt_conflict", "records_lost", "stall")


class RunbooksTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.incidents = Incidents()
        cls.addClassCleanup(cls.incidents.close)
        cls.stack = cls.incidents.stack
        cls.incidents.make()
        # Where there is no journal, the log of the lossgauged that is asked stands for it.
        cls.tools = cls.stack.dir / "tools"
        cls.tools.mkdir()
        cls.write_tool("journalctl", 'cat "$LOSSGAUGED_LOG"')
        # Where the lossgauged that is asked sees another file system than we.
        cls.write_tool("df", f'exec nsenter --target "$LOSSGAUGED_PID" --mount --user --preserve-credentials {shutil.which("df")} "$@"')

    @classmethod
    def write_tool(cls, name, command):
        (cls.tools / name).write_text(f"#!/bin/sh\n{command}\n")
        (cls.tools / name).chmod(0o755)

    @staticmethod
    def a_ring(lossgauged):
        return next((ring for ring in sorted(lossgauged.ring_dir.glob("*.steps")) if ring.name != FOREIGN_NAME), lossgauged.ring_dir)

    def execute(self, command, page):
        incident = INCIDENTS[page]
        one = self.incidents.lossgauged(incident.at)
        ring = one.ring_dir / FOREIGN_NAME if page == "LossgaugeRingUnreadable" else self.a_ring(one)
        for written, real in (("RUN", incident.run), ("http://127.0.0.1:9788", one.http), ("http://127.0.0.1:9090", self.stack.prometheus),
                              ("http://127.0.0.1:9093", self.stack.alertmanager), ("/var/lib/lossgauge", str(one.state_dir)),
                              ("$(pidof lossgauged)", str(one.process.pid)), ("/run/lossgauge/rings/FILE.steps", str(ring))):
            command = command.replace(written, real)
        environment = {**os.environ, "LOSSGAUGE_ADDRESS": one.grpc, "LOSSGAUGED_LOG": str(one.log), "LOSSGAUGED_PID": str(one.process.pid),
                       "PATH": f"{self.tools}:{self.stack.bin}:{os.environ['PATH']}"}
        done = subprocess.run(["bash", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, timeout=60)
        return done.returncode, re.sub(rf"\b{incident.run}\b(?=  attempt)", "RUN", done.stdout)

    def answer(self, question, page):
        if question.is_query:
            run = INCIDENTS[page].run
            return "\n".join(series(self.stack.query(question.text.replace("RUN", run)), ADDRESS)).replace(f'run="{run}"', 'run="RUN"')
        return self.execute(question.text, page)[1]

    def check(self, is_query, one):
        """Calls one(page, question) for every command, or every query, of every page."""
        for page in RUNBOOKS:
            for question in questions(page.read_text()):
                if question.is_query == is_query:
                    with self.subTest(page=page.stem, asked=question.text):
                        if page.stem in self.incidents.unmade:
                            self.skipTest(self.incidents.unmade[page.stem])
                        one(page.stem, question)

    def test_every_command_runs_and_answers_as_the_page_says(self):
        def check_command(page, question):
            command = question.text
            self.assertTrue(shutil.which(command.split()[0], path=f"{self.tools}:{self.stack.bin}:{os.environ['PATH']}"))
            code, answer = self.execute(command, page)
            allowed = {**CODES, **INCIDENTS[page].codes}
            codes = next((codes for name, codes in allowed.items() if command.startswith(name) and "echo" not in command), (0,))
            self.assertIn(code, codes, answer)
            self.assertEqual([line for line in unwrapped(question.shown) if not resembles(line, answer)], [], answer)

        self.check(False, check_command)

    def test_every_query_is_one_that_prometheus_answers_and_finds_the_incident(self):
        def check_query(page, question):
            answer = self.answer(question, page)
            if question.shown or INCIDENTS[page].condition in ANSWERED:
                self.assertTrue(answer)
            self.assertEqual([line for line in question.shown if not resembles(line, answer)], [], answer)

        self.check(True, check_query)

    def test_what_the_readme_says_to_run_runs(self):
        """Those that build, test and demonstrate are run by being what they are: this test is one of tests/run.sh, and the demo has a test of its own."""
        elsewhere = {"deploy/demo.sh", "tests/run.sh"}
        skipped = set()
        written = self.stack.dir / "readme"
        written.mkdir()
        (written / "rings").mkdir(mode=0o750)
        environment = {**os.environ, "LOSSGAUGE_ADDRESS": self.stack.grpc, "LOSSGAUGE_RING_DIR": str(written / "rings"), "XDG_STATE_HOME": str(written),
                       "PATH": f"{self.stack.bin}:{os.environ['PATH']}"}
        for block in re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.S):
            for command in filter(None, (re.sub(r"\s+# .*", "", line) for line in block.split("\n"))):
                if command.split()[0] in elsewhere:
                    skipped.add(command.split()[0])
                    continue
                with self.subTest(command=command):
                    # Who waits waits for something to do, which the run that diverged has.
                    line = command.replace("llama8b-sft", "divergence" if "--wait" in command else "spike")
                    for shown, real in (("before after", "spike divergence"), ("127.0.0.1:9788", self.stack.http), ("FILE.steps", str(self.a_ring(self.stack.first))),
                                        ("train.log", str(ROOT / "tests/replay/fixtures/llmc_main.log")), ("./client/python", str(ROOT / "client" / "python")),
                                        ("$PWD/build/cpu", str(self.stack.bin.parent)), ("build/cpu/bin", str(self.stack.bin)),
                                        ("lossgauged sidecar", f"lossgauged sidecar --http_listen=127.0.0.1:0 --grpc_listen=127.0.0.1:0 --state_dir={written}/state")):
                        line = line.replace(shown, real)
                    limit = "120" if "venv" in line else "5"
                    done = subprocess.run(["timeout", limit, "bash", "-c", line], capture_output=True, text=True, env=environment, cwd=written)
                    # A verdict says itself by its code; lossgauged, a job and a live line go on until somebody ends them.
                    endless = any(word in line for word in (" watch ", "lossgauged sidecar", "train_text"))
                    codes = (93,) if "restart=93" in line else (0, 10, 20, 30, 40) if " verdict " in line else (0, 124) if "lossgauged sidecar" in line else (124,) if endless else (0,)
                    self.assertIn(done.returncode, codes, done.stdout + done.stderr)
                    self.assertTrue(done.stdout or any(written.iterdir()), line)
        self.assertEqual(skipped, elsewhere)
        self.assertTrue(list((written / "rings").glob("*.steps")), "the job that breaks on purpose left no ring")
        done = subprocess.run([written / "venv" / "bin" / "python", "-c", "import lossgauge; print(lossgauge.__file__)"], capture_output=True, text=True, cwd=written)
        self.assertIn(str(written / "venv"), done.stdout, done.stderr)

    def test_every_page_shows_the_numbers_of_a_real_incident(self):
        self.assertEqual(set(INCIDENTS), {page.stem for page in RUNBOOKS})
        without = [page.stem for page in RUNBOOKS if not any(question.shown for question in questions(page.read_text()))]
        self.assertEqual(without, [])


class Update(RunbooksTest):
    def as_installed(self, one):
        """What stands on a page for the directories and ports of this test."""
        return ((str(one.state_dir), "/var/lib/lossgauge"), (f"{one.ring_dir}/{FOREIGN_NAME}", "/run/lossgauge/rings/FILE.steps"), (str(one.ring_dir), "/run/lossgauge/rings"),
                (one.grpc, "127.0.0.1:9789"), *((url.rsplit(":", 1)[1], port) for url, port in (
                    (one.http, "9788"), (self.stack.prometheus, "9090"), (self.stack.alertmanager, "9093"))))

    def runTest(self):
        for page in RUNBOOKS:
            if page.stem in self.incidents.unmade:
                continue
            incident = INCIDENTS[page.stem]
            lines = page.read_text().split("\n")
            for question in reversed(questions(page.read_text())):
                # Of a log, a page shows single lines that somebody chose.
                if not question.shown and (question.is_query or not question.text.startswith("lossgaugectl")) or question.text.startswith("journalctl"):
                    continue
                answer = self.answer(question, page.stem)
                new = answer.split("\n") if question.is_query else same_lines(question, answer, incident.condition)
                for real, written in self.as_installed(self.incidents.lossgauged(incident.at)):
                    new = [line.replace(real, written) for line in new]
                lines[question.first:question.last] = ["    " + line for line in new]
            page.write_text("\n".join(lines))


if __name__ == "__main__":
    os.chdir(HERE)
    if sys.argv[1:] == ["--update"]:
        sys.exit(not unittest.TextTestRunner(verbosity=2).run(unittest.TestSuite([Update()])).wasSuccessful())
    unittest.main(verbosity=2, defaultTest="RunbooksTest")
