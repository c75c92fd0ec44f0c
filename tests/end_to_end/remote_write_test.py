"""Every step of a run, sent to a real Prometheus, is there at its own time; none twice, none in the future, also when Prometheus is away and when
lossgauged is killed."""

import os
import pathlib
import sys
import time
import unittest
import urllib.parse

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]
from stack import Stack, free_port, get, get_json, wait_for  # noqa: E402

STEPS = 300


class Receiver:
    """Prometheus that scrapes nothing and takes remote write, with the configuration that we ship, or with none."""

    def __init__(self, stack, shipped=True):
        self.stack, self.port = stack, free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.config = stack.dir / f"receiver-{self.port}.yml"
        self.config.write_text((HERE.parents[1] / "dashboards" / "prometheus-receiver.example.yml").read_text() if shipped else "global: {}\n")
        self.process = None

    def start(self, takes=True):
        self.process = self.stack.spawn(f"receiver-{self.port}", [
            "prometheus", f"--config.file={self.config}", f"--storage.tsdb.path={self.stack.dir}/receiver-{self.port}",
            f"--web.listen-address=127.0.0.1:{self.port}", *(["--web.enable-remote-write-receiver"] if takes else [])])
        wait_for("the receiver is ready", lambda: get(self.url + "/-/ready"), 60)

    def stop(self):
        self.process.terminate()
        self.process.wait(timeout=30)

    def samples(self, selector):
        """All raw samples of one series: [(timestamp_ms, value)]."""
        query = urllib.parse.urlencode({"query": f"{selector}[2h]"})
        result = get_json(f"{self.url}/api/v1/query?{query}")["data"]["result"]
        assert len(result) <= 1, f"more than one series: {[r['metric'] for r in result]}"
        # JSON has seconds as a float: a millisecond is far within its precision.
        return [(round(float(time_s) * 1000), float(value)) for time_s, value in result[0]["values"]] if result else []


def metric(stack, name, **labels):
    for line in get(stack.http + "/metrics").splitlines():
        if line.startswith(name + "{") and all(f'{k}="{v}"' in line for k, v in labels.items()):
            return float(line.rsplit(" ", 1)[1])
    raise KeyError(name)


def dropped(stack):
    return sum(float(line.rsplit(" ", 1)[1]) for line in get(stack.http + "/metrics").splitlines()
               if line.startswith('lossgauge_sink_steps_dropped_total{sink="remote_write"'))


class RemoteWriteTest(unittest.TestCase):
    def steps_of(self, stack, run):
        steps, token = [], None
        while True:
            page = stack.api("steps", run=run, page_size=500, page_token=token)
            steps += page.get("steps", [])
            token = page.get("nextPageToken")
            if not token:
                return steps

    def check(self, stack, receiver, run, count):
        wait_for("all steps are judged", lambda: len(self.steps_of(stack, run)) == count, 60)
        steps = self.steps_of(stack, run)
        try:
            wait_for("all steps are sent", lambda: len(receiver.samples(f'lossgauge_by_step_number{{run="{run}"}}')) >= count, 60)
        except AssertionError:
            pass  # what follows says which are missing
        numbers = receiver.samples(f'lossgauge_by_step_number{{run="{run}"}}')
        losses = receiver.samples(f'lossgauge_by_step_loss_nats{{run="{run}"}}')
        self.assertEqual([value for _, value in numbers], [float(step["step"]) for step in steps])
        self.assertEqual([value for _, value in losses], [step["lossNats"] for step in steps])
        times = [time_ms for time_ms, _ in losses]
        self.assertEqual(times, sorted(set(times)))
        self.assertEqual(times, [time_ms for time_ms, _ in numbers])
        self.assertLessEqual(times[-1], time.time() * 1000)
        return times

    def test_a_prometheus_that_takes_no_remote_write_costs_the_steps_there_and_nothing_else(self):
        with Stack(prometheus=False) as stack:
            receiver = Receiver(stack, shipped=False)
            receiver.start(takes=False)
            stack.sidecar.terminate()
            stack.sidecar.wait(timeout=10)
            stack.sidecar_flags += [f"--remote_write_url={receiver.url}/api/v1/write"]
            stack.start_sidecar()
            self.assertEqual(stack.train("refused", "--steps=60", "--step_ms=5"), 0)
            wait_for("all are refused", lambda: dropped(stack) == 60, 30)
            self.assertEqual(len(self.steps_of(stack, "refused")), 60)
            self.assertEqual(metric(stack, "lossgauge_sink_steps_dropped_total", sink="remote_write", reason="refused"), 60)
            log = stack.first.log.read_text()
            self.assertIn("HTTP 404", log)
            self.assertIn("receiver needs to be enabled", log)  # the receiver's own words
            self.assertLess(log.count("were refused"), 3, "said once")

    def test_every_step_is_there_at_its_own_time(self):
        with Stack(prometheus=False, sidecar_flags=["--log_level=debug"]) as stack:
            receiver = Receiver(stack)
            receiver.start()
            stack.sidecar.terminate()
            stack.sidecar.wait(timeout=10)
            stack.sidecar_flags += [f"--remote_write_url={receiver.url}/api/v1/write", "--sink_labels=team=a"]
            stack.start_sidecar()
            begin = time.time() * 1000
            self.assertEqual(stack.train("plain", f"--steps={STEPS}", "--step_ms=5"), 0)
            times = self.check(stack, receiver, "plain", STEPS)
            self.assertGreater(times[0], begin)
            spread = [b - a for a, b in zip(times, times[1:])]
            self.assertGreater(sorted(spread)[len(spread) // 2], 2, "steps 5 ms apart lie together")
            self.assertEqual(dropped(stack), 0)
            self.assertEqual(len(receiver.samples('lossgauge_by_step_loss_nats{team="a",job="lossgauged"}')), STEPS)

    def test_nothing_is_lost_or_doubled_while_prometheus_is_away(self):
        with Stack(prometheus=False) as stack:
            receiver = Receiver(stack)
            stack.sidecar.terminate()
            stack.sidecar.wait(timeout=10)
            stack.sidecar_flags += [f"--remote_write_url={receiver.url}/api/v1/write"]
            stack.start_sidecar()
            train = stack.train("away", f"--steps={STEPS}", "--step_ms=20", wait=False)
            wait_for("steps wait", lambda: metric(stack, "lossgauge_sink_pending_steps", sink="remote_write") > 20, 60)
            receiver.start()
            wait_for("steps are sent", lambda: metric(stack, "lossgauge_sink_steps_sent_total", sink="remote_write") > 0, 60)
            receiver.stop()
            time.sleep(1.5)
            receiver.start()
            self.assertEqual(train.wait(timeout=300), 0)
            self.check(stack, receiver, "away", STEPS)
            self.assertEqual(dropped(stack), 0)

    # Without an out-of-order window a batch that is sent twice is refused as a whole: what was new in it would be missing.
    def test_nothing_is_lost_or_doubled_when_lossgauged_is_killed(self):
        with Stack(prometheus=False) as stack:
            receiver = Receiver(stack, shipped=False)
            receiver.start()
            stack.sidecar.terminate()
            stack.sidecar.wait(timeout=10)
            stack.sidecar_flags += [f"--remote_write_url={receiver.url}/api/v1/write"]
            stack.start_sidecar()
            train = stack.train("killed", f"--steps={STEPS}", "--step_ms=20", wait=False)
            for i in range(8):
                time.sleep(0.7 + 0.17 * i)
                stack.sidecar.kill()
                stack.sidecar.wait(timeout=10)
                stack.start_sidecar()
            self.assertEqual(train.wait(timeout=300), 0)
            self.check(stack, receiver, "killed", STEPS)


if __name__ == "__main__":
    os.chdir(HERE)
    unittest.main(verbosity=2)
