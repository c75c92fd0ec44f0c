"""The Debian packages: made by cpack, looked at by lintian, unpacked into a scratch root where their programs, manual pages, completion and unit work.

    debian_test.py BUILD_DIR
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

BUILD = pathlib.Path()
ROOT = pathlib.Path(__file__).resolve().parents[2]
# Errors that come from not being made by debhelper, or from having no home on the network yet.
ACCEPTED = {"bogus-mail-host"}


def run(*command, **options):
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, **options)


class DebianTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        for tool in ("cpack", "dpkg-deb", "dpkg-shlibdeps", "lintian"):
            if not shutil.which(tool):
                raise unittest.SkipTest(f"{tool} was not found")
        directory = tempfile.TemporaryDirectory()
        cls.addClassCleanup(directory.cleanup)
        cls.directory = pathlib.Path(directory.name)
        done = run("cpack", "-G", "DEB", "-B", cls.directory, cwd=BUILD)
        assert done.returncode == 0, done.stdout + done.stderr
        cls.packages = {path.name.split("_")[0]: path for path in cls.directory.glob("*.deb")}
        cls.root = cls.directory / "root"
        for path in cls.packages.values():
            assert run("dpkg-deb", "-x", path, cls.root).returncode == 0

    def field(self, package, name):
        return run("dpkg-deb", "-f", self.packages[package], name).stdout.strip()

    def program(self, name, *arguments):
        libraries = next((self.root / "usr" / "lib").rglob("liblossgauge.so.0")).parent
        return run(self.root / "usr" / "bin" / name, *arguments, env={**os.environ, "LD_LIBRARY_PATH": str(libraries)})

    def test_there_are_four_packages_of_one_version_that_name_what_they_need(self):
        self.assertEqual(set(self.packages), {"lossgauged", "liblossgauge0", "liblossgauge-dev", "python3-lossgauge"})
        version = re.search(r"project\(lossgauge VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text()).group(1)
        self.assertEqual({self.field(package, "Version") for package in self.packages}, {version})
        self.assertRegex(self.field("lossgauged", "Depends"), r"libgrpc\+\+")
        self.assertIn(f"liblossgauge0 (= {version})", self.field("liblossgauge-dev", "Depends"))
        # A guest in other people's processes: only what every Debian has.
        needs = {re.split(r"[ (]", word.strip())[0] for word in self.field("liblossgauge0", "Depends").split(",")}
        self.assertLessEqual(needs, {"libc6", "libgcc-s1", "libstdc++6"})

    def test_lintian_finds_no_error(self):
        done = run("lintian", "--fail-on", "none", "--tag-display-limit", "0", *self.packages.values())
        found = [line for line in done.stdout.splitlines() if line.startswith("E:") and line.split(": ")[2].split()[0] not in ACCEPTED]
        self.assertEqual(found, [])

    def test_programs_run_from_a_scratch_root(self):
        for name in ("lossgauged", "lossgaugectl"):
            done = self.program(name, "--version")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(self.field("lossgauged", "Version"), done.stdout)

    def test_manual_pages_name_every_flag_and_render_without_a_warning(self):
        flags = set(re.findall(r"^  (--\w+) \(default", self.program("lossgauged", "--help").stdout, re.M))
        commands = set(re.findall(r"^  (\w+) ", self.program("lossgaugectl", "--help").stdout, re.M))
        self.assertGreater(min(len(flags), len(commands)), 10)
        for page, words in (("man8/lossgauged.8.gz", flags), ("man1/lossgaugectl.1.gz", commands)):
            done = run("man", "-l", "--warnings=all", self.root / "usr/share/man" / page, env={**os.environ, "MANWIDTH": "100", "LC_ALL": "C.UTF-8"})
            self.assertEqual((done.returncode, done.stderr), (0, ""), page)
            self.assertEqual([word for word in words if word not in done.stdout], [], page)

    def test_completion_knows_the_commands(self):
        script = self.root / "usr/share/bash-completion/completions/lossgaugectl"
        done = run("bash", "-c", f'source "{script}"; COMP_WORDS=(lossgaugectl ver); COMP_CWORD=1; _lossgaugectl; echo "${{COMPREPLY[@]}}"')
        self.assertEqual(done.stdout.strip(), "verdict", done.stderr)

    def test_the_unit_its_user_and_its_directory_are_there(self):
        unit = (self.root / "lib/systemd/system/lossgauged.service")
        unit = unit if unit.exists() else self.root / "usr/lib/systemd/system/lossgauged.service"
        text = unit.read_text()
        sysusers = next(self.root.rglob("sysusers.d/lossgauge.conf"))
        tmpfiles = next(self.root.rglob("tmpfiles.d/lossgauge.conf"))
        self.assertIn("User=" + re.search(r"^u (\w+)", sysusers.read_text(), re.M).group(1), text)
        directory = re.search(r"--ring_dir=(\S+)", text).group(1)
        self.assertRegex(tmpfiles.read_text(), rf"(?m)^d {directory} 3777 root lossgauge")
        # systemd itself makes what is said, below a scratch root.
        if shutil.which("systemd-sysusers"):
            (self.root / "etc").mkdir(exist_ok=True)
            for command in (("systemd-sysusers", f"--root={self.root}", sysusers), ("systemd-tmpfiles", "--create", f"--root={self.root}", tmpfiles)):
                done = run(*command)
                self.assertEqual(done.returncode, 0, done.stderr)
            made = (self.root / directory.lstrip("/")).stat()
            self.assertEqual(oct(made.st_mode & 0o7777), "0o3777")
            self.assertIn("lossgauge:", (self.root / "etc/passwd").read_text())

    def test_rules_and_runbooks_come_along_and_headers_are_those_of_the_source(self):
        share = self.root / "usr/share/lossgauge"
        for path in sorted((ROOT / "dashboards" / "rules").glob("*.yml")) + sorted((ROOT / "dashboards" / "runbooks").glob("*.md")):
            self.assertEqual((share / path.relative_to(ROOT / "dashboards")).read_bytes(), path.read_bytes())
        self.assertTrue((share / "grafana" / "training-run.json").exists())
        self.assertEqual((self.root / "usr/include/lossgauge/lossgauge.h").read_bytes(), (ROOT / "kernels/include/lossgauge/lossgauge.h").read_bytes())

    def test_the_scripts_of_the_package_are_sound(self):
        for name in ("postinst", "prerm", "postrm"):
            path = ROOT / "deploy" / "debian" / name
            self.assertTrue(os.access(path, os.X_OK))
            if shutil.which("shellcheck"):
                done = run("shellcheck", path)
                self.assertEqual(done.returncode, 0, done.stdout)


if __name__ == "__main__":
    BUILD = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main()
