#!/usr/bin/python3
"""A real daemon under a simulated fleet of sidecars.

    fleet.py BIN_DIR --check                small, with every kind of fault: each is named with its rank, nothing else is, totals are exact
    fleet.py BIN_DIR --kill=N [--records=R] the daemon is killed and started again N times while R records come: totals exact, verdict never too good
    fleet.py BIN_DIR --measure [--seconds=600] [--ranks=256,1024,4096,16384]
                                            the daemon's CPU, memory, join lag and verdict time at 1 step/s, one line of a table for each number of ranks

The fleet runs beside the daemon: what is measured is the daemon's process alone, but on a machine that both share.
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
        self.grpc_listen = "127.0.0.1:0"
        self.process = None

    def start(self):
        begin = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("a") as log:
            self.process = subprocess.Popen([*self.command, f"--grpc_listen={self.grpc_listen}"], stderr=log)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            found = re.search(r"gRPC on (\S+:\d+)", self.log.read_text()[begin:])
            if found:
                self.grpc_listen = found[1]  # the same again after a restart
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

    def memory(self, name):
        return int(re.search(rf"{name}:\s+(\d+) kB", pathlib.Path(f"/proc/{self.process.pid}/status").read_text())[1]) / 1024


def fleet(binaries, daemon, *flags):
    return subprocess.Popen([binaries / "fleet", f"--daemon={daemon.grpc_listen}", *flags], stdout=subprocess.PIPE, text=True)


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
            daemon.kill()
            time.sleep(chance.uniform(0, 0.5))
            daemon.start()
        result = finish(process)
        print(f"killed {times} times: {result['records']} records, every step and sum right, at most {result['most_unacknowledged']} batches held by a sidecar")
    finally:
        process.kill()
        daemon.stop()


def measure(binaries, work, seconds, counts):
    print("| ranks | sidecars | CPU, share of a core | RSS, MiB | join lag p50 / p99 | GetVerdict p50 / p99 | MB/s |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for ranks in counts:
        place = work / str(ranks)
        place.mkdir()
        daemon = Daemon(binaries, place).start()
        nodes = max(8, ranks // 32)
        warm_up = 20
        process = fleet(binaries, daemon, f"--ranks={ranks}", f"--nodes={nodes}", "--tensor_parallel=8", f"--steps={seconds + warm_up}", "--rate=1",
                        "--faults=none")
        try:
            time.sleep(warm_up)
            begin, cpu = time.monotonic(), daemon.cpu_seconds()
            time.sleep(max(1, seconds - 5))
            share = (daemon.cpu_seconds() - cpu) / (time.monotonic() - begin)
            rss, peak = daemon.memory("VmRSS"), daemon.memory("VmHWM")
            result = json.loads(process.stdout.read())
            code = process.wait()
            lag, verdict = result["join_lag_s"], result["verdict_s"]
            print(f"| {ranks} | {nodes} | {100 * share:.1f} % | {rss:.0f} (peak {peak:.0f}) | {1e3 * lag['p50']:.0f} / {1e3 * lag['p99']:.0f} ms "
                  f"| {1e3 * verdict['p50']:.2f} / {1e3 * verdict['p99']:.2f} ms | {result['megabytes'] / (seconds + warm_up):.2f} |", flush=True)
            print(json.dumps(result), file=sys.stderr)
            if code != 0:
                raise SystemExit(f"fleet.py: fleet ended with {code}")
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
    options = parser.parse_args()
    work = pathlib.Path(tempfile.mkdtemp(prefix="lossgauge-fleet-"))
    try:
        if options.check:
            check(options.bin_dir, work)
        elif options.kill:
            kill(options.bin_dir, work, options.kill, options.records)
        else:
            measure(options.bin_dir, work, options.seconds, [int(count) for count in options.ranks.split(",")])
    except BaseException:
        for log in work.rglob("lossgauged.log"):
            print(log.read_text()[-4000:], file=sys.stderr)
        raise
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
