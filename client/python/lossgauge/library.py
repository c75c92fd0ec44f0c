"""liblossgauge.so: where it is, and calls that raise."""

import ctypes
import os
import threading

from . import abi, errors

SONAME = "liblossgauge.so.0"
_HERE = os.path.dirname(os.path.abspath(__file__))
_lock = threading.Lock()
_library = None
_functions = {}  # those of calls so far, by their names without lg_
_defaults = {}  # structures as their functions fill them in


def candidates():
    """Where the library is looked for, in this order: LOSSGAUGE_LIBRARY alone if it is set; beside the package; the system's."""
    named = os.environ.get("LOSSGAUGE_LIBRARY")
    if named:
        return [named]
    places = [os.path.join(_HERE, "lib", SONAME)]
    try:  # written by cmake --install
        from ._installed import LIBRARY
    except ImportError:
        pass
    else:
        places.append(os.path.normpath(os.path.join(_HERE, LIBRARY)))
    return [place for place in places if os.path.exists(place)] + [SONAME]


def load():
    """The library with its functions declared. Loaded by the first call, so that importing the package needs nothing. Raises Error if there is none."""
    global _library
    if _library is not None:
        return _library
    with _lock:
        if _library is None:
            _library = _load()
    return _library


def _load():
    failures = []
    for place in candidates():
        try:
            library = ctypes.CDLL(place)
        except OSError as failure:
            failures.append("{}: {}".format(place, failure))
            continue
        _declare(library, place)
        return library
    raise errors.Error("liblossgauge could not be loaded. Set LOSSGAUGE_LIBRARY to its path. Tried: " + "; ".join(failures))


def _declare(library, place):
    for name in ("lg_last_error", "lg_version", "lg_cpu_variant"):
        function = getattr(library, name)
        function.argtypes, function.restype = [], ctypes.c_char_p
    for name, arguments in abi.FUNCTIONS.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            raise errors.Error("{}: no function {}: the library is older than this package".format(place, name)) from None
        function.argtypes, function.restype = arguments, ctypes.c_int
    for name, structure in abi.INITIALISERS.items():
        function = getattr(library, name)
        function.argtypes, function.restype = [ctypes.POINTER(structure)], None


def new(name):
    """A structure with its defaults: new("cross_entropy_args")."""
    defaults = _defaults.get(name)
    if defaults is None:
        function = "lg_{}_init".format(name)
        defaults = abi.INITIALISERS[function]()
        getattr(load(), function)(ctypes.byref(defaults))
        _defaults[name] = defaults
    return type(defaults).from_buffer_copy(defaults)


def last_error():
    return load().lg_last_error().decode("utf-8", "replace")


def call(name, *arguments):
    """Calls lg_<name>; raises what its code says."""
    function = _functions.get(name)
    if function is None:
        function = _functions[name] = getattr(load(), "lg_" + name)
    code = function(*arguments)
    if code != 0:
        raise errors.from_code(code, last_error())


def version():
    """Of the library, for example "0.1.0"."""
    return load().lg_version().decode()


def cpu_variant():
    """Which code this machine's CPU runs: "avx512", "avx2" or "baseline"."""
    return load().lg_cpu_variant().decode()
