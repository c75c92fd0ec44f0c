"""The package installs with pip and no index, and an installed one finds its library."""

import os
import subprocess
import sys
import tempfile
import unittest
import zipfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROJECT = os.path.join(ROOT, "client", "python")


def environment(**more):
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "LOSSGAUGE_LIBRARY")}
    return dict(kept, **more)


class Package(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = directory.name

    def pip(self, *arguments, **more):
        command = [sys.executable, "-m", "pip", "--no-cache-dir", "--disable-pip-version-check", *arguments]
        return subprocess.run(command, env=environment(PIP_NO_INDEX="1", **more), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=self.directory)

    def test_pip_installs_it_without_an_index(self):
        said = self.pip("install", "--target", os.path.join(self.directory, "site"), PROJECT, LOSSGAUGE_PREBUILT=os.environ["LOSSGAUGE_LIBRARY"])
        self.assertEqual(0, said.returncode, said.stdout)
        code = "import lossgauge; print(lossgauge.version(), lossgauge.library.load()._name)"
        ran = subprocess.run([sys.executable, "-c", code], env=environment(PYTHONPATH=os.path.join(self.directory, "site")), stdout=subprocess.PIPE, text=True,
                             cwd=self.directory)
        version, path = ran.stdout.split()
        self.assertTrue(path.startswith(os.path.realpath(self.directory)) or path.startswith(self.directory), path)
        self.assertRegex(version, r"^\d+\.\d+\.\d+$")

    def test_equal_inputs_make_equal_wheels(self):
        made = []
        for name in ("a", "b"):
            said = self.pip("wheel", "--no-deps", "--wheel-dir", os.path.join(self.directory, name), PROJECT, LOSSGAUGE_PREBUILT=os.environ["LOSSGAUGE_LIBRARY"])
            self.assertEqual(0, said.returncode, said.stdout)
            (wheel,) = os.listdir(os.path.join(self.directory, name))
            with open(os.path.join(self.directory, name, wheel), "rb") as file:
                made.append(file.read())
        self.assertEqual(*made)
        with zipfile.ZipFile(os.path.join(self.directory, "a", wheel)) as archive:
            names = archive.namelist()
        self.assertIn("lossgauge/lib/liblossgauge.so.0", names)
        self.assertIn("lossgauge/__init__.py", names)
        self.assertFalse([name for name in names if "__pycache__" in name or name.endswith(".pyc")])

    def test_metadata_comes_without_a_build(self):
        code = ("import sys; sys.path.insert(0, {!r}); import build_backend; build_backend._build_library = None; "
                "print(build_backend.prepare_metadata_for_build_wheel('.'))").format(PROJECT)
        said = subprocess.run([sys.executable, "-B", "-c", code], env=environment(), stdout=subprocess.PIPE, text=True, cwd=self.directory, check=True).stdout.strip()
        with open(os.path.join(self.directory, said, "METADATA")) as file:
            self.assertIn("Name: lossgauge", file.read())

    def test_a_prebuilt_library_that_is_not_there_is_named(self):
        said = self.pip("wheel", "--no-deps", "--wheel-dir", self.directory, PROJECT, LOSSGAUGE_PREBUILT="build/liblossgauge.so.0")
        self.assertNotEqual(0, said.returncode)
        self.assertIn("LOSSGAUGE_PREBUILT: expected the absolute path", said.stdout)

    @unittest.skipUnless(os.environ.get("LOSSGAUGE_BUILD"), "LOSSGAUGE_BUILD names no build directory")
    def test_cmake_install_puts_it_in_place(self):
        build = os.environ["LOSSGAUGE_BUILD"]
        said = subprocess.run(["cmake", "--install", build, "--prefix", os.path.join(self.directory, "prefix"), "--component", "python"], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True)
        self.assertEqual(0, said.returncode, said.stdout)
        packages = []
        for folder, folders, files in os.walk(os.path.join(self.directory, "prefix")):
            if os.path.basename(folder) == "lossgauge" and "__init__.py" in files:
                packages.append(folder)
        (package,) = packages
        with open(os.path.join(package, "_installed.py")) as file:
            scope = {}
            exec(file.read(), scope)
        library = os.path.normpath(os.path.join(package, scope["LIBRARY"]))
        self.assertTrue(library.startswith(os.path.join(self.directory, "prefix", "lib")), library)


if __name__ == "__main__":
    unittest.main()
