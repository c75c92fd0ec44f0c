"""PEP 517 backend: builds liblossgauge with CMake and writes the wheel. Needs CMake, ninja or make, and a C++20 compiler; CUDA if nvcc is found.

LOSSGAUGE_PREBUILT names a liblossgauge.so.0 to pack instead of building one. LOSSGAUGE_CMAKE_ARGS: further arguments for CMake.
"""

import base64
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sysconfig
import tempfile
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
LIBRARY = "liblossgauge.so.0"


def _version():
    """The one in CMakeLists.txt, where every part takes it from."""
    with open(os.path.join(ROOT, "CMakeLists.txt")) as file:
        found = re.search(r"project\(\s*lossgauge\s+VERSION\s+([0-9.]+)", file.read())
    if not found:
        raise RuntimeError("no version in {}/CMakeLists.txt".format(ROOT))
    return found.group(1)


def _build_library(directory):
    prebuilt = os.environ.get("LOSSGAUGE_PREBUILT")
    if prebuilt:
        if not os.path.isabs(prebuilt) or not os.path.exists(prebuilt):
            raise RuntimeError("LOSSGAUGE_PREBUILT: expected the absolute path of a {}, got {!r}".format(LIBRARY, prebuilt))
        return os.path.realpath(prebuilt)
    nvcc = shutil.which("nvcc") or ("/usr/local/cuda/bin/nvcc" if os.path.exists("/usr/local/cuda/bin/nvcc") else None)
    configure = ["cmake", "-S", ROOT, "-B", directory, "-DCMAKE_BUILD_TYPE=Release", "-DLOSSGAUGE_BUILD_SERVER=OFF", "-DLOSSGAUGE_BUILD_EXAMPLES=OFF",
                 "-DLOSSGAUGE_BUILD_TESTS=OFF", "-DLOSSGAUGE_BUILD_BENCHMARKS=OFF", "-DLOSSGAUGE_WERROR=OFF", "-DLOSSGAUGE_CUDA=" + ("ON" if nvcc else "OFF")]
    if nvcc:
        configure.append("-DCMAKE_CUDA_COMPILER=" + nvcc)
    if shutil.which("ninja"):
        configure += ["-G", "Ninja"]
    subprocess.run(configure + shlex.split(os.environ.get("LOSSGAUGE_CMAKE_ARGS", "")), check=True)
    subprocess.run(["cmake", "--build", directory, "--target", "lossgauge", "--parallel", str(os.cpu_count() or 1)], check=True)
    return os.path.realpath(os.path.join(directory, "lib", LIBRARY))


def _metadata():
    return "Metadata-Version: 2.1\nName: lossgauge\nVersion: {}\nSummary: Cross-entropy for LLM training that can be read like a gauge\nRequires-Python: >=3.8\n".format(
        _version())


def _tag():
    return "py3-none-" + sysconfig.get_platform().replace("-", "_").replace(".", "_")


def _wheel_file():
    return "Wheel-Version: 1.0\nGenerator: lossgauge build_backend\nRoot-Is-Purelib: false\nTag: {}\n".format(_tag())


def _digest(data):
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def _package_files():
    package = os.path.join(HERE, "lossgauge")
    for folder, folders, files in os.walk(package):
        folders[:] = sorted(name for name in folders if name not in ("__pycache__", "lib"))
        for name in sorted(files):
            if name.endswith(".py") and name != "_installed.py":
                path = os.path.join(folder, name)
                yield os.path.relpath(path, HERE), path


def _write_wheel(path, entries):
    """entries: (name in the wheel, bytes). Dates are fixed, so that equal inputs make equal wheels."""
    record = []
    info = "lossgauge-{}.dist-info".format(_version())
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, data in entries:
            member = zipfile.ZipInfo(name, date_time=(2020, 1, 1, 0, 0, 0))
            member.external_attr = (0o755 if ".so" in name else 0o644) << 16
            member.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(member, data)
            record.append("{},{},{}\n".format(name, _digest(data), len(data)))
        record.append("{}/RECORD,,\n".format(info))
        wheel.writestr(zipfile.ZipInfo(info + "/RECORD", date_time=(2020, 1, 1, 0, 0, 0)), "".join(record))


def _info_entries():
    info = "lossgauge-{}.dist-info".format(_version())
    return [(info + "/METADATA", _metadata().encode()), (info + "/WHEEL", _wheel_file().encode())]


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    """So that asking for the package's version builds nothing."""
    info = "lossgauge-{}.dist-info".format(_version())
    os.makedirs(os.path.join(metadata_directory, info))
    for name, data in _info_entries():
        with open(os.path.join(metadata_directory, name), "wb") as file:
            file.write(data)
    return info


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    name = "lossgauge-{}-{}.whl".format(_version(), _tag())
    with tempfile.TemporaryDirectory() as directory:
        with open(_build_library(directory), "rb") as file:
            library = file.read()
    entries = []
    for where, path in _package_files():
        with open(path, "rb") as file:
            entries.append((where, file.read()))
    entries.append(("lossgauge/lib/" + LIBRARY, library))
    _write_wheel(os.path.join(wheel_directory, name), entries + _info_entries())
    return name


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    """The package stays where it is; the library is the one of LOSSGAUGE_LIBRARY or the system's."""
    name = "lossgauge-{}-{}.whl".format(_version(), _tag())
    _write_wheel(os.path.join(wheel_directory, name), [("lossgauge.pth", (HERE + "\n").encode())] + _info_entries())
    return name


def build_sdist(sdist_directory, config_settings=None):
    raise RuntimeError("lossgauge is built from its repository: pip install ./client/python, or pip wheel ./client/python")


def get_requires_for_build_wheel(config_settings=None):
    return []


def get_requires_for_build_editable(config_settings=None):
    return []
