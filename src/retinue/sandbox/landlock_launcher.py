"""Runs one command confined by Landlock and seccomp, and kills all of its processes at the end.

A program of its own: `python -I -S landlock_launcher.py REQUEST_FD FAILURE_FD`. A process can give
up rights only for itself and its children, and the main process must keep its own. It needs version
6 of Landlock.

It is started for each command, so it imports nothing of retinue and little else: `json`, `signal`
and `typing`, with their own imports, would take longer than everything else together.
"""

from __future__ import annotations

import ctypes
import marshal
import os
import resource
import struct
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from typing import Any, NoReturn
else:
    import _signal as signal

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long

# linux/prctl.h
_PDEATHSIG, _CAPBSET_DROP, _NO_NEW_PRIVS, _SUBREAPER, _SECCOMP = 1, 24, 38, 36, 22
_SECCOMP_FILTER = 2
_AMBIENT, _AMBIENT_CLEAR_ALL = 47, 4
_CAPSET = {"x86_64": 126, "aarch64": 91}
# linux/landlock.h; the numbers are the same on all machines.
_CREATE, _ADD, _RESTRICT = 444, 445, 446
_PATH_BENEATH = 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_MAKING_AND_REMOVING = 0x1FF0
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_READING = _EXECUTE | _READ_FILE | _READ_DIR
_OF_A_FILE = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_BIND_TCP, _CONNECT_TCP = 1, 2
_ABSTRACT_SOCKETS, _SIGNALS = 1, 2

_FAILED = 125


def main() -> NoReturn:
    os.set_inheritable(_failure_fd(), False)
    try:
        # Not on the command line, which every user of the machine can read.
        with open(int(sys.argv[1]), "rb") as file:
            request = marshal.load(file)
        _become_supervisor(request["parent"])
        child = os.fork()
    except OSError as error:
        _fail(f"{error.strerror}")
    if child == 0:
        _exec_command(request)
    _wait_for_command(child)


def _become_supervisor(parent: int) -> None:
    """Restrict this process so that it can signal the command and no other process."""
    _prctl(_SUBREAPER, 1)
    _prctl(_NO_NEW_PRIVS, 1)
    _drop_capabilities()
    _restrict(_ruleset(files=0, network=0, scoped=_SIGNALS))
    _check_signals_blocked(parent)
    # Only after the check: the handler kills every process that this one may signal.
    signal.signal(signal.SIGTERM, lambda *_: _kill_all_and_exit())
    # When the parent dies, this process gets SIGTERM, and kills the command.
    _prctl(_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(_FAILED)


def _exec_command(request: dict[str, Any]) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    filter = request["filter"]
    code = ctypes.create_string_buffer(filter, len(filter))
    program = struct.pack("@HxxxxxxP", len(filter) // 8, ctypes.addressof(code))
    try:
        os.setsid()
        _set_limits(request["limits"])
        # A Landlock domain inside the supervisor's: the command cannot signal the supervisor.
        _restrict_files_and_network(request)
        _prctl(_SECCOMP, _SECCOMP_FILTER, program)
        os.chdir(request["directory"])
        os.execve("/bin/sh", ["/bin/sh", "-c", request["command"]], request["environment"])
    except OSError as error:
        _fail(f"{error.strerror}")


def _set_limits(limits: dict[str, int]) -> None:
    # When memory runs out, the kernel kills this first, not the user's own programs.
    with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")
    for name, value in limits.items():
        kind = getattr(resource, name)
        _, hard = resource.getrlimit(kind)
        most = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (most, most))


def _drop_capabilities() -> None:
    for number in range(64):
        # Fails for numbers that do not exist, and for a process without capabilities: both fine.
        _libc.prctl(_CAPBSET_DROP, number, 0, 0, 0)
    _libc.prctl(_AMBIENT, _AMBIENT_CLEAR_ALL, 0, 0, 0)
    header, nothing = struct.pack("=Ii", 0x20080522, 0), bytes(24)
    _call(_CAPSET[os.uname().machine], header, nothing)


def _restrict_files_and_network(request: dict[str, Any]) -> None:
    files = _READING | _WRITE_FILE | _MAKING_AND_REMOVING | _REFER | _TRUNCATE | _IOCTL_DEV
    network = 0 if request["network"] else _BIND_TCP | _CONNECT_TCP
    ruleset = _ruleset(files=files, network=network, scoped=_ABSTRACT_SOCKETS | _SIGNALS)
    for path in request["list"]:
        _allow(ruleset, path, _READ_DIR)
    for path in request["read"]:
        _allow(ruleset, path, _READING)
    for path in request["devices"]:
        _allow(ruleset, path, _READ_FILE | _WRITE_FILE | _TRUNCATE | _IOCTL_DEV)
    for path in request["write"]:
        _allow(ruleset, path, files)
    _restrict(ruleset)


def _ruleset(*, files: int, network: int, scoped: int) -> int:
    attributes = struct.pack("=3Q", files, network, scoped)
    return _call(_CREATE, attributes, len(attributes), 0)


def _restrict(ruleset: int) -> None:
    _call(_RESTRICT, ruleset, 0)
    os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        # Without following a link, which may have been created since the path was checked.
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        if not os.path.isdir(f"/proc/self/fd/{fd}"):
            rights &= _OF_A_FILE
        _call(_ADD, ruleset, _PATH_BENEATH, struct.pack("=Qi", rights, fd), 0)
    finally:
        os.close(fd)


def _check_signals_blocked(pid: int) -> None:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return
    except ProcessLookupError:
        os._exit(_FAILED)
    _fail("signals reach the outside")


def _wait_for_command(child: int) -> NoReturn:
    while True:
        try:
            pid, status = os.wait()
        except ChildProcessError:
            _fail("the command was lost")
        if pid == child:
            break
    code = os.waitstatus_to_exitcode(status)
    _kill_all_and_exit(code if code >= 0 else 128 - code)


def _kill_all_and_exit(code: int = 128 + signal.SIGKILL) -> NoReturn:
    """Kill every process that is left of the command, and exit.

    Only after `_check_signals_blocked`: it kills every process that it may signal.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        try:
            # All that we may signal, which is the command. Orphans become our children.
            os.kill(-1, signal.SIGKILL)
            os.waitpid(-1, 0)
        except (ChildProcessError, ProcessLookupError):
            os._exit(code)


def _prctl(option: int, value: int, pointer: bytes | None = None) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), pointer, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _call(number: int, *arguments: int | bytes | None) -> int:
    result = int(_libc.syscall(ctypes.c_long(number), *arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def _fail(why: str) -> NoReturn:
    # Not on the output, where a command could print the same.
    os.write(_failure_fd(), why.encode())
    os._exit(_FAILED)


def _failure_fd() -> int:
    return int(sys.argv[2])


if __name__ == "__main__":
    main()
