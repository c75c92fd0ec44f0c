"""Two nodes, a daemon, and all that may happen between them: kills, partitions, delay, loss, a slow way, a spool that overflows.

    forward_faults_test.py BIN_DIR [--long] [--kills=N] [--records=R]

--long: the daemon is killed 50 times during 1e7 records, about ten minutes; --kills and --records: another number of them. Then only that test runs, and
says how far it is.
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
import threading
import time
import unittest
import urllib.request

from relay import Relay

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("bin_dir", type=pathlib.Path)
parser.add_argument("--long", action="store_true")
parser.add_argument("--kills", type=int)
parser.add_argument("--records", type=int)
OPTIONS, REST = parser.parse_known_args()  # the rest is unittest's
BIN = OPTIONS.bin_dir.resolve()
LONG = OPTIONS.long or OPTIONS.kills is not None or OPTIONS.records is not None
# Many ranks at a moderate rate where many records are wanted: a ring holds some hundred steps, and a sidecar that gets no CPU for so long loses records
# before anybody could forward them.
RANKS_PER_NODE = 32 if LONG else 4
NODES = 2
WORLD = RANKS_PER_NODE * NODES
# So that a verdict is not good for a minute after the last word.
POLICY = "time: {fresh_seconds: 5, presence_seconds: 5}\n"


def wait_until(condition, seconds=120):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    return condition()


class Observer:
    """A lossgauged process whose addresses stay the same over restarts."""

    def __init__(self, work, name, role, *flags, prefix=()):
        self.prefix = prefix
        self.place = work / name
        self.place.mkdir()
        self.role, self.flags = role, flags
        self.log = self.place / "log"
        self.state = self.place / "state"
        (self.place / "policy.yaml").write_text(POLICY)
        self.listen = {"grpc": "127.0.0.1:0", "http": "127.0.0.1:0"}
        self.process = None

    def start(self):
        begin = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("a") as log:
            self.process = subprocess.Popen([*self.prefix, BIN / "lossgauged", self.role, f"--state_dir={self.state}", f"--policy={self.place / 'policy.yaml'}",
                                             *(f"--{name}_listen={address}" for name, address in self.listen.items()), *self.flags], stderr=log)

        def addresses():
            text = self.log.read_text()[begin:]
            return [re.search(rf"{what} on ([\d.]+:\d+)", text) for what in ("gRPC", "HTTP")]

        wait_until(lambda: all(addresses()) or self.process.poll() is not None)
        if not all(addresses()):
            raise AssertionError(f"{self.role} did not start: {self.log.read_text()[begin:]}")
        self.listen = dict(zip(("grpc", "http"), (found[1] for found in addresses())))
        return self

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self):
        if self.process and self.process.poll() is None:
            self.process.terminate()
            self.process.wait()

    def get(self, path):
        """None where there is no answer."""
        try:
            with urllib.request.urlopen(f"http://{self.listen['http']}/api/v1/{path}", timeout=10) as answer:
                return json.load(answer)
        except OSError:
            return None

    def metrics(self):
        with urllib.request.urlopen(f"http://{self.listen['http']}/metrics", timeout=10) as answer:
            return answer.read().decode()

    def spool_bytes(self):
        return sum(path.stat().st_size for path in (self.state / "forward").rglob("*") if path.is_file())


class Verdicts(threading.Thread):
    """Asks again and again, and keeps what was said when."""

    def __init__(self, observer, run):
        super().__init__(daemon=True)
        self.observer, self.run_name, self.said, self.going = observer, run, [], True
        self.start()

    def run(self):
        while self.going:
            answer = self.observer.get(f"verdict?run={self.run_name}")
            self.said.append((time.monotonic(), answer["action"] if answer else "none", answer["reason"] if answer else ""))
            time.sleep(0.05)

    def between(self, begin, end):
        return [one for one in self.said if begin <= one[0] <= end]

    def stop(self):
        self.going = False
        self.join()


class ForwardFaults(unittest.TestCase):
    def setUp(self):
        self.work = pathlib.Path(tempfile.mkdtemp(prefix="lossgauge-forward-"))
        self.addCleanup(shutil.rmtree, self.work)
        self.chance = random.Random(1)
        self.jobs, self.sidecars = [], []

    def begin(self, *sidecar_flags):
        self.daemon = Observer(self.work, "daemon", "daemon").start()
        self.addCleanup(self.daemon.stop)
        self.relays = []
        for node in range(NODES):
            relay = Relay(self.daemon.listen["grpc"])
            relay.__enter__()
            self.addCleanup(relay.__exit__, None, None, None)
            self.relays.append(relay)
            rings = self.work / f"rings{node}"
            rings.mkdir(mode=0o750)
            sidecar = Observer(self.work, f"sidecar{node}", "sidecar", f"--ring_dir={rings}", f"--forward_to={relay.address}", *sidecar_flags).start()
            self.addCleanup(sidecar.stop)
            self.sidecars.append(sidecar)

    def job(self, steps, rate, close=True):
        self.steps = steps
        for node in range(NODES):
            process = subprocess.Popen([BIN / "fake_job", f"--ring_dir={self.work / f'rings{node}'}", f"--ranks={RANKS_PER_NODE}",
                                        f"--first_rank={node * RANKS_PER_NODE}", f"--world_size={WORLD}", f"--steps={steps}", f"--rate={rate}",
                                        f"--close={int(close)}"])
            self.addCleanup(lambda process=process: (process.kill(), process.wait()))
            self.jobs.append(process)

    def await_job(self):
        for job in self.jobs:
            self.assertEqual(job.wait(), 0)

    def run_message(self):
        return self.daemon.get("run?run=fake")

    def assert_totals_become_exact(self, lost=0):
        tokens = self.steps * sum(100 + rank for rank in range(WORLD))
        # The fake job's loss: 2 + 1 / (1 + step).
        nll = sum((2 + 1 / (1 + step)) for step in range(self.steps)) * sum(100 + rank for rank in range(WORLD))

        def right():
            run = self.run_message()
            return run and int(run["totals"]["unmaskedTokens"]) == tokens and run["ended"]

        wait_until(right, 900 if LONG else 120)
        totals = self.run_message()["totals"]
        self.assertEqual(int(totals["unmaskedTokens"]), tokens)
        self.assertAlmostEqual(totals["nllNats"] / nll, 1, delta=1e-9)
        if lost is not None:
            self.assertEqual(int(totals["recordsLost"]), lost)
            self.assertEqual(int(totals["steps"]), self.steps * WORLD)

    def assert_cut_off_is_never_continue(self, cut, heal):
        self.assertTrue(wait_until(lambda: (self.daemon.get("verdict?run=fake") or {}).get("action") == "CONTINUE"))
        verdicts = Verdicts(self.daemon, "fake")
        cut()
        noticed = wait_until(lambda: next((at for at, action, _ in reversed(verdicts.said) if action in ("WATCH", "UNKNOWN")), None), 90)
        self.assertTrue(noticed, "nobody noticed")
        time.sleep(5)
        healed = time.monotonic()
        heal()
        during = verdicts.between(noticed, healed)
        self.assertGreater(len(during), 5)
        self.assertEqual({action for _, action, _ in during} - {"WATCH", "UNKNOWN"}, set(), during)
        self.await_job()
        verdicts.stop()
        self.assert_totals_become_exact()


class Namespace:
    """A host of its own: one link to this one, which can go down, be slow, or lose packets."""

    def __init__(self, number):
        self.name, self.near, self.far = f"lossgauge{os.getpid()}-{number}", f"lg{os.getpid() % 100000}n{number}", "far0"
        self.address, self.gateway = f"10.213.{number}.2", f"10.213.{number}.1"

    def __enter__(self):
        self.run("netns", "add", self.name)
        self.run("link", "add", self.near, "type", "veth", "peer", "name", self.far, "netns", self.name)
        self.run("addr", "add", f"{self.gateway}/24", "dev", self.near)
        self.run("-n", self.name, "addr", "add", f"{self.address}/24", "dev", self.far)
        for device, where in ((self.near, ()), (self.far, ("-n", self.name)), ("lo", ("-n", self.name))):
            self.run(*where, "link", "set", device, "up")
        return self

    def __exit__(self, *_):
        subprocess.run(["ip", "netns", "del", self.name], check=True)

    def run(self, *words):
        subprocess.run(["ip", *words], check=True, capture_output=True)

    def link(self, up):
        self.run("link", "set", self.near, "up" if up else "down")

    def limit(self, rate):
        subprocess.run(["tc", "-n", self.name, "qdisc", "add", "dev", self.far, "root", "tbf", "rate", rate, "burst", "32kb", "latency", "400ms"], check=True)

    def lose(self, percent):
        rules = (f"add table inet l; add chain inet l o {{ type filter hook output priority 0; }}; "
                 f"add rule inet l o oif {self.far} numgen random mod 100 < {percent} drop")
        subprocess.run(["ip", "netns", "exec", self.name, "nft", rules], check=True)

    @staticmethod
    def is_possible():
        if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc"):
            return False
        name = f"lossgauge{os.getpid()}-try"
        made = subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode == 0
        return made and subprocess.run(["ip", "netns", "del", name], capture_output=True).returncode == 0


@unittest.skipUnless(Namespace.is_possible(), "network namespaces need root, ip and tc")
class NamespacesTest(ForwardFaults):
    """The same between hosts that are network namespaces, with links that really go down."""

    def begin(self, *sidecar_flags):
        self.hosts = []
        for node in range(NODES):
            host = Namespace(node)
            host.__enter__()
            self.addCleanup(host.__exit__, None, None, None)
            self.hosts.append(host)
        token = self.work / "token"  # beyond loopback a daemon takes records from who shows one only
        token.touch(mode=0o600)
        token.write_text("of-the-fleet-0123456789\n")
        self.daemon = Observer(self.work, "daemon", "daemon", f"--token_file={token}")
        self.daemon.listen["grpc"] = "0.0.0.0:0"
        self.daemon.start()
        self.addCleanup(self.daemon.stop)
        port = self.daemon.listen["grpc"].rsplit(":", 1)[1]
        for node, host in enumerate(self.hosts):
            rings = self.work / f"rings{node}"
            rings.mkdir(mode=0o750)
            sidecar = Observer(self.work, f"sidecar{node}", "sidecar", f"--ring_dir={rings}", f"--forward_to={host.gateway}:{port}",
                               f"--forward_token_file={token}", *sidecar_flags, prefix=("ip", "netns", "exec", host.name)).start()
            self.addCleanup(sidecar.stop)
            self.sidecars.append(sidecar)

    def test_a_link_that_goes_down_and_up_loses_nothing_and_is_never_continue(self):
        self.begin()
        self.job(1_500, 50)
        self.assert_cut_off_is_never_continue(lambda: self.hosts[1].link(False), lambda: self.hosts[1].link(True))

    def test_a_slow_link_that_loses_packets_only_costs_time(self):
        if not shutil.which("nft"):
            self.skipTest("nft was not found")
        self.begin()
        for host in self.hosts:
            host.limit("4mbit")
            host.lose(3)
        self.job(600, 50)
        self.await_job()
        self.assert_totals_become_exact()


class RelayTest(ForwardFaults):
    def test_a_daemon_that_is_killed_again_and_again_counts_everything_once(self):
        times, steps, rate = (OPTIONS.kills or 50, (OPTIONS.records or 10_000_000) // WORLD, 300) if LONG else (4, 3_000, 100)
        # The last kill well before the job's end, however slow the starts are.
        pause = 0.7 * steps / rate / times if LONG else 1.5
        # Whether all is counted must not hang on how fast a machine catches up: the bound of a spool has its own test.
        self.begin(*(["--forward_spool_mebibytes=2048"] if LONG else []))
        self.job(steps, rate)
        begin = time.monotonic()
        for number in range(times):
            time.sleep(pause * self.chance.uniform(0.6, 1.4))
            self.tell(begin, number)
            self.daemon.kill()
            time.sleep(self.chance.uniform(0, 0.5))
            self.daemon.start()
        self.assertTrue(all(job.poll() is None for job in self.jobs), "the kills came after the job")
        while LONG and any(job.poll() is None for job in self.jobs):
            time.sleep(10)
            self.tell(begin, times)
        self.await_job()
        catching_up = threading.Event()
        teller = threading.Thread(target=lambda: [self.tell(begin, times) for _ in iter(lambda: catching_up.wait(10), True)])
        teller.start()
        try:
            self.assert_totals_become_exact()
        finally:
            catching_up.set()
            teller.join()
        self.tell(begin, times)

    def tell(self, begin, kills):
        if not LONG:
            return
        totals = (self.run_message() or {}).get("totals", {})
        print(f"{time.monotonic() - begin:5.0f} s: killed {kills} times, {int(totals.get('steps', 0)):,} of {self.steps * WORLD:,} records counted, "
              f"{sum(sidecar.spool_bytes() for sidecar in self.sidecars) >> 10:,} KiB in spools", flush=True)

    def test_a_sidecar_that_is_killed_sends_nothing_twice(self):
        self.begin()
        self.job(2_000, 200)
        for _ in range(4):
            time.sleep(self.chance.uniform(0.5, 1.5))
            sidecar = self.chance.choice(self.sidecars)
            sidecar.kill()
            sidecar.start()
        self.await_job()
        self.assert_totals_become_exact()

    def test_while_a_node_is_cut_off_the_verdict_is_never_continue(self):
        self.begin()
        self.job(1_500, 50)
        relay = self.relays[1]
        self.assert_cut_off_is_never_continue(lambda: setattr(relay, "partition", True), lambda: setattr(relay, "partition", False))

    def test_a_bad_way_only_costs_time(self):
        self.begin()
        for relay in self.relays:
            relay.delay, relay.loss, relay.rate = 0.03, 0.02, 400_000
        self.job(600, 50)
        for _ in range(3):
            time.sleep(2)
            self.chance.choice(self.relays).cut()
        self.await_job()
        self.assert_totals_become_exact()
        self.assertGreater(sum(relay.stalls for relay in self.relays), 0)

    def test_a_spool_that_overflows_is_bounded_counted_and_leaves_the_totals_right(self):
        self.begin("--forward_spool_mebibytes=2")
        self.job(4_000, 400)
        # What went before the daemon has heard of a producer is not its loss.
        self.assertTrue(wait_until(lambda: len((self.run_message() or {}).get("producers", [])) == WORLD))
        for relay in self.relays:
            relay.partition = True
        largest = 0
        while any(job.poll() is None for job in self.jobs):
            largest = max(largest, *(sidecar.spool_bytes() for sidecar in self.sidecars))
            time.sleep(0.2)
        self.await_job()
        time.sleep(1)
        for relay in self.relays:
            relay.partition = False
        self.assert_totals_become_exact(lost=None)
        self.assertGreater(largest, 1 << 20)
        self.assertLessEqual(largest, (2 + 1) << 20)  # the file that is being written is beside the limit
        totals = self.run_message()["totals"]
        self.assertGreater(int(totals["recordsLost"]), 0)
        self.assertEqual(int(totals["recordsLost"]) + self.records_read(), self.steps * WORLD + WORLD)  # and each rank's end

    def records_read(self):
        return sum(float(value) for value in re.findall(r'^lossgauge_records_read_total\{[^}]*\} (\S+)$', self.daemon.metrics(), re.M))


if __name__ == "__main__":
    del ForwardFaults  # has no tests of its own
    names = ["RelayTest.test_a_daemon_that_is_killed_again_and_again_counts_everything_once"] if LONG else []
    unittest.main(argv=[sys.argv[0], *REST, *names])
