#!/usr/bin/python3
"""A real daemon under a simulated fleet of sidecars.

    fleet.py BIN_DIR --check                small, with every kind of fault: each is named with its rank, nothing else is, totals are exact
    fleet.py BIN_DIR --kill=N [--records=R] the daemon is killed and started again N times while R records come: totals exact, verdict never too good
    fleet.py BIN_DIR --measure [--seconds=600] [--ranks=256,1024,4096,16384] [--rate=1]
                                            the daemon's CPU, memory, join lag and verdict time at 1 step/s, one line of a table for each number of ranks

The fleet runs beside the daemon: what is measured is the daemon's process alone, but on a machine that both share. While measuring, the fleet is nicer than
the daemon by 10, as it stands for other machines, and the verdict is asked for by a process of its own (asker.cc). Exit code 0 says that every step and
sum was right, too.
"""
import argparse
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

TICKS = os.sysconf("SC_CLK_TCK")


class Daemon:
    def __init__(self, binaries, work, *flags):
        self.command = [binaries / "lossgauged", "daemon", f"--state_dir={work / 'state'}", "--http_listen=127.0.0.1:0",
                        "--max_streams_per_client=0", *flags]  # the whole fleet comes from one address
        self.log = work / "lossgauged.log"
        self.grpc_listen, self.http_listen = "127.0.0.1:0", None
        self.state = work / "state"
        self.process = None

    def start(self):
        begin = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("a") as log:
            self.process = subprocess.Popen([*self.command, f"--grpc_listen={self.grpc_listen}"], stderr=log)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            found = [re.search(rf"{what} on (\S+:\d+)", self.log.read_text()[begin:]) for what in ("gRPC", "HTTP")]
            if all(found):
                self.grpc_listen, self.http_listen = (one[1] for one in found)  # gRPC's the same again after a restart
                return self
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        raise SystemExit(f"fleet.py: lossgauged did not start:\n{self.log.read_text()[begin:]}")

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self):
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait()

    def cpu_seconds(self):
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def stored(self):
        return sum(path.stat().st_size for path in self.state.rglob("*") if path.is_file()) / (1 << 20)

    def memory(self, name):
        return int(re.search(rf"{name}:\s+(\d+) kB", pathlib.Path(f"/proc/{self.process.pid}/status").read_text())[1]) / 1024


def fleet(binaries, daemon, *flags, prefix=()):
    return subprocess.Popen([*prefix, binaries / "fleet", f"--daemon={daemon.grpc_listen}", *flags], stdout=subprocess.PIPE, text=True)


def say(what):
    print(f"fleet.py: {what}", file=sys.stderr, flush=True)


def finish(process):
    text = process.stdout.read()
    code = process.wait()
    print(text, end="")
    if code != 0:
        raise SystemExit(f"fleet.py: fleet ended with {code}")
    return json.loads(text)


def check(binaries, work):
    daemon = Daemon(binaries, work).start()
    try:
        result = finish(fleet(binaries, daemon))
        if result["connections"] <= result["nodes"]:
            raise SystemExit("fleet.py: no connection was dropped: the faults were not played")
    finally:
        daemon.stop()


def kill(binaries, work, times, records):
    ranks, rate = 256, 100
    steps = max(records // ranks, 60)
    daemon = Daemon(binaries, work).start()
    process = fleet(binaries, daemon, f"--ranks={ranks}", f"--steps={steps}", f"--rate={rate}", "--faults=none", "--allow=rank_missing")
    chance = random.Random(1)
    try:
        pause = steps / rate / (times + 1)
        for number in range(times):
            time.sleep(pause * chance.uniform(0.5, 1))
            if process.poll() is not None:
                raise SystemExit(f"fleet.py: the fleet ended after {number} of {times} kills")
            say(f"killing the daemon, {number + 1} of {times}")
            daemon.kill()
            time.sleep(chance.uniform(0, 0.5))
            daemon.start()
        result = finish(process)
        print(f"killed {times} times: {result['records']} records, every step and sum right, at most {result['most_unacknowledged']} batches held by a sidecar")
    finally:
        process.kill()
        daemon.stop()


def measure(binaries, work, seconds, counts, rate):
    print("| ranks | sidecars | CPU, share of a core | RSS, MiB: begin, end, peak | state, MiB | join lag p50 / p99 | GetVerdict p50 / p99 | HTTP verdict p50 / p99 | MB/s "
          "| wrong steps and sums |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |", flush=True)
    warm_up, rest = 20, 5
    for ranks in counts:
        place = work / str(ranks)
        place.mkdir()
        daemon = Daemon(binaries, place).start()
        nodes = max(8, ranks // 32)
        process = fleet(binaries, daemon, f"--ranks={ranks}", f"--nodes={nodes}", "--tensor_parallel=8", f"--steps={int((seconds + warm_up + rest) * rate)}",
                        f"--rate={rate}", "--faults=none", prefix=("nice", "-n", "10"))
        try:
            time.sleep(warm_up)
            begin, cpu, memory = time.monotonic(), daemon.cpu_seconds(), daemon.memory("VmRSS")
            asker = subprocess.Popen([binaries / "asker", f"--grpc={daemon.grpc_listen}", f"--http={daemon.http_listen}", f"--seconds={seconds}"],
                                     stdout=subprocess.PIPE, text=True)
            while asker.poll() is None:
                time.sleep(min(30, max(0.5, begin + seconds - time.monotonic())))
                share = (daemon.cpu_seconds() - cpu) / (time.monotonic() - begin)
                say(f"{ranks} ranks, {time.monotonic() - begin:.0f} s: {100 * share:.1f} % of a core, {daemon.memory('VmRSS'):.0f} MiB, {daemon.stored():.0f} MiB of state")
            answers = json.loads(asker.stdout.read())
            rss, peak, stored = daemon.memory("VmRSS"), daemon.memory("VmHWM"), daemon.stored()
            result = json.loads(process.stdout.read())
            code = process.wait()

            def of(values, digits):
                return f"{1e3 * values['p50']:.{digits}f} / {1e3 * values['p99']:.{digits}f} ms"

            print(f"| {ranks} | {nodes} | {100 * share:.1f} % | {memory:.0f}, {rss:.0f}, {peak:.0f} | {stored:.0f} | {of(result['join_lag_s'], 0)} "
                  f"| {of(answers['grpc_s'], 2)} | {of(answers['http_s'], 2)} | {result['megabytes'] * rate / result['steps']:.2f} "
                  f"| {result['differences']} |", flush=True)
            print(json.dumps({**result, **answers}), file=sys.stderr, flush=True)
            if result["fleet_late_s"] > 1:
                raise SystemExit(f"fleet.py: the fleet itself fell behind by {result['fleet_late_s']} s: the machine was too busy with other work, measure again")
            if code != 0:
                raise SystemExit(f"fleet.py: fleet ended with {code}")
            if answers["grpc_s"]["failed"] + answers["http_s"]["failed"] > 0:
                raise SystemExit("fleet.py: questions for the verdict had no answer")
        finally:
            process.kill()
            daemon.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin_dir", type=pathlib.Path)
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--check", action="store_true")
    mode.add_argument("--kill", type=int, metavar="N")
    mode.add_argument("--measure", action="store_true")
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--ranks", default="256,1024,4096,16384")
    parser.add_argument("--rate", type=float, default=1, help="steps a second while measuring")
    options = parser.parse_args()
    work = pathlib.Path(tempfile.mkdtemp(prefix="lossgauge-fleet-"))
    try:
        if options.check:
            check(options.bin_dir, work)
        elif options.kill:
            kill(options.bin_dir, work, options.kill, options.records)
        else:
            measure(options.bin_dir, work, options.seconds, [int(count) for count in options.ranks.split(",")], options.rate)
    except BaseException:
        for log in work.rglob("lossgauged.log"):
            print(log.read_text()[-4000:], file=sys.stderr)
        raise
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
