"""A process that is watched from its start to the end of everything it started."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any

from retinue.domain.reach import Reach
from retinue.errors import ToolFailure, WorkspaceError
from retinue.ports.sandbox import CommandResult
from retinue.sandbox.capped_output import CappedOutput

# For a process in the background that keeps the output open after the shell is gone.
_LINGER_S = 0.5
_KILL_S = 5.0
_CHUNK_BYTES = 65_536
_LOOK_S = 0.25
# Of bytes and of files, what is always left to others.
_RESERVES = (1024**3, 100_000)
# Of Linux, for one argument: 32 pages, less the byte that ends it.
_MAX_COMMAND_BYTES = 131_071

KillFunction = Callable[[int], None]
"""Ends a process, given its number, and all that it has started."""

Monitor = Callable[[], None]
"""Looked at now and then while a process runs; raises WorkspaceError to end it."""

Starter = Callable[[Callable[[], "subprocess.Popen[bytes]"]], "subprocess.Popen[bytes]"]
"""Starts a process by the function it is given, where the process is to be born."""


def check_command(command: str, reach: Reach) -> None:
    """Raise ToolFailure for what no shell can be given, WorkspaceError for where none can be."""
    try:
        os.close(os.open(reach.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    except OSError as error:
        raise WorkspaceError(f"No command can be run in {reach.root}: {error.strerror}.") from error
    if "\0" in command:
        raise ToolFailure("The command holds a NUL, which no command can.")
    try:
        size = len(command.encode())
    except UnicodeEncodeError:
        raise ToolFailure(
            "The command is not valid Unicode: it has half a surrogate pair."
        ) from None
    if size > _MAX_COMMAND_BYTES:
        raise ToolFailure("The command is too long; write it to a file and run that.")


def memory_file(held: contextlib.ExitStack | contextlib.AsyncExitStack, data: bytes) -> int:
    """A descriptor to read `data` from, until `held` ends."""
    fd = os.memfd_create("retinue", os.MFD_CLOEXEC)
    held.callback(os.close, fd)
    os.write(fd, data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


class DiskMonitor:
    """The room that was left when a command began: its files are limited in size, not number."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._least = tuple(
            min(most, total // 20, free // 2)
            for most, (total, free) in zip(_RESERVES, self._room(), strict=True)
        )

    def check(self) -> None:
        """Raise WorkspaceError when hardly any is left."""
        left = (free for _, free in self._room())
        if any(free < least for free, least in zip(left, self._least, strict=True)):
            raise WorkspaceError(
                f"The command was ended: the disk that {self._path} is on is all but full."
            )

    def _room(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Of bytes and of files, how many there can be and how many more."""
        try:
            found = os.statvfs(self._path)
        except OSError:
            return (0, 0), (0, 0)
        size = found.f_frsize
        return (size * found.f_blocks, size * found.f_bavail), (found.f_files, found.f_favail)


def no_sweep(_: int) -> None:
    """For what takes everything along when it ends."""


def start_here(start: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
    """For what is born where it is asked for."""
    return start()


async def run_process(
    argv: Sequence[str],
    *,
    directory: str,
    environment: Mapping[str, str],
    kill: KillFunction,
    sweep: KillFunction = no_sweep,
    timeout_s: float,
    max_output_bytes: int,
    stdin: int = subprocess.DEVNULL,
    pass_fds: Sequence[int] = (),
    start_process: Starter = start_here,
    monitors: Sequence[Monitor] = (),
) -> CommandResult:
    """Run a program to its end, or to its time limit. Nothing that it starts outlives this call.

    `kill` ends it while it runs; `sweep` ends what it may have left behind. WorkspaceError if one
    of `monitors` had it ended.
    """
    read_fd, write_fd = os.pipe()
    try:
        try:
            # Not asyncio's: that has a thread for each process, and pipes which it waits for.
            process = start_process(
                lambda: subprocess.Popen(
                    argv,
                    stdin=stdin,
                    stdout=write_fd,
                    stderr=write_fd,
                    cwd=directory,
                    env=dict(environment),
                    start_new_session=True,
                    pass_fds=pass_fds,
                )
            )
        except OSError as error:
            why = f"No command can be run in {directory}: {error.strerror}."
            raise WorkspaceError(why) from error
        finally:
            os.close(write_fd)
        with _exit_of(process) as gone:
            output = CappedOutput(max_output_bytes)
            waiting = _end_of(gone, monitors)
            return await _finish(process, gone, waiting, read_fd, output, timeout_s, kill, sweep)
    finally:
        os.close(read_fd)


@contextlib.contextmanager
def _exit_of(process: subprocess.Popen[bytes]) -> Iterator[asyncio.Event]:
    """Set when the process has ended, and been waited for."""
    loop = asyncio.get_running_loop()
    gone = asyncio.Event()
    try:
        fd = os.pidfd_open(process.pid)
    except (AttributeError, OSError):  # Not on this system, or not in this container.

        def wait() -> None:
            process.wait()
            with contextlib.suppress(RuntimeError):  # The loop may be closed by then.
                loop.call_soon_threadsafe(gone.set)

        threading.Thread(target=wait, daemon=True).start()
        yield gone
        return

    def reap() -> None:
        process.wait()
        loop.remove_reader(fd)
        gone.set()

    loop.add_reader(fd, reap)
    try:
        yield gone
    finally:
        loop.remove_reader(fd)
        os.close(fd)


async def _end_of(gone: asyncio.Event, monitors: Sequence[Monitor]) -> None:
    while not gone.is_set():
        try:
            async with asyncio.timeout(_LOOK_S if monitors else None):
                await gone.wait()
        except TimeoutError:
            for look in monitors:
                look()


async def _finish(
    process: subprocess.Popen[bytes],
    gone: asyncio.Event,
    waiting: Coroutine[Any, Any, None],
    read_fd: int,
    output: CappedOutput,
    timeout_s: float,
    kill: KillFunction,
    sweep: KillFunction,
) -> CommandResult:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()

    def take() -> None:
        try:
            data = os.read(read_fd, _CHUNK_BYTES)
        except BlockingIOError:
            return
        if data:
            output.feed(data)
        else:
            loop.remove_reader(read_fd)
            ended.set()

    os.set_blocking(read_fd, False)
    loop.add_reader(read_fd, take)
    timed_out = False
    try:
        try:
            async with asyncio.timeout(timeout_s):
                await waiting
        except TimeoutError:
            timed_out = True
        finally:
            # Its children too: nothing that a command starts outlives it.
            if not gone.is_set():
                kill(process.pid)
                await _reaped(process, gone)
            sweep(process.pid)
        try:
            async with asyncio.timeout(_LINGER_S):
                await ended.wait()
        except TimeoutError:
            pass
    finally:
        loop.remove_reader(read_fd)
    code = process.returncode
    return CommandResult(
        exit_code=-signal.SIGKILL if code is None else code,
        output=output.text(),
        truncated_bytes=output.truncated_bytes,
        timed_out=timed_out,
    )


async def _reaped(process: subprocess.Popen[bytes], gone: asyncio.Event) -> None:
    """Wait for a killed process, even if cancelled, but not for long: it may hang in the kernel."""
    waiting = asyncio.ensure_future(gone.wait())
    deadline = asyncio.get_running_loop().time() + _KILL_S
    try:
        while not waiting.done():
            left_s = deadline - asyncio.get_running_loop().time()
            if left_s <= 0:
                process.kill()
                break
            try:
                await asyncio.wait([waiting], timeout=left_s)
            except asyncio.CancelledError:
                # The one that brought us here is raised when this is done.
                continue
    finally:
        waiting.cancel()
