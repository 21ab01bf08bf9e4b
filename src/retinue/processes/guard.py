"""Runs one command and leaves nothing of it behind. A program of its own: `python guard.py CMD…`.

It stands between retinue and a server. When the server ends, or retinue ends in whatever way
(kill -9 included), everything that the server has started is killed, daemons included: on Linux
they become children of the guard when their parents die. Only the standard library, for it must
start in no time; and nothing is imported from retinue.
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
"""For a server whose input was closed to end by itself."""
KILL_S = 2.0
NOT_FOUND = 127
_LOOK_MS = 20

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
        _become(argv)
    # Its end must be seen by who reads them, so nobody else may hold them open.
    for fd in (1, 2):
        os.close(fd)
    return _watch(child, parent, wake)


def _become(argv: list[str]) -> None:
    """Replace this process by the command; it dies with the guard."""
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


def _watch(child: int, parent: int, wake: int) -> int:
    """Wait for the end of the server, or for a reason to end it; its exit code."""
    poll = select.poll()
    # Asking for no event still tells of a hang-up: that nobody can write to the server any more.
    poll.register(0, 0)
    poll.register(wake, select.POLLIN)
    deadline: float | None = None
    while True:
        happened = dict(poll.poll(None if deadline is None else _LOOK_MS))
        asked = os.read(wake, 512) if wake in happened else b""
        code = _reaped(child)
        if code is not None or any(number != signal.SIGCHLD for number in asked):
            break
        if 0 in happened:
            poll.unregister(0)
            deadline = time.monotonic() + GRACE_S
        # Who dies closes its files first, and is gone a little later.
        if deadline is not None and (time.monotonic() >= deadline or os.getppid() != parent):
            break
    _kill_all(child)
    return 128 + signal.SIGKILL if code is None else code


def _reaped(child: int) -> int | None:
    """Bury whoever has died; the exit code of `child` if it is among them."""
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
    """Kill until nobody is left; those who fork meanwhile are found in the next round."""
    deadline = time.monotonic() + KILL_S
    while time.monotonic() < deadline:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child, signal.SIGKILL)
        below = _descendants(os.getpid())
        for pid in below:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        _reaped(child)
        if not below:
            return
        time.sleep(0.002)


def _descendants(of: int) -> list[int]:
    """All processes below `of` that are not dead; none where there is no /proc."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc") if sys.platform == "linux" else ():
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as stat:
                # The name in brackets may hold anything, brackets too.
                fields = stat.read().rpartition(b")")[2].split()
        except OSError:
            continue
        if fields[0] != b"Z":
            children.setdefault(int(fields[1]), []).append(int(name))
    found, waiting = [], [of]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def _prctl(option: int, value: int) -> None:
    """Linux only; elsewhere processes that leave their group are out of reach."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
