"""Confines itself by Landlock and seccomp, then runs a command and sees all of it dead.

A program of its own, run as `python -I -S launcher.py JSON`, that imports nothing of retinue: the
kernel lets a process give up rights for itself and its children only, and our own must keep theirs.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import struct
import sys
from typing import Any, NoReturn

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long

# linux/prctl.h
_PDEATHSIG, _CAPBSET_DROP, _NO_NEW_PRIVS, _SUBREAPER, _SECCOMP = 1, 24, 38, 36, 22
_SECCOMP_FILTER = 2
_AMBIENT, _AMBIENT_CLEAR_ALL = 47, 4
_CAPSET = {"x86_64": 126, "aarch64": 91}
# linux/landlock.h; the numbers are the same on all machines.
_CREATE, _ADD, _RESTRICT = 444, 445, 446
_VERSION, _PATH_BENEATH = 1, 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_READING = _EXECUTE | _READ_FILE | _READ_DIR
_OF_A_FILE = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_BIND_TCP, _CONNECT_TCP = 1, 2
_ABSTRACT_SOCKETS, _SIGNALS = 1, 2

# Told apart from what commands end with by the line on stderr that comes with it.
FAILED = 125


def main() -> NoReturn:
    order = json.loads(sys.argv[1])
    try:
        _confine(order)
        child = os.fork()
    except OSError as error:
        _fail(f"{error.strerror}")
    if child == 0:
        _become(order)
    _see_through(child, alone=order["scoped"])


def _confine(order: dict[str, Any]) -> None:
    # With the parent goes the supervisor, and it takes everything along.
    signal.signal(signal.SIGTERM, lambda *_: _bury(order["scoped"]))
    _prctl(_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != order["parent"]:
        _bury(order["scoped"])
    _prctl(_SUBREAPER, 1)
    _prctl(_NO_NEW_PRIVS, 1)
    for name, value in order["limits"].items():
        kind = getattr(resource, name)
        _, hard = resource.getrlimit(kind)
        most = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (most, most))
    _drop_capabilities()
    _landlock(order)
    if order["scoped"]:
        _expect_no_signals(order["parent"])


def _drop_capabilities() -> None:
    for number in range(64):
        # Fails for a number that is none, and for who has no right to drop, and so none to use.
        _libc.prctl(_CAPBSET_DROP, number, 0, 0, 0)
    _libc.prctl(_AMBIENT, _AMBIENT_CLEAR_ALL, 0, 0, 0)
    header, nothing = struct.pack("=Ii", 0x20080522, 0), bytes(24)
    _call(_CAPSET[os.uname().machine], header, nothing)


def _landlock(order: dict[str, Any]) -> None:
    abi = _libc.syscall(_CREATE, None, 0, _VERSION)
    files = _READING | _WRITE_FILE | 0x1FF0  # removing and making things, all from ABI 1
    if abi >= 2:
        files |= _REFER
    if abi >= 3:
        files |= _TRUNCATE
    if abi >= 5:
        files |= _IOCTL_DEV
    network = _BIND_TCP | _CONNECT_TCP if abi >= 4 and not order["network"] else 0
    scoped = _ABSTRACT_SOCKETS | _SIGNALS if abi >= 6 else 0
    fields = [files, network, scoped][: 1 if abi < 4 else 2 if abi < 6 else 3]
    attributes = struct.pack(f"={len(fields)}Q", *fields)
    ruleset = _call(_CREATE, attributes, len(attributes), 0)
    for path in order["read"]:
        _allow(ruleset, path, _READING & files)
    for path in order["devices"]:
        _allow(ruleset, path, (_READ_FILE | _WRITE_FILE | _TRUNCATE | _IOCTL_DEV) & files)
    for path in order["write"]:
        _allow(ruleset, path, files)
    _call(_RESTRICT, ruleset, 0)
    os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        # Not through a link: what it means may have changed since somebody looked.
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        if not os.path.isdir(f"/proc/self/fd/{fd}"):
            rights &= _OF_A_FILE
        _call(_ADD, ruleset, _PATH_BENEATH, struct.pack("=Qi", rights, fd), 0)
    finally:
        os.close(fd)


def _expect_no_signals(pid: int) -> None:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return
    except ProcessLookupError:
        os._exit(FAILED)
    _fail("signals reach the outside")


def _become(order: dict[str, Any]) -> NoReturn:
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    filter = bytes.fromhex(order["filter"])
    code = ctypes.create_string_buffer(filter, len(filter))
    program = struct.pack("@HxxxxxxP", len(filter) // 8, ctypes.addressof(code))
    try:
        _prctl(_SECCOMP, _SECCOMP_FILTER, program)
        os.chdir(order["directory"])
        os.execve("/bin/sh", ["/bin/sh", "-c", order["command"]], order["environment"])
    except OSError as error:
        _fail(f"{error.strerror}")


def _see_through(child: int, *, alone: bool) -> NoReturn:
    while True:
        try:
            pid, status = os.wait()
        except ChildProcessError:
            _fail("the command was lost")
        if pid == child:
            break
    code = os.waitstatus_to_exitcode(status)
    _bury(alone, code if code >= 0 else 128 - code)


def _bury(alone: bool, code: int = 128 + signal.SIGKILL) -> NoReturn:
    """Kill all that is left of the command, and end."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for _ in range(1000):
        if alone:
            # Everybody whom we may signal, which is who is confined with us.
            try:
                os.kill(-1, signal.SIGKILL)
            except ProcessLookupError:
                break
        elif not _kill_descendants():
            break
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            break
    os._exit(code)


def _kill_descendants() -> bool:
    """Kill whoever came from us; orphans come back to us, so that in the end there is nobody."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    state, parent = file.read().rpartition(b")")[2].split()[:2]
            except OSError:
                continue
            if state != b"Z":
                parents[int(name)] = int(parent)
    ours = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
        ours |= more
    for pid in ours - {os.getpid()}:
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            continue
    return len(ours) > 1


def _prctl(option: int, value: int, pointer: bytes | None = None) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), pointer, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _call(number: int, *arguments: int | bytes | None) -> int:
    result = int(_libc.syscall(ctypes.c_long(number), *arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def _fail(why: str) -> NoReturn:
    os.write(2, f"sandbox failed: {why}\n".encode())
    os._exit(FAILED)


if __name__ == "__main__":
    main()
