"""Every command and every query of every runbook is run, at incidents that train_text makes; what a page shows as an answer is what comes.

    runbooks_test.py            checks
    runbooks_test.py --update   puts the answers of today's incidents into the pages

A page's command blocks are indented: a command, and below it the lines of its answer that the page explains. Numbers, names of incidents and times differ from
run to run, so lines are compared without them.
"""

import difflib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from stack import ROOT, Stack, wait_for  # noqa: E402

RUNBOOKS = sorted((ROOT / "dashboards" / "runbooks").glob("Lossgauge*.md"))
PROGRAMS = ("lossgaugectl", "curl", "journalctl", "cat", "df")
CODES = {"lossgaugectl verdict": (0, 10, 20, 30, 40)}
# Which run shows the incident of which page, and the condition that it must have open or have had.
INCIDENTS = {
    "LossgaugeLossSpike": ("spike", "loss_spike"), "LossgaugeLogitBlowup": ("spike", "logit_blowup"), "LossgaugeDivergence": ("divergence", "divergence"),
    "LossgaugeVerdictRestart": ("divergence", "divergence"), "LossgaugeNonfinite": ("nan", "nonfinite"), "LossgaugeReductionMismatch": ("means", "accounting"),
    "LossgaugeProducerLost": ("killed", "producer_lost"), "LossgaugeFrozen": ("frozen", "frozen"), "LossgaugeRepeatedBatch": ("repeated", "repeated_batch"),
    "LossgaugeVerdictHalt": ("halted", "nonfinite"), "LossgaugeStall": ("stopped", "stall"), "LossgaugeAttemptConflict": ("twice", "attempt_conflict"),
    "LossgaugeRecordsLost": ("fast", "records_lost"), "LossgaugeBlip": ("blip", "blip"), "LossgaugeLevelShift": ("noise", "level_shift"),
    "LossgaugeLossCollapse": ("padding", "loss_collapse"), "LossgaugeRankOutlier": ("shard", "rank_outlier"), "LossgaugeSlowdown": ("slow", "slowdown"),
    "LossgaugeRankMissing": ("mute", "rank_missing"),
}
COMMON = ("--steps=1000000", "--ranks=2", "--batch=16", "--z_loss=1e-4", "--step_ms=40", "--barrier_timeout_s=600")


def blocks(text):
    """(first line, last line + 1) of each indented block."""
    lines = text.split("\n")
    start = None
    for i, line in enumerate(lines + [""]):
        inside = line.startswith("    ") and line.strip() != ""
        if inside and start is None:
            start = i
        elif not inside and start is not None:
            yield start, i
            start = None


def parts(lines):
    """(command, its answer as shown) of one block."""
    found = []
    for line in (line[4:] for line in lines):
        if line.split()[0] in PROGRAMS:
            found.append((line, []))
        else:
            found[-1][1].append(line)
    return found


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
    return any(one.split()[0] == wanted.split()[0] and difflib.SequenceMatcher(None, wanted, one).ratio() > 0.6
               for one in map(shape, unwrapped(answer.split("\n"))))


class RunbooksTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.stack = Stack()
        cls.stack.__enter__()
        cls.addClassCleanup(cls.stack.close)
        cls.jobs = []
        cls.addClassCleanup(lambda: [cls.stack.end_session(job) for job in cls.jobs if job.poll() is None])
        cls.make_incidents()
        # Where there is no journal, the log of this stack's lossgauged stands for it.
        cls.tools = cls.stack.dir / "tools"
        cls.tools.mkdir()
        stub = cls.tools / "journalctl"
        stub.write_text(f'#!/bin/sh\ncat "{cls.stack.dir}/lossgauged.log"\n')
        stub.chmod(0o755)

    @classmethod
    def train(cls, run, *flags):
        cls.jobs.append(cls.stack.train(run, *COMMON, *flags, wait=False, start_new_session=True))
        return cls.jobs[-1]

    @classmethod
    def has(cls, run, condition):
        return [one for one in cls.stack.incidents(run) if one["condition"] == condition]

    @classmethod
    def make_incidents(cls):
        checkpoints = cls.stack.dir / "checkpoints"
        checkpoints.mkdir()
        # What takes longest, first.
        cls.train("noise", "--ranks=1", "--fault=noise", "--fault_step=500")
        cls.train("stopped", "--fault=stop_rank", "--fault_rank=1", "--fault_step=60")
        cls.train("twice", "--attempt=first")
        cls.train("twice", "--attempt=second")
        cls.train("killed", "--fault=kill", "--fault_rank=1", "--fault_step=60")
        cls.train("frozen", "--fault=freeze", "--fault_rank=1", "--fault_step=60")
        first = cls.train("halted", "--attempt=first", "--fault=nan", "--fault_step=150")
        cls.train("slow", "--fault=slow_rank", "--fault_rank=1", "--fault_step=60")
        cls.train("mute", "--fault=mute", "--fault_rank=1", "--fault_step=60")
        cls.train("shard", "--fault=bad_shard", "--fault_rank=1", "--ranks=4", "--fault_step=60")
        cls.train("nan", "--fault=nan", "--fault_step=150")
        cls.train("repeated", "--fault=repeat_batch", "--fault_step=150", "--fault_steps=100000")
        cls.train("means", "--fault=mean_of_means", "--micro_batches=2", "--batch=128", "--fault_step=50")
        wait_for("the first RESTART", lambda: cls.stack.verdict("halted")["action"] == "RESTART", 120)
        cls.stack.end_session(first)
        cls.train("halted", "--attempt=second", "--fault=nan", "--fault_step=150")
        for run, condition in (("killed", "producer_lost"), ("frozen", "frozen"), ("nan", "nonfinite"), ("means", "accounting"), ("repeated", "repeated_batch"), ("twice", "attempt_conflict"),
                               ("slow", "slowdown"), ("mute", "rank_missing"), ("shard", "rank_outlier")):
            wait_for(f"{condition} of {run}", lambda: cls.has(run, condition), 120)
        wait_for("HALT", lambda: cls.stack.verdict("halted")["action"] == "HALT", 120)
        cls.stop("nan", "means", "repeated", "twice", "halted", "slow", "mute", "shard")
        cls.train("spike", "--fault=spike", "--fault_step=200")
        cls.train("divergence", "--fault=divergence", "--fault_step=200", f"--checkpoint_dir={checkpoints}", "--checkpoint_every=50")
        cls.train("blip", "--seed=7", "--fault=blip", "--fault_step=200")
        cls.train("padding", "--fault=padding", "--fault_step=200")
        for run, condition in (("blip", "blip"), ("padding", "loss_collapse"), ("noise", "level_shift")):
            wait_for(f"{condition} of {run}", lambda: cls.has(run, condition), 180)
        wait_for("the spike", lambda: cls.has("spike", "loss_spike"), 120)
        wait_for("the divergence", lambda: cls.stack.verdict("divergence")["action"] == "RESTART", 180)
        wait_for("the stall", lambda: cls.has("stopped", "stall"), 240)
        # Last, since lossgauged itself is stopped: one run overruns its ring meanwhile.
        cls.train("fast", "--step_ms=0", "--ranks=1", "--batch=1", "--length=8")
        wait_for("steps of the fast run", lambda: cls.stack.api("steps", run="fast", tail=1).get("steps"), 60)
        cls.stack.sidecar.send_signal(signal.SIGSTOP)
        time.sleep(10)
        cls.stack.sidecar.send_signal(signal.SIGCONT)
        wait_for("lost records", lambda: cls.has("fast", "records_lost"), 60)

    @classmethod
    def stop(cls, *runs):
        """Freezes jobs that have shown what they are for, so that what they showed stays as it is and costs nothing."""
        for job in cls.jobs:
            if job.poll() is None and any(f"--run={run}" in job.args for run in runs):
                os.killpg(job.pid, signal.SIGSTOP)

    def execute(self, command, run):
        for written, real in (("RUN", run), ("http://127.0.0.1:9788", self.stack.http), ("http://127.0.0.1:9090", self.stack.prometheus),
                              ("http://127.0.0.1:9093", self.stack.alertmanager), ("/var/lib/lossgauge", str(self.stack.state_dir)),
                              ("$(pidof lossgauged)", str(self.stack.sidecar.pid)),
                              ("/run/lossgauge/rings/FILE.steps", str(next(iter(sorted(self.stack.ring_dir.glob("*.steps"))))))):
            command = command.replace(written, real)
        environment = {**os.environ, "LOSSGAUGE_ADDRESS": self.stack.grpc, "PATH": f"{self.tools}:{self.stack.bin}:{os.environ['PATH']}"}
        return subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=environment, timeout=60)

    def test_every_command_runs_and_answers_as_the_page_says(self):
        for page in RUNBOOKS:
            run, _ = INCIDENTS.get(page.stem, ("spike", None))
            lines = page.read_text().split("\n")
            for start, end in blocks(page.read_text()):
                for command, shown in parts(lines[start:end]):
                    with self.subTest(page=page.stem, command=command):
                        self.assertTrue(shutil.which(command.split()[0], path=f"{self.tools}:{self.stack.bin}:{os.environ['PATH']}"))
                        done = self.execute(command, run)
                        codes = next((codes for name, codes in CODES.items() if command.startswith(name) and "echo" not in command), (0,))
                        self.assertIn(done.returncode, codes, done.stdout + done.stderr)
                        if shown:
                            self.assertIn(page.stem, INCIDENTS, "an answer is shown that no incident here gives")
                        self.assertEqual([line for line in unwrapped(shown) if not resembles(line, done.stdout)], [], done.stdout)

    def test_every_query_is_one_that_prometheus_answers_and_finds_the_incident(self):
        for page in RUNBOOKS:
            run, condition = INCIDENTS.get(page.stem, ("spike", None))
            for query in re.findall(r"```promql\n(.*?)\n```", page.read_text(), re.S):
                with self.subTest(page=page.stem, query=query):
                    result = self.stack.query(query.replace("RUN", run))
                    # Of a run that was killed or frozen for good some values are gone with its processes.
                    if condition in ("loss_spike", "accounting", "producer_lost", "frozen", "attempt_conflict", "records_lost", "stall"):
                        self.assertTrue(result)

    def test_every_command_of_the_readme_runs(self):
        """Those that build, test and demonstrate are run by being what they are: this test is one of tests/run.sh, and the demo has a test of its own."""
        elsewhere = {"deploy/demo.sh", "tests/run.sh"}
        skipped = set()
        for block in re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.S):
            for command in filter(None, (re.sub(r"\s+# .*", "", line) for line in block.split("\n"))):
                if command.split()[0] in elsewhere:
                    skipped.add(command.split()[0])
                    continue
                with self.subTest(command=command):
                    written = self.stack.dir / "readme"
                    written.mkdir(exist_ok=True)
                    # Who waits waits for something to do, which the run that diverged has.
                    line = command.replace("llama8b-sft", "divergence" if "--wait" in command else "spike").replace("before after", "spike divergence").replace("127.0.0.1:9788", self.stack.http)
                    line = line.replace("FILE.steps", str(next(iter(sorted(self.stack.ring_dir.glob("*.steps")))))).replace("train.log", str(ROOT / "tests/replay/fixtures/llmc_main.log"))
                    environment = {**os.environ, "LOSSGAUGE_ADDRESS": self.stack.grpc, "PATH": f"{self.stack.bin}:{os.environ['PATH']}"}
                    done = subprocess.run(["timeout", "5", "bash", "-c", line], capture_output=True, text=True, env=environment, cwd=written)
                    # A verdict says itself by its code; a live line goes on until somebody ends it.
                    codes = (93,) if "restart=93" in line else (0, 10, 20, 30, 40) if " verdict " in line else (124,) if " watch " in line else (0,)
                    self.assertIn(done.returncode, codes, done.stdout + done.stderr)
                    self.assertTrue(done.stdout or any(written.iterdir()), line)
        self.assertEqual(skipped, elsewhere)

    def test_pages_of_what_train_text_can_do_show_its_numbers(self):
        without = [page.stem for page in RUNBOOKS if page.stem in INCIDENTS and not any(
            shown for start, end in blocks(page.read_text()) for _, shown in parts(page.read_text().split("\n")[start:end]))]
        self.assertEqual(without, [])


def labels(shown):
    return [line.split()[0] for line in shown]


def updated(shown, answer):
    """Those lines of the answer that the page shows, as they are now."""
    lines = [line for line in answer.rstrip("\n").split("\n") if line.strip()]
    keep, inside = [], False
    wanted = labels(shown) or ["summary", "reason", "codes"]
    incident = re.compile(r"[0-9a-f]{8}-\d+ ")
    for line in lines:
        if line.startswith(" " * 8) and inside:
            keep.append(line)
            continue
        word = line.split()[0]
        inside = word in wanted or incident.match(line) is not None or not line.startswith(" ")
        if inside:
            keep.append(line)
    return keep


class Update(RunbooksTest):
    def runTest(self):
        for page in RUNBOOKS:
            if page.stem not in INCIDENTS:
                continue
            run, condition = INCIDENTS[page.stem]
            lines = page.read_text().split("\n")
            for start, end in reversed(list(blocks(page.read_text()))):
                new = []
                for command, shown in parts(lines[start:end]):
                    new.append(command)
                    if command.startswith("lossgaugectl"):
                        answer = updated(shown, self.execute(command, run).stdout)
                        # Of several incidents the one that the page is about.
                        if command.startswith("lossgaugectl incidents"):
                            heads = [i for i, line in enumerate(answer) if re.match(r"[0-9a-f]{8}-\d+ ", line)]
                            mine = next((i for i in heads if condition in answer[i]), None)
                            answer = [] if mine is None else answer[mine:next((i for i in heads if i > mine), len(answer))]
                        new += [line.replace(str(self.stack.dir), "") for line in answer]
                    else:
                        new += shown
                lines[start:end] = ["    " + line for line in new]
            text = "\n".join(lines)
            page.write_text(re.sub(rf"\b{run}\b(?=  attempt)", "RUN", text))


if __name__ == "__main__":
    os.chdir(HERE)
    if sys.argv[1:] == ["--update"]:
        sys.exit(not unittest.TextTestRunner(verbosity=2).run(unittest.TestSuite([Update()])).wasSuccessful())
    unittest.main(verbosity=2, defaultTest="RunbooksTest")
