#!/usr/bin/env python3
"""The step of an 8B model's loss head, tensor-parallel over this machine's GPUs at full size, while a sidecar, Prometheus and Alertmanager watch.

    tests/device/pipeline_8b.py DIR OUT

For 1, 2, 4, ... ranks, as many as there are GPUs: what a step takes with and without telemetry, in turn, its parts and memory, and its loss and gradients
against one device. Where there are several GPUs but fewer than four, four ranks share them, for results and memory. Then each fault between the ranks, which the
sidecar must name, and one at full size, which must reach Alertmanager. Ends with "N wrong" and exit status 1 if something was.

DIR/bin holds pipeline_8b and pipeline_8b_with_faults (of a CUDA build), lossgauged and lossgaugectl; prometheus and prometheus-alertmanager are on PATH.
OUT gets report.md, what Prometheus and the pages said, and state.tar: `lossgauged sidecar --state_dir` on it shows these runs again.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "end_to_end"))
import pipeline_faults  # noqa: E402
from stack import Stack, get, wait_for  # noqa: E402

ROUNDS, STEPS = 3, 12
# A fault's run: the work of a step matters less than how many there are.
SMALL = ["--length=256", "--width=512", "--vocab_size=8192", "--chunk_rows=512", "--steps=40", "--step_ms=25", "--check=false"]
FAULT_STEP, FAULT_RANK = 20, 1


class Machine:
    def __init__(self, out):
        self.out = out
        self.report = open(out / "report.md", "w")
        self.wrong = []
        listed = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], capture_output=True, text=True, check=True)
        self.gpus = len(listed.stdout.splitlines())
        self.say(f"machine: {self.gpus} x {listed.stdout.splitlines()[0]}\n")

    def say(self, line):
        print(line, flush=True)
        print(line, file=self.report, flush=True)

    def expect(self, what, wrong):
        for sentence in wrong:
            self.wrong.append(f"{what}: {sentence}")
            self.say(f"WRONG {what}: {sentence}")


def run_job(stack, run, *flags, binary="pipeline_8b", timeout=240):
    job = subprocess.run([str(stack.bin / binary), "--cuda", f"--run={run}", f"--ring_dir={stack.ring_dir}", *flags], capture_output=True, text=True, timeout=timeout)
    if job.returncode != 0:
        print(job.stdout[-2000:], job.stderr[-4000:], flush=True)
    return job


def rows_of(output):
    """Numbers of each rank's row in the table that pipeline_8b prints."""
    return [[float(x) for x in row.strip("| ").split("|")] for row in re.findall(r"^\| \d+ \|.*$", output, re.M)]


def check_against_one_device(machine, what, output):
    found = re.search(r"relative: loss (\S+), grad_hidden (\S+), grad_weight (\S+)", output)
    loss, hidden, weight = (float(x) for x in found.groups()) if found else (float("nan"),) * 3
    # grad_hidden: each rank rounds its part to bf16. grad_weight: after some calls another algorithm may form the products, whose logits round otherwise to bf16.
    for name, value, limit in (("loss", loss, 1e-6), ("grad_hidden", hidden, 5e-3), ("grad_weight", weight, 1e-4)):
        if not value <= limit:
            machine.expect(what, [f"{name} differs from one device's by {value}, relative, {limit} at most"])
    return f"{loss:.1e}, {hidden:.1e}, {weight:.1e}"


def healthy(machine, stack, run, steps):
    pipeline_faults.wait_for_end(stack, run)
    machine.expect(run, [f"incident {i['condition']}/{i['kind']}" for i in stack.incidents(run) if i["severity"] != "INFO"])
    last = int(stack.api("steps", run=run, tail=1)["steps"][0]["step"])
    if last != steps - 1:
        machine.expect(run, [f"the last step seen is {last}, not {steps - 1}"])


def median(values):
    return sorted(values)[len(values) // 2]


def time_steps(machine, stack, ranks_of):
    machine.say("| ranks | step, ms | without telemetry | cost of telemetry | efficiency | logits and loss | gradients | bare exchanges | tensors, GB | "
                "workspace, of it logits | taken of the device | loss, grad_hidden, grad_weight against one device |")
    machine.say("|" + " --- |" * 12)
    one = None
    for ranks in ranks_of:
        with_gauge, without = [], []
        for turn in range(ROUNDS):
            run = f"8b-{ranks}-{turn}"
            job = run_job(stack, run, f"--ranks={ranks}", f"--steps={STEPS}", f"--check={'true' if turn == 0 else 'false'}")
            bare = run_job(stack, run + "-bare", f"--ranks={ranks}", f"--steps={STEPS}", "--check=false", "--no_telemetry")
            if job.returncode != 0 or bare.returncode != 0:
                machine.expect(run, [f"exit status {job.returncode}, without telemetry {bare.returncode}"])
                return
            if turn == 0:
                differences = check_against_one_device(machine, run, job.stdout)
                rows = rows_of(job.stdout)
            with_gauge.append(max(row[1] for row in rows_of(job.stdout)))
            without.append(max(row[1] for row in rows_of(bare.stdout)))
            healthy(machine, stack, run, STEPS)
        step, worst = median(with_gauge), [max(column) for column in zip(*rows)]
        one = one or step
        machine.say(f"| {ranks} | {step:.1f} ({min(with_gauge):.1f} to {max(with_gauge):.1f}) | {median(without):.1f} ({min(without):.1f} to {max(without):.1f}) | "
                    f"{100 * (step / median(without) - 1):+.1f} % | {one / step / ranks:.3f} | {worst[2]:.1f} | {worst[3]:.1f} | {worst[4]:.2f} | {worst[7] / 1e3:.2f} | "
                    f"{worst[8] / 1e3:.3f}, {worst[9] / 1e3:.3f} | {worst[10] / 1e3:.2f} | {differences} |")
        whole_logits_mb = 65536 * 128256 * 4 / 1e6
        if worst[9] * 8 > whole_logits_mb / ranks:
            machine.expect(f"8b-{ranks}", [f"a rank holds {worst[9]} MB of logits"])


def share(machine, stack, ranks):
    run = f"8b-{ranks}-shared"
    job = run_job(stack, run, f"--ranks={ranks}", "--share_gpus", "--steps=3")
    if job.returncode != 0:
        machine.expect(run, [f"exit status {job.returncode}"])
        return
    worst = [max(column) for column in zip(*rows_of(job.stdout))]
    machine.say(f"\n{ranks} ranks on {machine.gpus} GPUs, full size: loss, grad_hidden, grad_weight against one device {check_against_one_device(machine, run, job.stdout)}; "
                f"a rank's tensors {worst[7] / 1e3:.2f} GB, workspace {worst[8] / 1e3:.3f} GB, of it logits {worst[9] / 1e3:.3f} GB; taken of a GPU by the ranks on it "
                f"{worst[10] / 1e3:.2f} GB")
    healthy(machine, stack, run, 3)


def faults(machine, stack, ranks, *flags):
    machine.say(f"\n{ranks} ranks{' that share GPUs' if flags else ''}, {' '.join(SMALL)}, the fault on rank {FAULT_RANK} from step {FAULT_STEP} on:\n")
    machine.say("| fault | incidents, with their first steps and ranks | verdicts on the way |")
    machine.say("| --- | --- | --- |")

    def tell(run, name):
        def said(i):
            blamed = f", rank {i['rank']}" if "rank" in i else ""
            return f"{i['condition']}/{i['kind']} at {i['onsetStep']}{blamed}"
        seen = [said(i) for i in stack.incidents(run) if i["severity"] != "INFO"]
        verdicts = [v["action"] for v in stack.api("verdicts", run=run)["verdicts"]]
        machine.say(f"| {name} | {'; '.join(sorted(seen))} | {', '.join(dict.fromkeys(verdicts))} |")

    def spoil(name, step):
        run = f"{name}-{ranks}"
        job = run_job(stack, run, *SMALL, f"--ranks={ranks}", f"--fault={name}", f"--fault_step={step}", f"--fault_rank={FAULT_RANK}", *flags,
                      binary="pipeline_8b_with_faults")
        return run, job, pipeline_faults.losses(job.stdout)

    for fault in pipeline_faults.SEEN_BY_SUMS:
        run, job, seen = spoil(fault.name, fault.begins(FAULT_STEP))
        if job.returncode != 0:
            machine.expect(run, [f"exit status {job.returncode}"])
            continue
        pipeline_faults.wait_for_end(stack, run)
        machine.expect(run, pipeline_faults.wrong_by_sums(stack, run, fault, seen, ranks, FAULT_STEP, FAULT_RANK))
        tell(run, fault.name)
    for name in pipeline_faults.SEEN_BY_LOSS:
        run, job, seen = spoil(name, FAULT_STEP)
        pipeline_faults.wait_for_end(stack, run)
        machine.expect(run, pipeline_faults.wrong_by_loss(stack, run, seen, FAULT_STEP))
        tell(run, name)
    # Columns beyond the vocabulary: the rank's own call is refused, which ends the job. Those of another rank: the exchange names who sent them.
    run, job, seen = spoil("wrong_offset", FAULT_STEP)
    refused = job.returncode == 1 and f"rank {FAULT_RANK}" in job.stderr and "shard_offset" in job.stderr and len(seen) == FAULT_STEP
    named = [i for i in pipeline_faults.integrity(stack, run) if i["kind"] == "exchange" and i.get("rank") == FAULT_RANK and int(i["onsetStep"]) == FAULT_STEP]
    if not refused and not named:
        machine.expect(run, [f"exit status {job.returncode}, {len(seen)} steps, {job.stderr[-500:]}, {stack.incidents(run)}"])
    wait_for("the job's end to be seen", lambda: stack.incidents(run) or stack.api("run", run=run).get("ended"), 30)
    tell(run, "wrong_offset")


def watched(machine, stack, ranks):
    """At full size: a healthy run, then one whose exchange loses a bit, from the GPUs to the delivered alert."""
    steps, fault_step = 60, 40
    job = run_job(stack, "8b-watched", f"--ranks={ranks}", f"--steps={steps}", "--check=false")
    machine.expect("8b-watched", [] if job.returncode == 0 else [f"exit status {job.returncode}"])
    healthy(machine, stack, "8b-watched", steps)
    run = "8b-bit-flip"
    flags = [str(stack.bin / "pipeline_8b_with_faults"), "--cuda", f"--run={run}", f"--ring_dir={stack.ring_dir}", f"--ranks={ranks}", f"--steps={steps}", "--step_ms=500",
             "--check=false", "--fault=bit_flip", f"--fault_step={fault_step}", f"--fault_rank={FAULT_RANK}"]
    process = stack.spawn("job-" + run, flags)
    try:
        verdict = wait_for("HALT", lambda: (v := stack.verdict(run)) and v["action"] == "HALT" and v, 90)
        machine.say(f"\n{run}, full size, fault at step {fault_step} on rank {FAULT_RANK}: {verdict['action']}: {verdict['reason']}")
        fired = wait_for("the alert at the webhook", lambda: stack.webhook.fired(run), 60)
        machine.say(f"alerts delivered: {', '.join(sorted(fired))}; for the healthy run: {sorted(stack.webhook.fired('8b-watched'))}")
        if not fired <= {"LossgaugeReductionMismatch", "LossgaugeVerdictHalt"} or stack.webhook.fired("8b-watched"):
            machine.expect(run, [f"alerts {fired}, of the healthy run {stack.webhook.fired('8b-watched')}"])
        said = {query: stack.query(query) for query in (
            f'lossgauge_verdict{{run="{run}"}}', f'lossgauge_verdict_reason{{run="{run}"}}', f'lossgauge_run_loss_nats{{run=~"8b-.*"}}', f'lossgauge_run_step{{run=~"8b-.*"}}',
            f'lossgauge_run_log_z_nats{{run=~"8b-.*"}}', f'lossgauge_run_max_abs_logit{{run=~"8b-.*"}}', f'lossgauge_run_step_unmasked_tokens{{run=~"8b-.*"}}',
            'max_over_time(lossgauge_run_loss_nats{run="8b-watched"}[10m])', 'min_over_time(lossgauge_run_loss_nats{run="8b-watched"}[10m])', 'max_over_time(lossgauge_run_step{run="8b-watched"}[10m])')}
        (machine.out / "prometheus.json").write_text(json.dumps(said, indent=1))
        if not said['max_over_time(lossgauge_run_step{run="8b-watched"}[10m])']:
            machine.expect(run, ["Prometheus has no steps of the healthy run"])
        (machine.out / "metrics.txt").write_text(get(stack.http + "/metrics"))
        (machine.out / "plain.html").write_text(get(stack.http + "/plain"))
        (machine.out / "explain.txt").write_text(stack.ctl("explain", run).stdout)
    finally:
        process.wait(timeout=60)


def keep_state(machine, stack):
    stack.sidecar.terminate()
    stack.sidecar.wait(timeout=20)
    with tarfile.open(machine.out / "state.tar", "w") as tar:
        tar.add(stack.state_dir, "state")


def main():
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    out = pathlib.Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    machine = Machine(out)
    counts = [n for n in (1, 2, 4, 8) if n <= machine.gpus]
    # A GPU can map memory of a memory file system only.
    with tempfile.TemporaryDirectory(dir="/dev/shm") as rings, Stack(build=sys.argv[1], rings=pathlib.Path(rings)) as stack:
        time_steps(machine, stack, counts)
        if machine.gpus < 4:
            share(machine, stack, 4)
            faults(machine, stack, 4, "--share_gpus")
        if machine.gpus > 1:
            faults(machine, stack, counts[-1])
            watched(machine, stack, counts[-1])
        keep_state(machine, stack)
    machine.say(f"\n{len(machine.wrong)} wrong")
    return 1 if machine.wrong else 0


if __name__ == "__main__":
    os.environ["LC_ALL"] = "C"
    sys.exit(main())
