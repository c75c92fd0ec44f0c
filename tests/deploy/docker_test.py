"""The Dockerfiles, as far as that goes without an engine: a linter, what they promise, and their steps on this machine.

LOSSGAUGE_DEPLOY_MODULES: node_modules with dockerfilelint; without it its test says that it skipped.
"""

import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import unittest
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCKER = ROOT / "deploy" / "docker"
FILES = sorted(DOCKER.glob("*.Dockerfile"))


def instructions(path):
    """(instruction, rest) with lines joined and comments left out."""
    text = "\n".join(line for line in path.read_text().splitlines() if not line.lstrip().startswith("#"))
    return [tuple(line.split(None, 1)) for line in text.replace("\\\n", " ").splitlines() if line.strip()]


def stages(path):
    found = []
    for instruction, rest in instructions(path):
        if instruction == "FROM":
            found.append([])
        if found:
            found[-1].append((instruction, rest))
    return found


class DockerTest(unittest.TestCase):
    def test_a_linter_finds_nothing(self):
        linter = pathlib.Path(os.environ.get("LOSSGAUGE_DEPLOY_MODULES", "")) / "dockerfilelint" / "bin" / "dockerfilelint"
        if not linter.exists() or not shutil.which("node"):
            self.skipTest("dockerfilelint was not installed")
        self.assertEqual(len(FILES), 2)
        done = subprocess.run(["node", linter, *FILES], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_the_last_stage_runs_as_nobody_in_particular_and_has_no_compiler(self):
        for path in FILES:
            last = stages(path)[-1]
            self.assertGreater(len(stages(path)), 1, path.name)
            users = [rest for instruction, rest in last if instruction == "USER"]
            self.assertRegex(users[-1], r"^[1-9]\d*:[1-9]\d*$")
            installed = " ".join(rest for instruction, rest in last if instruction == "RUN")
            self.assertIsNone(re.search(r"g\+\+|gcc|clang|cmake|build-essential|setup\.sh", installed), path.name)

    def test_no_base_is_whatever_is_latest(self):
        for path in FILES:
            for stage in stages(path):
                self.assertRegex(stage[0][1].split()[0], r":(?!latest)[\w.-]+$", path.name)

    def test_what_is_copied_is_there_and_the_context_leaves_out_what_is_large(self):
        for path in FILES:
            for instruction, rest in instructions(path):
                words = rest.split()
                if instruction == "COPY" and not words[0].startswith("--from"):
                    for source in words[:-1]:
                        self.assertTrue((ROOT / source).exists(), f"{path.name}: {source}")
        self.assertLessEqual({".git", "build"}, set((ROOT / ".dockerignore").read_text().split()))

    def test_the_daemon_gets_flags_that_it_has_and_listens_where_it_is_exposed(self):
        text = (DOCKER / "lossgauged.Dockerfile").read_text()
        known = set(re.findall(r"ABSL_FLAG\([\w:]+, (\w+),", (ROOT / "server" / "main" / "flags.cc").read_text()))
        self.assertLessEqual(set(re.findall(r'"--(\w+)=', text)), known)
        exposed = re.search(r"^EXPOSE (.*)$", text, re.M).group(1).split()
        self.assertEqual(sorted(re.findall(r"0\.0\.0\.0:(\d+)", text)), exposed)

    def test_every_package_that_is_installed_is_in_debian(self):
        if not shutil.which("apt-cache") or subprocess.run(["apt-cache", "show", "dpkg-dev"], capture_output=True).returncode != 0:
            self.skipTest("no package lists here: apt-get update")
        named = {word for path in FILES for instruction, rest in instructions(path) if instruction == "RUN"
                 for install in re.findall(r"apt-get install ([^&]*)", rest) for word in install.split() if not word.startswith(("-", "/"))}
        self.assertLess({"dpkg-dev", "libhwy-dev"}, named)
        missing = [name for name in sorted(named) if subprocess.run(["apt-cache", "show", name], capture_output=True).returncode != 0]
        self.assertEqual(missing, [])

    def test_the_command_runs_as_the_images_user_on_the_directories_that_the_image_makes_and_ends_at_its_signal(self):
        lossgauged = pathlib.Path(os.environ.get("LOSSGAUGE_BUILD_DIR", ROOT / "build" / "cpu")) / "bin" / "lossgauged"
        if not lossgauged.exists():
            self.skipTest(f"{lossgauged} was not built")
        last = stages(DOCKER / "lossgauged.Dockerfile")[-1]
        of = {instruction: rest for instruction, rest in last}
        self.assertEqual(json.loads(of["ENTRYPOINT"]), ["/usr/bin/lossgauged"])
        user, group = (int(number) for number in of["USER"].split(":"))
        made = re.search(r"install -d -o (\d+) -g (\d+) -m (\d+) (.*)$", " ".join(rest for instruction, rest in last if instruction == "RUN"))
        self.assertEqual((int(made[1]), int(made[2])), (user, group))
        with tempfile.TemporaryDirectory() as place, socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            port = taken.getsockname()[1]
            taken.close()
            os.chmod(place, 0o755)
            program = shutil.copy(lossgauged, place)  # where the build lies others may not look
            command = [program]
            for word in json.loads(of["CMD"]):
                command.append(word.replace(":9788", f":{port}").replace(":9789", ":0"))
            for directory in made[4].split():
                (pathlib.Path(place) / directory.lstrip("/")).mkdir(parents=True, mode=0o755)
                (pathlib.Path(place) / directory.lstrip("/")).chmod(int(made[3], 8))
                self.assertIn(f"={directory}", " ".join(command))
                command = [word.replace(f"={directory}", f"={place}{directory}") for word in command]
                if os.geteuid() == 0:
                    os.chown(place + directory, user, group)
            as_user = {"user": user, "group": group, "extra_groups": []} if os.geteuid() == 0 else {}
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={"PATH": "/usr/bin:/bin"}, **as_user) as process:
                try:
                    deadline = time.monotonic() + 20
                    answer = ""
                    while not answer and process.poll() is None and time.monotonic() < deadline:
                        try:
                            answer = urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=5).read().decode()
                        except OSError:
                            time.sleep(0.1)
                    self.assertEqual(answer.strip(), "ready")
                finally:
                    process.send_signal(getattr(signal, of["STOPSIGNAL"]))
                    log = process.communicate(timeout=20)[0]
                self.assertEqual(process.returncode, 0, log)
                self.assertTrue(all(json.loads(line) for line in log.splitlines()), "the log is JSON, as the command says")

    def test_the_first_steps_work_here(self):
        """Installing what is missing (nothing is, where tests run) and configuring with the image's options. Compiling and packing are the tests of the
        build and of the packages."""
        steps = [rest for instruction, rest in stages(DOCKER / "lossgauged.Dockerfile")[0] if instruction == "RUN"]
        self.assertIn("deploy/setup.sh --build", steps[0])
        done = subprocess.run([ROOT / "deploy" / "setup.sh", "--build"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        options = re.search(r"cmake --preset cpu ((?:-D\S+\s+)+)", steps[1]).group(1).split()
        with tempfile.TemporaryDirectory() as directory:
            done = subprocess.run(["cmake", "--preset", "cpu", "-B", directory, *options], cwd=ROOT, capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertTrue((pathlib.Path(directory) / "CPackConfig.cmake").exists())


if __name__ == "__main__":
    unittest.main()
