"""The incident of every runbook page, made by real processes: train_text with its faults, and lossgaugeds that are killed, starved or held."""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
from typing import NamedTuple

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from stack import ROOT, Stack, get, wait_for  # noqa: E402


class Incident(NamedTuple):
    run: str
    condition: str = ""  # that the run must have open or have had
    at: str = ""  # which lossgauged is asked; "" is the first
    codes: dict = {}  # of commands that fail on purpose, by their first word


INCIDENTS = {
    "LossgaugeAttemptConflict": Incident("twice", "attempt_conflict"),
    "LossgaugeBlip": Incident("blip", "blip"),
    "LossgaugeDivergence": Incident("divergence", "divergence"),
    "LossgaugeDrainStuck": Incident("held", at="held"),
    "LossgaugeExporterDown": Incident("gone", at="gone", codes={"curl": (7,), "lossgaugectl": (1,)}),
    "LossgaugeForwardingDown": Incident("kept", at="lonely"),
    "LossgaugeFrozen": Incident("frozen", "frozen"),
    "LossgaugeGradExplosion": Incident("unscaled", "grad_explosion"),
    "LossgaugeIngestRefusing": Incident("kept", at="strict"),
    "LossgaugeJoinIncomplete": Incident("cut_off", at="daemon"),
    "LossgaugeLevelShift": Incident("noise", "level_shift"),
    "LossgaugeLogitBlowup": Incident("spike", "logit_blowup"),
    "LossgaugeLossCollapse": Incident("padding", "loss_collapse"),
    "LossgaugeLossSpike": Incident("spike", "loss_spike"),
    "LossgaugeNoFirstStep": Incident("hanging", "no_first_step"),
    "LossgaugeNonfinite": Incident("nan", "nonfinite"),
    "LossgaugeNormalizerDrift": Incident("drift", "normalizer_drift"),
    "LossgaugeProducerLost": Incident("killed", "producer_lost"),
    "LossgaugeRankMissing": Incident("mute", "rank_missing"),
    "LossgaugeRankOutlier": Incident("shard", "rank_outlier"),
    "LossgaugeRecordsLost": Incident("fast", "records_lost"),
    "LossgaugeReductionMismatch": Incident("means", "accounting"),
    "LossgaugeRepeatedBatch": Incident("repeated", "repeated_batch"),
    "LossgaugeRingUnreadable": Incident("spike", codes={"lossgaugectl dump": (1,)}),
    "LossgaugeRunVanished": Incident("gone", at="gone", codes={"lossgaugectl runs": (1,)}),
    "LossgaugeRunsRefused": Incident("sweep-1130-1", at="small"),
    "LossgaugeSinkBehind": Incident("kept", at="strict"),
    "LossgaugeSinkDropping": Incident("kept", at="strict"),
    "LossgaugeSinkRefused": Incident("kept", at="lonely"),
    "LossgaugeSlowdown": Incident("slow", "slowdown"),
    "LossgaugeSpoolDropping": Incident("kept", at="lonely"),
    "LossgaugeStaleData": Incident("cut_off", at="daemon"),
    "LossgaugeStall": Incident("stopped", "stall"),
    "LossgaugeStateWriteErrors": Incident("full", at="full"),
    "LossgaugeVerdictHalt": Incident("halted", "nonfinite"),
    "LossgaugeVerdictRestart": Incident("divergence", "divergence"),
    "LossgaugeWatchdog": Incident("spike", codes={"curl": (0, 7)}),
}
COMMON = ("--steps=1000000", "--ranks=2", "--batch=16", "--z_loss=1e-4", "--step_ms=40", "--barrier_timeout_s=600")
# A ring of another major version, as an older library leaves it.
FOREIGN_RING = ROOT / "tests" / "fuzz" / "corpus" / "ring_attach" / "major_two"
FOREIGN_NAME = "0123456789abcdef-r0-0123456789abcdeffedcba9876543210.steps"


class Incidents:
    """`stack` is what makes them; `unmade` says why for those that this machine does not allow, by page."""

    def __init__(self):
        self.stack = Stack(more=("daemon", "full", "gone", "held", "lonely", "node", "small", "strict"))
        # Half an hour is the limit otherwise.
        policy = self.stack.dir / "policy.yaml"
        policy.write_text("runs:\n  hanging:\n    time: {first_step_seconds: 20}\n")
        self.stack.sidecar_flags = [f"--policy={policy}"]
        self.stack.__enter__()
        self.jobs = []
        self.unmade = {}

    def close(self):
        for job in self.jobs:
            if job.poll() is None:
                self.stack.end_session(job)
        self.stack.close()

    def train(self, run, *flags, at=""):
        self.jobs.append(self.stack.train(run, *COMMON, f"--ring_dir={self.lossgauged(at).ring_dir}", *flags, wait=False, start_new_session=True))
        return self.jobs[-1]

    def lossgauged(self, at):
        return self.stack.further[at] if at else self.stack.first

    def has(self, run, condition):
        return [one for one in self.stack.incidents(run) if one["condition"] == condition]

    def stop(self, *runs):
        """Freezes jobs that have shown what they are for, so that what they showed stays as it is and costs nothing."""
        for job in self.jobs:
            if job.poll() is None and any(f"--run={run}" in job.args for run in runs):
                os.killpg(job.pid, signal.SIGSTOP)

    def wait(self, run, condition, seconds=180):
        wait_for(f"{condition} of {run}", lambda: self.has(run, condition), seconds)

    def make(self):
        self.make_of_forwarding()
        self.make_of_lossgauged()
        self.make_of_runs()
        self.stack.query("up")  # Prometheus lives, who tells of all of it
        alertmanager = next(one for one in self.stack.processes if "alertmanager" in one.args[0])
        alertmanager.kill()
        wait_for("Prometheus knows that nobody takes its alerts",
                 lambda: " 0\n" not in "".join(line + "\n" for line in get(self.stack.prometheus + "/metrics").split("\n")
                                               if line.startswith("prometheus_notifications_errors_total")), 60)

    def make_of_forwarding(self):
        """A sidecar with a small spool, of whose two daemons one is not there and the other takes one run; neither has a receiver that takes its steps."""
        lonely, strict = self.stack.further["lonely"], self.stack.further["strict"]
        nobody = "127.0.0.1:9"
        self.stack.start(strict, "--max_runs=1", f"--remote_write_url=http://{nobody}/api/v1/write", "--sink_max_pending=1000", role="daemon")
        self.stack.start(lonely, f"--forward_to={nobody},{strict.grpc}", "--forward_spool_mebibytes=2", f"--remote_write_url={self.stack.prometheus}/api/v1/nowhere")
        for name in ("forward_connected", "ingest_refused_total", "sink_steps_dropped_total"):
            wait_for(f"the first scrape of {name}", lambda name=name: self.stack.query("lossgauge_" + name), 60)
        self.train("kept", "--step_ms=2", "--batch=2", "--length=8", at="lonely")
        wait_for("its one run on the daemon", lambda: self.stack.query('lossgauge_run_step{run="kept"}'), 60)
        self.train("refused", "--step_ms=200", at="lonely")
        for counter in ('forward_records_dropped_total{daemon="1"}', 'ingest_refused_total{cause="producer"}', 'sink_steps_dropped_total{reason="queue_full"}',
                        'sink_steps_dropped_total{reason="refused"}'):
            wait_for(counter, lambda counter=counter: self.stack.query(f"lossgauge_{counter} > 0"), 240)
        self.stop("kept", "refused")

    def make_of_lossgauged(self):
        further = self.stack.further
        self.stack.start(further["daemon"], role="daemon")
        self.stack.start(further["node"], f"--forward_to={further['daemon'].grpc}")
        self.stack.start(further["gone"])
        self.stack.start(further["held"])
        self.stack.start(further["small"], "--max_runs=2")
        slow = "--step_ms=200"
        for run, at in (("cut_off", "node"), ("gone", "gone"), ("held", "held"), ("sweep-1130-1", "small"), ("sweep-1130-2", "small")):
            self.train(run, slow, at=at)
        self.fill_a_disk()
        for run, at in (("gone", "gone"), ("held", "held"), ("cut_off", "daemon"), ("sweep-1130-2", "small")):
            port = self.lossgauged(at).http.rsplit(":", 1)[1]
            wait_for(f"{run} in Prometheus", lambda: self.stack.query(f'lossgauge_run_active{{run="{run}", instance=~".*:{port}"}}'), 60)
        # What counters tell is their rise between two scrapes.
        wait_for("the first scrape", lambda: self.stack.query(f'lossgauge_ring_errors_total{{instance="{self.stack.http.removeprefix("http://")}"}}'), 60)
        shutil.copy(FOREIGN_RING, self.stack.ring_dir / FOREIGN_NAME)
        self.train("sweep-1130-3", slow, at="small")
        further["gone"].process.kill()
        further["node"].process.kill()
        self.hold_a_drain()

    def fill_a_disk(self):
        """A file system of 1 MiB under the state, in a mount namespace of its own."""
        if subprocess.run(["unshare", "-rm", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True).returncode != 0:
            self.unmade["LossgaugeStateWriteErrors"] = "no mount namespace of our own here, so no small file system"
            return
        full = self.stack.further["full"]
        full.state_dir.mkdir()
        self.stack.start(full, prefix=["unshare", "-rm", "sh", "-c", 'mount -t tmpfs -o size=1m none "$0" && exec "$@"', full.state_dir])
        self.train("full", "--step_ms=10", at="full")

    def hold_a_drain(self):
        """A disk that does not answer: each write that the lossgauged begins is held by strace."""
        writes = "pwrite64,fdatasync,fsync"
        held = self.stack.further["held"]
        tracer = self.stack.spawn("strace", ["strace", "-f", "-qq", "-o", "/dev/null", "-p", held.process.pid, "-e", f"trace={writes}",
                                             "-e", f"inject={writes}:delay_enter=4000s"])
        port = held.http.rsplit(":", 1)[1]
        cycles = lambda: [line for line in get(held.http + "/metrics").split("\n") if line.startswith("lossgauge_drain_cycles_total")]  # noqa: E731
        for _ in range(20):
            before = cycles()
            time.sleep(1)
            if cycles() == before:
                return
            if tracer.poll() is not None:
                self.unmade["LossgaugeDrainStuck"] = "strace may not watch other processes here"
                return
        raise AssertionError(f"the drain of the lossgauged on port {port} goes on")

    def make_of_runs(self):
        checkpoints = self.stack.dir / "checkpoints"
        checkpoints.mkdir()
        # What takes longest, first.
        self.train("noise", "--ranks=1", "--fault=noise", "--fault_step=500")
        self.train("stopped", "--fault=stop_rank", "--fault_rank=1", "--fault_step=60")
        self.train("hanging", "--fault=stop_rank", "--fault_rank=1", "--fault_step=0")
        self.train("drift", "--ranks=1", "--step_ms=20", "--z_loss=1e-3", "--fault=z_loss_sign", "--fault_step=200")
        self.train("twice", "--attempt=first")
        self.train("twice", "--attempt=second")
        self.train("killed", "--fault=kill", "--fault_rank=1", "--fault_step=60")
        self.train("frozen", "--fault=freeze", "--fault_rank=1", "--fault_step=60")
        first = self.train("halted", "--attempt=first", "--fault=nan", "--fault_step=150")
        self.train("slow", "--fault=slow_rank", "--fault_rank=1", "--fault_step=60")
        self.train("mute", "--fault=mute", "--fault_rank=1", "--fault_step=60")
        self.train("shard", "--fault=bad_shard", "--fault_rank=1", "--ranks=4", "--fault_step=60")
        self.train("nan", "--fault=nan", "--fault_step=150")
        self.train("repeated", "--fault=repeat_batch", "--fault_step=150", "--fault_steps=100000")
        self.train("means", "--fault=mean_of_means", "--micro_batches=2", "--batch=128", "--fault_step=50")
        wait_for("the first RESTART", lambda: self.stack.verdict("halted")["action"] == "RESTART", 120)
        self.stack.end_session(first)
        self.train("halted", "--attempt=second", "--fault=nan", "--fault_step=150")
        for run, condition in (("killed", "producer_lost"), ("frozen", "frozen"), ("nan", "nonfinite"), ("means", "accounting"), ("repeated", "repeated_batch"), ("twice", "attempt_conflict"),
                               ("slow", "slowdown"), ("mute", "rank_missing"), ("shard", "rank_outlier")):
            self.wait(run, condition, 120)
        wait_for("HALT", lambda: self.stack.verdict("halted")["action"] == "HALT", 120)
        self.stop("nan", "means", "repeated", "twice", "halted", "slow", "mute", "shard")
        self.train("spike", "--fault=spike", "--fault_step=200")
        self.train("divergence", "--fault=divergence", "--fault_step=200", f"--checkpoint_dir={checkpoints}", "--checkpoint_every=50")
        self.train("blip", "--seed=7", "--fault=blip", "--fault_step=200")
        self.train("padding", "--fault=padding", "--fault_step=200")
        self.train("unscaled", "--fault=unscaled", "--fault_step=200")
        self.wait("drift", "normalizer_drift")
        self.stop("drift")
        self.wait("unscaled", "grad_explosion")
        self.stop("unscaled")
        for run, condition in (("blip", "blip"), ("padding", "loss_collapse"), ("noise", "level_shift"), ("hanging", "no_first_step")):
            self.wait(run, condition)
        self.wait("spike", "loss_spike", 120)
        wait_for("the divergence", lambda: self.stack.verdict("divergence")["action"] == "RESTART", 180)
        self.wait("stopped", "stall", 240)
        # Last, since lossgauged itself is stopped: one run overruns its ring meanwhile.
        self.train("fast", "--step_ms=0", "--ranks=1", "--batch=1", "--length=8")
        wait_for("steps of the fast run", lambda: self.stack.api("steps", run="fast", tail=1).get("steps"), 60)
        self.stack.sidecar.send_signal(signal.SIGSTOP)
        time.sleep(10)
        self.stack.sidecar.send_signal(signal.SIGCONT)
        self.wait("fast", "records_lost", 60)
