"""Checks of arguments by name, for what ctypes would refuse without a name, or cut to its width without a word. Needs no torch."""

import numbers
import operator
import os

from . import errors


def refuse(name, expected, got):
    raise errors.InvalidArgument("{}: expected {}, got {}".format(name, expected, got))


def expect(condition, name, expected, got):
    if not condition:
        refuse(name, expected, got)


def integer(name, value, bits=64):
    """An int, or what stands for one: numpy's, or one element of a CPU tensor of integers."""
    given = value
    if type(value) is not int:
        if isinstance(value, bool) or getattr(value, "is_cuda", False) or "bool" in str(getattr(value, "dtype", "")):
            value = None
        else:
            try:
                value = operator.index(value)
            except (TypeError, ValueError, RuntimeError):
                value = None
    if value is None or not -(1 << bits - 1) <= value < 1 << bits - 1:
        refuse(name, "an int of {} bits".format(bits), given if type(given) is int else type(given).__name__)
    return value


def number(name, value):
    if type(value) is not float and (not isinstance(value, numbers.Real) or isinstance(value, bool)):
        refuse(name, "a number", type(value).__name__)
    return float(value)


def host_number(name, value):
    """A number, or a one-element tensor of the host's."""
    if getattr(value, "is_cuda", False):
        refuse(name, "a number or a CPU tensor", "a tensor on {}: reading it would wait for the device".format(value.device))
    try:
        if not isinstance(value, (str, bytes)):
            return float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):  # torch says the third of several elements
        pass
    refuse(name, "a number", type(value).__name__)


def count(name, value):
    """host_number of what is counted."""
    value = host_number(name, value)
    if not abs(value) < 1 << 63:  # NaN, too
        refuse(name, "a number of 64 bits", value)
    return int(value)


def encoded(name, value):
    """Bytes of a string or a path; None stays it."""
    if value is None:
        return None
    if not isinstance(value, (str, bytes, os.PathLike)):
        refuse(name, "text", type(value).__name__)
    try:
        data = os.fsencode(value)
    except UnicodeEncodeError:  # half a surrogate pair
        data = str(value).encode("utf-8", "replace")
    if b"\0" in data:
        refuse(name, "text without a NUL", repr(value))
    return data


def words_of(error):
    """What ended a run, whatever the exception makes of being asked: nobody shall lose it for another one."""
    try:
        said = "{}: {}".format(type(error).__name__, error)
    except Exception:
        said = type(error).__name__
    return said.replace("\0", " ")[:200]
