"""A whole lossgauge installation on loopback: sidecar, Prometheus with the shipped rules, Alertmanager, and a webhook that keeps what
Alertmanager sends. Only what an operator would run; nothing is mocked."""

import http.server
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def get(url, timeout=10):
    with urllib.request.urlopen(url, timeout=timeout) as reply:
        return reply.read().decode()


def get_json(url, timeout=10):
    return json.loads(get(url, timeout))


def wait_for(what, condition, seconds, interval=0.1):
    """Calls condition until it gives something true; fails with `what` and the last value or error when the time is up."""
    deadline = time.monotonic() + seconds
    last = None
    while time.monotonic() < deadline:
        try:
            last = condition()
            if last:
                return last
        except (OSError, urllib.error.URLError, json.JSONDecodeError, KeyError) as error:
            last = error
        time.sleep(interval)
    raise AssertionError(f"not within {seconds} s: {what}; last seen: {last!r}")


class Webhook:
    """Keeps every alert that Alertmanager delivers: alerts[(run, alertname)] = list of 'firing' / 'resolved'."""

    def __init__(self):
        self.port = free_port()
        self.alerts = {}
        self.bodies = []
        webhook = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                webhook.bodies.append(body)
                for alert in body["alerts"]:
                    key = (alert["labels"].get("run", ""), alert["labels"]["alertname"])
                    webhook.alerts.setdefault(key, []).append(alert["status"])
                self.send_response(200)
                self.end_headers()

            def log_message(self, *args):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def fired(self, run):
        return {name for (r, name), states in self.alerts.items() if r == run and "firing" in states}


class Lossgauged:
    """Where one lossgauged has its files and listens; process is None until it is started."""

    def __init__(self, directory, name="", rings=None):
        self.name = f"lossgauged-{name}" if name else "lossgauged"
        self.ring_dir = (rings or directory) / f"{name}rings"
        self.ring_dir.mkdir(mode=0o750)
        self.state_dir = directory / f"{name}state"
        self.log = directory / f"{self.name}.log"
        self.http = f"http://127.0.0.1:{free_port()}"
        self.grpc = f"127.0.0.1:{free_port()}"
        self.process = None


class Stack:
    """`more` names further lossgaugeds that Prometheus scrapes too: further[name], to be started by start(). `rings`: an existing directory for the ring
    directory to be made in, if not among the other files."""

    def __init__(self, build=None, sidecar_flags=(), prometheus=True, more=(), rings=None):
        self.bin = pathlib.Path(build or os.environ.get("LOSSGAUGE_BUILD_DIR", ROOT / "build" / "cpu")) / "bin"
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="lossgauge-e2e-"))
        self.first = Lossgauged(self.dir, rings=rings)
        self.further = {name: Lossgauged(self.dir, name) for name in more}
        self.ring_dir, self.state_dir, self.http, self.grpc = self.first.ring_dir, self.first.state_dir, self.first.http, self.first.grpc
        self.sidecar_flags = list(sidecar_flags)
        self.with_prometheus = prometheus
        self.prometheus = f"http://127.0.0.1:{free_port()}"  # takes remote write, too
        self.processes = []
        self.sidecar = None
        self.webhook = None

    def __enter__(self):
        try:
            self.start_sidecar()
            if self.with_prometheus:
                self.start_prometheus()
        except BaseException:
            self.print_logs()
            self.close()
            raise
        return self

    def __exit__(self, kind, value, trace):
        if kind is not None:
            self.print_logs()
        self.close()

    def spawn(self, name, command, **options):
        log = open(self.dir / f"{name}.log", "ab")
        process = subprocess.Popen([str(c) for c in command], stdout=log, stderr=subprocess.STDOUT, **options)
        log.close()
        self.processes.append(process)
        return process

    def start(self, one, *flags, role="sidecar", prefix=(), **options):
        rings = [f"--ring_dir={one.ring_dir}"] if role == "sidecar" else []
        one.process = self.spawn(one.name, [
            *prefix, self.bin / "lossgauged", role, *rings, f"--state_dir={one.state_dir}",
            f"--http_listen={one.http.removeprefix('http://')}", f"--grpc_listen={one.grpc}", *flags], **options)
        wait_for(f"{one.name} is ready", lambda: get(one.http + "/-/ready"), 20)
        return one.process

    def start_sidecar(self):
        self.sidecar = self.start(self.first, *self.sidecar_flags)
        return self.sidecar

    def start_prometheus(self):
        self.webhook = Webhook()
        alertmanager_port = free_port()
        self.alertmanager = f"http://127.0.0.1:{alertmanager_port}"
        (self.dir / "alertmanager.yml").write_text(
            "route:\n  receiver: webhook\n  group_by: [run, alertname]\n  group_wait: 0s\n  group_interval: 1s\n  repeat_interval: 1h\n"
            # As in the shipped example: information is for the record, and told to nobody.
            "  routes:\n    - receiver: nobody\n      matchers: ['severity = \"info\"']\n"
            f"receivers:\n  - name: nobody\n  - name: webhook\n    webhook_configs:\n      - url: http://127.0.0.1:{self.webhook.port}/\n"
            "        send_resolved: true\n")
        rules = sorted((ROOT / "dashboards" / "rules").glob("*.yml"))
        assert rules, "no rules are shipped"
        (self.dir / "prometheus.yml").write_text(
            "global: {scrape_interval: 1s, evaluation_interval: 1s}\n"
            "rule_files:\n" + "".join(f"  - {path}\n" for path in rules) +
            "alerting:\n  alertmanagers:\n    - static_configs:\n"
            f"        - targets: ['127.0.0.1:{alertmanager_port}']\n"
            "scrape_configs:\n  - job_name: lossgauge\n    static_configs:\n"
            f"      - targets: {[one.http.removeprefix('http://') for one in (self.first, *self.further.values())]}\n"
            "storage: {tsdb: {out_of_order_time_window: 1h}}\n")
        self.spawn("alertmanager", [
            shutil.which("prometheus-alertmanager") or "alertmanager", f"--config.file={self.dir}/alertmanager.yml",
            f"--storage.path={self.dir}/alertmanager", f"--web.listen-address=127.0.0.1:{alertmanager_port}",
            "--cluster.listen-address="])
        self.spawn("prometheus", [
            "prometheus", f"--config.file={self.dir}/prometheus.yml", f"--storage.tsdb.path={self.dir}/prometheus",
            f"--web.listen-address={self.prometheus.removeprefix('http://')}", "--web.enable-remote-write-receiver"])
        wait_for("Alertmanager is ready", lambda: get(self.alertmanager + "/-/ready"), 30)
        wait_for("Prometheus is ready", lambda: get(self.prometheus + "/-/ready"), 30)

    def train(self, run, *flags, wait=True, timeout=600, environment=None, **options):
        """Runs train_text. wait=True: its exit code; else the process."""
        process = self.spawn(f"train-{len(self.processes)}", [
            self.bin / "train_text", f"--run={run}", f"--ring_dir={self.ring_dir}", *flags], env={**os.environ, **(environment or {})}, **options)
        return process.wait(timeout=timeout) if wait else process

    def train_tensor_parallel(self, run, fault_step):
        """tensor_parallel_job.py in a session of its own, so that end_session() reaches all of it."""
        here = pathlib.Path(__file__).resolve().parent
        return self.spawn(f"train-{len(self.processes)}", ["/usr/bin/python3", here / "tensor_parallel_job.py", self.ring_dir, run, fault_step], start_new_session=True,
                          env={**os.environ, "PYTHONPATH": str(ROOT / "client" / "python"), "PYTHONDONTWRITEBYTECODE": "1",
                               "LOSSGAUGE_LIBRARY": str(self.bin.parent / "lib" / "liblossgauge.so")})

    @staticmethod
    def end_session(process):
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def api(self, path, **query):
        query = {k: v for k, v in query.items() if v is not None}
        return get_json(f"{self.http}/api/v1/{path}?{urllib.parse.urlencode(query)}")

    def verdict(self, run):
        return self.api("verdict", run=run)

    def incidents(self, run):
        return self.api("incidents", run=run).get("incidents", [])

    def query(self, promql):
        reply = get_json(self.prometheus + "/api/v1/query?" + urllib.parse.urlencode({"query": promql}))
        assert reply["status"] == "success", reply
        return reply["data"]["result"]

    def firing(self, run):
        """Names of alerts that Prometheus shows as firing for a run."""
        reply = get_json(self.prometheus + "/api/v1/alerts")
        return {a["labels"]["alertname"] for a in reply["data"]["alerts"] if a["labels"].get("run", "") == run and a["state"] == "firing"}

    def ctl(self, *arguments, check=None):
        done = subprocess.run([str(self.bin / "lossgaugectl"), *arguments, f"--address={self.grpc}"], capture_output=True, text=True, timeout=30)
        if check is not None:
            assert done.returncode == check, (arguments, done)
        return done

    def print_logs(self):
        for log in sorted(self.dir.glob("*.log")):
            text = log.read_text(errors="replace")
            print(f"---- {log.name}\n{text[-4000:]}")

    def close(self):
        for process in reversed(self.processes):
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
        for process in reversed(self.processes):
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self.webhook:
            self.webhook.server.shutdown()
            self.webhook.server.server_close()
        if not os.environ.get("LOSSGAUGE_KEEP"):
            shutil.rmtree(self.dir, ignore_errors=True)
