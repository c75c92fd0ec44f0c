"""The scheduler recipes of deploy/, run against a real lossgauged and a job that dies: supervise.sh, the Slurm scripts with a Slurm that only writes
down what it is told, and the probe of the Kubernetes manifest as a kubelet asks it.

    scheduler_recipes_test.py BIN_DIR
"""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import grpc
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
SUPERVISE = ROOT / "deploy" / "supervise.sh"
SLURM = ROOT / "deploy" / "slurm"
BIN = pathlib.Path(sys.argv.pop(1)).resolve()
STEPS = 30

# `scontrol show job` answers from a file; all else, and who asked, goes to a log.
FAKE_SCONTROL = """#!/bin/sh
case "$*" in
  *"show job"*) cat "$FAKE_SLURM/job" ;;
  *) echo "scontrol $*" >>"$FAKE_SLURM/log" ;;
esac
"""
FAKE_SRUN = """#!/bin/sh
echo "srun $*" >>"$FAKE_SLURM/log"
exec sh -c "$FAKE_TRAINING"
"""


class Lossgauged:
    def __init__(self, work):
        self.rings = work / "rings"
        self.rings.mkdir(mode=0o750)
        self.log = work / "lossgauged.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen([BIN / "lossgauged", "sidecar", f"--ring_dir={self.rings}", f"--state_dir={work / 'state'}", "--http_listen=none",
                                             "--grpc_listen=127.0.0.1:0"], stderr=log)
        wait_until(lambda: self.find_address() or self.process.poll() is not None)
        self.address = self.find_address()
        assert self.address, self.log.read_text()

    def find_address(self):
        found = re.search(r"gRPC on (127\.0\.0\.1:\d+)", self.log.read_text())
        return found and found[1]

    def stop(self):
        self.process.terminate()
        self.process.wait()


def wait_until(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)


class Recipes(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.work = pathlib.Path(tempfile.mkdtemp(prefix="lossgauge-recipes-"))
        cls.lossgauged = Lossgauged(cls.work)
        cls.tools = cls.work / "tools"
        cls.tools.mkdir()
        for name, text in (("scontrol", FAKE_SCONTROL), ("srun", FAKE_SRUN)):
            (cls.tools / name).write_text(text)
            (cls.tools / name).chmod(0o755)
        (cls.tools / "lossgaugectl").symlink_to(BIN / "lossgaugectl")

    @classmethod
    def tearDownClass(cls):
        cls.lossgauged.stop()
        shutil.rmtree(cls.work)

    def setUp(self):
        self.slurm = pathlib.Path(tempfile.mkdtemp(dir=self.work))
        (self.slurm / "log").touch()

    def environment(self, run, **more):
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "LOSSGAUGE_"))}
        path = f"{self.tools}:/usr/bin:/bin"
        return inherited | {"PATH": path, "LOSSGAUGE_PATH": path, "LOSSGAUGE_RUN": run, "LOSSGAUGE_ATTEMPT": "7.0", "LOSSGAUGE_GRACE": "5",
                            "LOSSGAUGE_ADDRESS": self.lossgauged.address, "FAKE_SLURM": str(self.slurm)} | more

    def job(self, run, attempt="7.0", close=False):
        """A job that is through its steps; without `close` it dies without a word, and the verdict becomes RESTART."""
        subprocess.run([BIN / "fake_job", f"--ring_dir={self.lossgauged.rings}", f"--run={run}", f"--attempt={attempt}", "--ranks=2",
                        f"--steps={STEPS}", "--rate=0", f"--close={int(close)}"], check=True)

    def verdict(self, run, *flags):
        return subprocess.run([BIN / "lossgaugectl", "verdict", f"--address={self.lossgauged.address}", *flags, run], capture_output=True, text=True)

    def wait_for(self, run, what, code):
        done = self.verdict(run, "--wait", f"--for={what}", "--wait-timeout=60s")
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)

    def halted(self, run):
        """Dies twice at the same step: another start would not help."""
        self.job(run, "6.9")
        self.wait_for(run, "restart", 20)
        self.job(run)
        self.wait_for(run, "halt", 30)

    def slurm_log(self):
        return (self.slurm / "log").read_text().splitlines()

    def supervise(self, run, script, **more):
        return subprocess.run([SUPERVISE, "sh", "-c", script], env=self.environment(run, **more), capture_output=True, text=True, timeout=90)


class SuperviseTest(Recipes):
    def test_the_commands_own_exit_code_is_passed_on(self):
        for code in (0, 1, 77):
            self.assertEqual(self.supervise("own", f"exit {code}").returncode, code)

    def test_restart_ends_the_command_and_goes_into_the_ledger(self):
        self.job("lost")
        done = self.supervise("lost", "trap 'echo saved; exit 0' TERM; while :; do sleep 0.1; done")
        self.assertEqual(done.returncode, 93, done.stderr)
        self.assertIn("saved", done.stdout)
        self.assertIn("RESTART", done.stderr)
        self.assertIn("RESTART of lost by supervise.sh is in the ledger, entry 1", done.stderr)

    def test_halt_has_a_code_of_its_own(self):
        self.halted("broken")
        self.assertEqual(self.supervise("broken", "sleep 600").returncode, 94)
        self.assertEqual(self.supervise("broken", "sleep 600", LOSSGAUGE_HALT_CODE="101").returncode, 101)

    def test_what_is_no_code_or_no_time_is_said_before_the_command_runs(self):
        for wrong in ({"LOSSGAUGE_RESTART_CODE": "oops"}, {"LOSSGAUGE_RESTART_CODE": "0"}, {"LOSSGAUGE_HALT_CODE": "256"}, {"LOSSGAUGE_HALT_CODE": "093"},
                      {"LOSSGAUGE_GRACE": "1.5"}, {"LOSSGAUGE_GRACE": "-1"}):
            with self.subTest(wrong):
                done = self.supervise("any", "echo it runs", **wrong)
                self.assertEqual((2, ""), (done.returncode, done.stdout), done.stderr)
                self.assertIn(next(iter(wrong)), done.stderr)

    def test_without_lossgaugectl_the_command_runs_and_one_line_says_so(self):
        done = self.supervise("any", "sleep 7; exit 6", PATH="/usr/bin:/bin")
        self.assertEqual(6, done.returncode, done.stderr)
        self.assertEqual(1, done.stderr.count("not found"), done.stderr)
        self.assertEqual(1, done.stderr.count("without supervision"), done.stderr)

    def test_a_lossgauged_that_stays_away_is_named_once(self):
        tools = self.slurm / "tools"
        tools.mkdir()
        (tools / "lossgaugectl").write_text(f"#!/bin/sh\necho asked >>{self.slurm}/log\necho 'cannot reach lossgauged' >&2\nexit 60\n")
        (tools / "lossgaugectl").chmod(0o755)
        done = self.supervise("any", f"while [ $(grep -c asked {self.slurm}/log) -lt 3 ]; do sleep 0.1; done; exit 6", PATH=f"{tools}:/usr/bin:/bin")
        self.assertEqual(6, done.returncode, done.stderr)
        self.assertEqual(1, done.stderr.count("cannot reach"), done.stderr)

    def test_signals_reach_the_command_and_leave_it_supervised(self):
        for name, end in (("HUP", 21), ("USR1", 22), ("USR2", 23), ("TERM", 24), ("INT", 24)):
            with self.subTest(name):
                script = "trap 'exit 21' HUP; trap 'exit 22' USR1; trap 'exit 23' USR2; trap 'exit 24' TERM; echo ready; while :; do sleep 0.1; done"
                process = subprocess.Popen([SUPERVISE, "sh", "-c", script], env=self.environment("any"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                self.assertEqual("ready\n", process.stdout.readline())
                process.send_signal(getattr(signal, f"SIG{name}"))
                process.communicate(timeout=90)
                self.assertEqual(end, process.returncode)

    def test_what_ignores_sigterm_is_killed_with_all_that_it_started(self):
        self.job("stubborn")
        done = self.supervise("stubborn", "trap '' TERM; sleep 600 & echo $! >&2; wait; sleep 600", LOSSGAUGE_GRACE="1")
        self.assertEqual(done.returncode, 93)
        child = int(re.search(r"^(\d+)$", done.stderr, re.M)[1])
        wait_until(lambda: not pathlib.Path(f"/proc/{child}").exists() or " Z " in pathlib.Path(f"/proc/{child}/stat").read_text(), 10)
        self.assertTrue(not pathlib.Path(f"/proc/{child}").exists() or " Z " in pathlib.Path(f"/proc/{child}/stat").read_text())

    def test_the_verdict_on_the_attempt_before_ends_nothing(self):
        self.job("again", "6.0")
        self.wait_for("again", "restart", 20)
        self.assertEqual(self.supervise("again", "sleep 2; exit 5").returncode, 5)

    def test_a_lossgauged_that_is_out_of_reach_ends_nothing(self):
        self.assertEqual(self.supervise("any", "sleep 1; exit 6", LOSSGAUGE_ADDRESS="127.0.0.1:1").returncode, 6)

    def test_a_signal_goes_to_the_command(self):
        process = subprocess.Popen([SUPERVISE, "sh", "-c", "trap 'exit 8' TERM; echo up; while :; do sleep 0.1; done"], env=self.environment("sig"),
                                   stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.assertEqual(process.stdout.readline(), "up\n")
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(60), 8)
        process.stdout.close()

    def test_without_a_run_it_says_how_it_is_used(self):
        for missing in ("LOSSGAUGE_RUN", "LOSSGAUGE_ATTEMPT"):
            done = self.supervise("any", "true", **{missing: ""})
            self.assertEqual(done.returncode, 2)
            self.assertIn("usage", done.stderr)


class SlurmTest(Recipes):
    def batch(self, training, restarts="0", **more):
        environment = self.environment("my-run", SLURM_JOB_ID="7", SLURM_RESTART_COUNT=restarts, FAKE_TRAINING=training,
                                       LOSSGAUGE_SUPERVISE=str(SUPERVISE), **more)
        return subprocess.run(["bash", SLURM / "train.sbatch"], env=environment, capture_output=True, text=True, timeout=90)

    def test_the_batch_script_requeues_after_restart_but_not_for_ever(self):
        for attempt, restarts, requeued in (("7.1", "1", True), ("7.5", "5", False)):
            (self.slurm / "log").write_text("")
            job = (f"{BIN}/fake_job --ring_dir={self.lossgauged.rings} --run=my-run --attempt={attempt} --ranks=2 --first_step={restarts}000 "
                   f"--steps={STEPS} --rate=0 --close=0; sleep 600")
            done = self.batch(job, restarts)
            self.assertEqual(done.returncode, 93, done.stderr)
            self.assertIn("srun --kill-on-bad-exit=1 python3 train.py", self.slurm_log())
            self.assertEqual("scontrol requeue 7" in self.slurm_log(), requeued, self.slurm_log())

    def test_a_failure_of_the_training_itself_is_passed_on(self):
        self.assertEqual(self.batch("exit 3").returncode, 3)
        self.assertEqual([line for line in self.slurm_log() if "scontrol" in line], [])

    def epilog(self, run, *, comment=None, code="0:9", state="COMPLETING", restarts=0, **more):
        (self.slurm / "job").write_text(f"JobId=7 JobName=my-run JobState={state} Requeue=1 Restarts={restarts} BatchFlag=1\n")
        comment = f"team=llm,lossgauge:{run}" if comment is None else comment
        environment = self.environment(run, SLURM_JOB_ID="7", SLURM_JOB_COMMENT=comment, SLURM_JOB_EXIT_CODE2=code, LOSSGAUGE_EPILOG_WAIT="20s") | more
        del environment["LOSSGAUGE_RUN"], environment["LOSSGAUGE_ATTEMPT"]
        done = subprocess.run([SLURM / "epilog-slurmctld.sh"], env=environment, capture_output=True, text=True, timeout=90)
        self.assertEqual(done.returncode, 0, done.stderr)
        return self.slurm_log()

    def prolog(self, **environment):
        done = subprocess.run([SLURM / "task-prolog.sh"], env={"PATH": os.environ["PATH"], "SLURM_JOB_ID": "7"} | environment, capture_output=True, text=True, timeout=30)
        self.assertEqual((0, ""), (done.returncode, done.stderr))
        return done.stdout.splitlines()

    def test_the_task_prolog_gives_what_the_job_has_not(self):
        rings = str(self.lossgauged.rings)
        self.assertEqual([f"export LOSSGAUGE_RING_DIR={rings}", "export LOSSGAUGE_ATTEMPT=7.2"], self.prolog(LOSSGAUGE_NODE_RINGS=rings, SLURM_RESTART_COUNT="2"))
        self.assertEqual(["export LOSSGAUGE_ATTEMPT=7.0"], self.prolog(LOSSGAUGE_NODE_RINGS="/nowhere"))
        self.assertEqual([], self.prolog(LOSSGAUGE_NODE_RINGS=rings, LOSSGAUGE_RING_DIR="/dev/shm/mine", LOSSGAUGE_ATTEMPT="first"))

    def test_the_epilog_requeues_a_job_that_died_with_its_batch_script(self):
        self.job("died")
        self.assertEqual(self.epilog("died"), ["scontrol requeue 7"])

    def test_the_epilog_says_why_it_does_not_requeue(self):
        self.job("worn", "7.5")
        self.assertEqual(self.epilog("worn", restarts=5), ["scontrol update JobId=7 AdminComment=lossgauge: RESTART, but this was restart 5"])
        (self.slurm / "log").write_text("")
        self.halted("dead")
        self.assertEqual(self.epilog("dead"), ["scontrol update JobId=7 AdminComment=lossgauge: HALT, another start would not help"], self.verdict("dead").stdout)

    def test_the_epilog_leaves_alone_what_is_not_its_business(self):
        self.job("fine", close=True)
        self.job("other")
        self.assertEqual(self.epilog("fine"), [])  # a clean end that Slurm took for a failure
        self.assertEqual(self.epilog("other", code="0:0"), [])
        self.assertEqual(self.epilog("other", comment="a lossgauge:"), [])
        self.assertEqual(self.epilog("other", comment=""), [])
        self.assertEqual(self.epilog("other", state="REQUEUED"), [])
        self.assertEqual(self.epilog("other", restarts=1, LOSSGAUGE_EPILOG_WAIT="300ms"), [])  # the verdict is on an earlier attempt
        self.assertEqual(self.epilog("other", LOSSGAUGE_ADDRESS="127.0.0.1:1", LOSSGAUGE_EPILOG_WAIT="300ms"), [])

    def test_shellcheck_finds_nothing(self):
        if not shutil.which("shellcheck"):
            self.skipTest("shellcheck was not found")
        done = subprocess.run(["shellcheck", SUPERVISE, *SLURM.iterdir()], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout)


class KubernetesTest(Recipes):
    """What a kubelet does with the probe of the manifest: so many refusals in a row and the container is restarted."""

    def setUp(self):
        super().setUp()
        documents = yaml.safe_load_all((ROOT / "deploy" / "kubernetes" / "trainer-with-sidecar.yaml").read_text())
        pod = next(document for document in documents if document["kind"] == "Job")["spec"]["template"]["spec"]
        self.probe = pod["containers"][0]["livenessProbe"]
        self.channel = grpc.insecure_channel(self.lossgauged.address)

    def tearDown(self):
        self.channel.close()

    def restarts(self):
        service = self.probe["grpc"]["service"].encode()
        check = self.channel.unary_unary("/grpc.health.v1.Health/Check")
        refused = 0
        for _ in range(self.probe["failureThreshold"]):
            answer = check(bytes([10, len(service)]) + service, timeout=self.probe.get("timeoutSeconds", 1) + 30)
            refused += answer != bytes([8, 1])
        return refused == self.probe["failureThreshold"]

    def test_the_liveness_probe_restarts_after_restart_and_not_before(self):
        self.assertFalse(self.restarts())  # nothing is known of the run yet
        self.job("my-run", "k.0")
        self.wait_for("my-run", "restart", 20)
        self.assertTrue(self.restarts())
        self.job("my-run", "k.1", close=True)
        self.wait_for("my-run", "ended", 40)
        self.assertFalse(self.restarts())

    def test_halt_restarts_nothing(self):
        self.probe["grpc"]["service"] = "run/probed-halt/restart"
        self.halted("probed-halt")
        self.assertFalse(self.restarts())


if __name__ == "__main__":
    del Recipes  # has no tests of its own
    unittest.main()
