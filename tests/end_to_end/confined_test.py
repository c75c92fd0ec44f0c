"""lossgauged with everything switched on starts no process, writes only below its state directory, and lives under the systemd unit's system call filter:
watched by strace, then confined by a filter that kills it for anything else."""

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
sys.path[:0] = [str(HERE)]
from stack import Stack, free_port, get, wait_for  # noqa: E402
import confine  # noqa: E402

UNIT = HERE.parents[1] / "deploy" / "systemd" / "lossgauged.service"
TOKEN = "0123456789abcdef0123"
# The second argument of these says where, for the others the first.
PATH_CALLS = {"mkdir", "rmdir", "unlink", "rename", "link", "symlink", "truncate", "chmod", "chown", "lchown", "mknod", "creat", "setxattr",
              "mkdirat", "unlinkat", "renameat", "renameat2", "linkat", "symlinkat", "fchmodat", "fchownat", "mknodat"}
WRITING = re.compile(r"O_WRONLY|O_RDWR|O_CREAT|O_TRUNC|O_APPEND")


class Confined(Stack):
    def __init__(self, prefix):
        super().__init__(prometheus=False)
        self.prefix = prefix
        token, key = self.dir / "tokens", self.dir / "tls.key"
        token.write_text(TOKEN + "\n")
        token.chmod(0o600)
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", "/CN=localhost",
                        "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost", "-keyout", key, "-out", self.dir / "tls.pem"], check=True, capture_output=True)
        key.chmod(0o600)
        policy = self.dir / "policy.yaml"
        policy.write_text((HERE.parents[1] / "server" / "detect" / "policy.yaml").read_text())
        self.receiver_port = free_port()
        self.sidecar_flags = [f"--token_file={token}", f"--policy={policy}", f"--remote_write_url=http://127.0.0.1:{self.receiver_port}/api/v1/write",
                              f"--otlp_endpoint=127.0.0.1:{free_port()}", "--log_format=json"]

    def spawn(self, name, command, **options):
        return super().spawn(name, [*self.prefix, *command] if name == "lossgauged" else command, **options)

    def live(self, case):
        """What a lossgauged does in its life."""
        self.spawn("receiver", ["prometheus", f"--config.file={HERE.parents[1]}/dashboards/prometheus-receiver.example.yml",
                                f"--storage.tsdb.path={self.dir}/receiver", f"--web.listen-address=127.0.0.1:{self.receiver_port}",
                                "--web.enable-remote-write-receiver"])
        case.assertEqual(self.train("confined", "--steps=200", "--step_ms=5", "--ranks=2"), 0)
        for path in ("/", "/metrics", "/api/v1/runs", "/api/v1/steps?run=confined", "/api/v1/compare?run_a=confined&run_b=confined"):
            try:
                get(self.http + path)
            except OSError as error:
                case.assertIn("HTTP Error 4", str(error))
        self.ctl("verdict", "confined")
        self.ctl("report", "confined", "CONTINUE", "--actor=me", f"--token-file={self.dir}/tokens")
        self.signal(signal.SIGHUP)
        wait_for("steps are sent", lambda: 'lossgauge_sink_steps_sent_total{sink="remote_write"} 200' in get(self.http + "/metrics"), 60)
        time.sleep(0.5)
        self.signal(signal.SIGTERM)
        case.assertEqual(self.sidecar.wait(timeout=30), 0)

    def signal(self, number):
        pid = self.sidecar.pid
        children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        os.kill(int(children[0]) if self.prefix[0].endswith("strace") else pid, number)


class ConfinedTest(unittest.TestCase):
    def test_it_starts_no_process_and_writes_only_its_state(self):
        strace = shutil.which("strace")
        if not strace:
            self.skipTest("strace was not found")
        trace = pathlib.Path(Stack(prometheus=False).dir) / "trace"
        with Confined([strace, "-f", "-qq", "-y", "-s", "256", "-o", trace]) as stack:
            stack.live(self)
            state = str(stack.state_dir)
        calls, execs, outside = set(), 0, []
        for line in trace.read_text(errors="replace").splitlines():
            match = re.match(r"\d+ +(\w+)\((.*)", line)
            if not match:
                continue
            name, rest = match.groups()
            calls.add(name)
            execs += name in ("execve", "execveat")
            if name in ("fork", "vfork") or (name in ("clone", "clone3") and "CLONE_THREAD" not in rest):
                outside.append(line)
            opens = name in ("open", "openat", "openat2") and WRITING.search(rest)
            if (opens or name in PATH_CALLS) and not rest.endswith(("ENOENT (No such file or directory)", "EEXIST (File exists)")):
                paths = re.findall(r'"([^"]*)"', rest)
                if not all(path == state or path.startswith(state + "/") for path in paths):
                    outside.append(line)
        self.assertGreater(len(calls), 30, "strace saw next to nothing")
        self.assertEqual(execs, 1, "it ran another program")
        self.assertEqual(outside, [])

    def test_it_lives_under_the_filter_of_its_unit(self):
        if not shutil.which("systemd-analyze") or not pathlib.Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h").exists():
            self.skipTest("systemd-analyze or the kernel's headers were not found")
        with Confined([sys.executable, HERE / "confine.py", UNIT]) as stack:
            stack.live(self)

    def test_the_filter_kills(self):
        if not shutil.which("systemd-analyze"):
            self.skipTest("systemd-analyze was not found")
        for script in ("import os; os.execv('/bin/true', ['true'])", "import os; os.fork()", "import ctypes; ctypes.CDLL(None).syscall(165, 0, 0, 0, 0, 0)  # mount"):
            done = subprocess.run([sys.executable, HERE / "confine.py", UNIT, sys.executable, "-c", script], capture_output=True, text=True)
            self.assertEqual(done.returncode, -signal.SIGSYS, (script, done))
        done = subprocess.run([sys.executable, HERE / "confine.py", UNIT, sys.executable, "-c",
                               "import threading; t = threading.Thread(target=print, args=['ran']); t.start(); t.join()"], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout), (0, "ran\n"), done)


if __name__ == "__main__":
    os.chdir(HERE)
    unittest.main(verbosity=2)
