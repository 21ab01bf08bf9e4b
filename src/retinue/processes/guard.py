"""Runs one command and kills all of its processes at the end: `python guard.py COMMAND…`.

The guard is a process between retinue and a server. When the server ends, or retinue ends (even by
kill -9), the guard kills everything that the server has started, daemons included: on Linux,
orphans become children of the guard. It imports only a few modules of the standard library, to
start fast.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import time
from contextlib import suppress

GRACE_S = 1.0
"""Time for a server to end by itself after its input was closed."""
KILL_S = 2.0
NOT_FOUND = 127
_POLL_MS = 20
_PARENT_MS = 1_000  # how often to see whether the parent is still there

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def main(argv: list[str]) -> int:
    parent = os.getppid()
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    child = os.fork()
    if child == 0:
        _exec_command(argv)
    # Only the server may hold these open, so that readers see when it closes them.
    for fd in (1, 2):
        os.close(fd)
    return _wait(child, parent, wake)


def _exec_command(argv: list[str]) -> None:
    """Replace this process with the command, which dies with the guard."""
    try:
        os.setpgid(0, 0)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        os.execvp(argv[0], argv)
    except OSError as error:
        os.write(2, f"{argv[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(NOT_FOUND)


def _wait(child: int, parent: int, wake: int) -> int:
    """Wait until the server ends or must be ended; returns its exit code."""
    poll = select.poll()
    # Without events, poll still reports a hang-up: no one can write to the server any more.
    poll.register(0, 0)
    poll.register(wake, select.POLLIN)
    deadline: float | None = None
    while True:
        happened = dict(poll.poll(_PARENT_MS if deadline is None else _POLL_MS))
        asked = os.read(wake, 512) if wake in happened else b""
        code = _reap(child)
        if code is not None or any(number != signal.SIGCHLD for number in asked):
            break
        if 0 in happened:
            poll.unregister(0)
            deadline = time.monotonic() + GRACE_S
        # A dying parent closes its files first, and disappears a little later. If another process
        # has copies of the files, only the disappearance is seen.
        if (deadline is not None and time.monotonic() >= deadline) or os.getppid() != parent:
            break
    _kill_all(child)
    return 128 + signal.SIGKILL if code is None else code


def _reap(child: int) -> int | None:
    """Reap all dead children; returns the exit code of `child` if it is among them."""
    found = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if pid == 0:
            return found
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            found = code if code >= 0 else 128 - code


def _kill_all(child: int) -> None:
    """Kill until no process is left; processes that fork meanwhile are found in the next round."""
    deadline = time.monotonic() + KILL_S
    # A process whose parent dies while /proc is read may be missed; the next reading has it.
    empty = 0
    while empty < 2 and time.monotonic() < deadline:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child, signal.SIGKILL)
        below = descendants(os.getpid())
        for pid in below:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        _reap(child)
        empty = 0 if below else empty + 1
        time.sleep(0.002)


def descendants(of: int) -> list[int]:
    """All living descendants of `of`; none where there is no /proc."""
    children: dict[int, list[int]] = {}
    zombies: set[int] = set()
    for name in os.listdir("/proc") if sys.platform == "linux" else ():
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as stat:
                # The name in parentheses may contain anything, parentheses too.
                fields = stat.read().rpartition(b")")[2].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(name))
        if fields[0] == b"Z":
            zombies.add(int(name))
    found, pending = [], [of]
    while pending:
        below = children.get(pending.pop(), [])
        found += [pid for pid in below if pid not in zombies]
        # A killed process is a zombie once its first thread has ended, and keeps its children until
        # the last one has.
        pending += below
    return found


def _prctl(option: int, value: int) -> None:
    """Linux only; elsewhere, processes that leave their group survive."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
