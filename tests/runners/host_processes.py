"""The host processes that the process of the tests has started."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path


def host_pids(owner: int | None = None) -> list[int]:
    """The host processes that `owner` has started, by default this process."""
    found = []
    for name in os.listdir("/proc"):
        with suppress(OSError, ValueError, IndexError):
            stat = Path(f"/proc/{name}/stat").read_bytes().rpartition(b")")[2].split()
            command = Path(f"/proc/{name}/cmdline").read_bytes()
            if (
                int(stat[1]) == (owner or os.getpid())
                and stat[0] != b"Z"
                and b"host_program" in command
            ):
                found.append(int(name))
    return sorted(found)


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


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
