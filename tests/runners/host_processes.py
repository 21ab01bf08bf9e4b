"""The host processes that the process of the tests has started."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path

HOST = b"host_program"


def host_pids(owner: int | None = None) -> list[int]:
    """The host processes that `owner` has started, by default this process."""
    guards = [pid for pid, command in _children(owner or os.getpid()) if HOST in command]
    return sorted(pid for guard in guards for pid, command in _children(guard) if HOST in command)


def _children(parent: int) -> list[tuple[int, bytes]]:
    """The living children of a process, with their command lines."""
    found = []
    for name in os.listdir("/proc"):
        with suppress(OSError, ValueError, IndexError):
            stat = Path(f"/proc/{name}/stat").read_bytes().rpartition(b")")[2].split()
            if int(stat[1]) == parent and stat[0] != b"Z":
                found.append((int(name), Path(f"/proc/{name}/cmdline").read_bytes()))
    return found


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def is_alive(pid: int) -> bool:
    """Whether a process has not ended; a frozen one has not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except OSError:
        return False
    return state != b"Z"


async def ended(pid: int) -> None:
    """Wait until a process has ended, which need not be a child of this one."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(fd, over.set)
    await over.wait()
    loop.remove_reader(fd)
    os.close(fd)
