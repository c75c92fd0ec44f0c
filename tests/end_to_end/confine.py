"""Runs a command under the system call filter of the systemd unit, made sharper: what the unit answers with EPERM because it is not a system service's
at all kills the process here, and so does starting another process.

    confine.py UNIT COMMAND [ARGUMENTS]
"""

import ctypes
import errno
import os
import pathlib
import re
import struct
import subprocess
import sys

LOAD, JUMP_EQUAL, JUMP_SET, RETURN = 0x20, 0x15, 0x45, 0x06
ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
ARCH_X86_64 = 0xC000003E
CLONE_THREAD = 0x00010000
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2


def group(name, seen=None):
    """System calls of a group, as systemd knows them."""
    seen = set() if seen is None else seen
    text = subprocess.run(["systemd-analyze", "syscall-filter", name], capture_output=True, text=True, check=True).stdout
    calls = set()
    for word in (line.strip() for line in text.splitlines()[1:]):
        if word.startswith("@") and word not in seen:
            seen.add(word)
            calls |= group(word, seen)
        elif word and not word.startswith(("#", "@")):
            calls.add(word)
    return calls


def filters(unit):
    """(allowed, answered with EPERM) by the unit's SystemCallFilter lines."""
    allowed, denied = set(), set()
    for line in re.findall(r"^SystemCallFilter=(.*)$", pathlib.Path(unit).read_text(), re.M):
        target = denied if line.startswith("~") else allowed
        for word in line.lstrip("~").split():
            target |= group(word) if word.startswith("@") else {word}
    assert allowed and denied, "the unit has no filter"
    return allowed, denied


def numbers():
    text = pathlib.Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h").read_text()
    return {name: int(number) for name, number in re.findall(r"^#define __NR_(\w+) (\d+)$", text, re.M)}


def program(unit, path_address):
    allowed, denied = filters(unit)
    number = numbers()
    code = []

    def add(operation, value, if_true=0, if_false=0):
        code.append(struct.pack("=HBBI", operation, if_true, if_false, value))

    add(LOAD, 4)  # architecture
    add(JUMP_EQUAL, ARCH_X86_64, 1, 0)
    add(RETURN, KILL)
    add(LOAD, 0)  # number of the call
    # Threads are made by clone; by clone3 they could not be told from processes, so that the C library is sent back to clone.
    add(JUMP_EQUAL, number["clone3"], 0, 1)
    add(RETURN, ERRNO | errno.ENOSYS)
    add(JUMP_EQUAL, number["clone"], 0, 4)
    add(LOAD, 16)  # flags
    add(JUMP_SET, CLONE_THREAD, 0, 1)
    add(RETURN, ALLOW)
    add(RETURN, KILL)
    # The one exec is the one below: its path stands at an address that the program after it does not know.
    add(JUMP_EQUAL, number["execve"], 0, 6)
    add(LOAD, 16)
    add(JUMP_EQUAL, path_address & 0xFFFFFFFF, 0, 3)
    add(LOAD, 20)
    add(JUMP_EQUAL, path_address >> 32, 0, 1)
    add(RETURN, ALLOW)
    add(RETURN, KILL)
    for name in sorted(denied & set(number)):
        add(JUMP_EQUAL, number[name], 0, 1)
        add(RETURN, ERRNO | errno.EPERM)
    for name in sorted((allowed - denied - {"execveat", "fork", "vfork"}) & set(number)):
        add(JUMP_EQUAL, number[name], 0, 1)
        add(RETURN, ALLOW)
    add(RETURN, KILL)
    return b"".join(code), len(code)


def main(unit, *command):
    libc = ctypes.CDLL(None, use_errno=True)
    path = ctypes.create_string_buffer(os.fsencode(command[0]))
    arguments = (ctypes.c_char_p * (len(command) + 1))(*[os.fsencode(word) for word in command], None)
    environment = [f"{name}={value}".encode() for name, value in os.environ.items()]
    variables = (ctypes.c_char_p * (len(environment) + 1))(*environment, None)
    code, length = program(unit, ctypes.addressof(path))
    block = ctypes.create_string_buffer(code)
    descriptor = ctypes.create_string_buffer(struct.pack("=H6xQ", length, ctypes.addressof(block)))
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(descriptor), 0, 0):
        sys.exit(f"confine.py: no filter: {os.strerror(ctypes.get_errno())}")
    libc.execve(path, arguments, variables)
    sys.exit(f"confine.py: {command[0]}: {os.strerror(ctypes.get_errno())}")


if __name__ == "__main__":
    main(*sys.argv[1:])
