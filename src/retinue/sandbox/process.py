"""A process that is watched from its start to the end of everything it started."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from retinue.domain.reach import Reach
from retinue.errors import ToolFailure, WorkspaceError
from retinue.ports import Completed
from retinue.sandbox.output import CappedOutput

# For a process in the background that keeps the output open after the shell is gone.
_LINGER_S = 0.5
_KILL_S = 5.0
_CHUNK_BYTES = 65_536
# Of Linux, for one argument: 32 pages, less the byte that ends it.
_MAX_COMMAND_BYTES = 131_071

Kill = Callable[[int], None]
"""Ends a process, given its number, and all that it has started."""


def check(command: str, reach: Reach) -> None:
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


def holding(held: contextlib.ExitStack, data: bytes) -> int:
    """A descriptor to read `data` from, until `held` ends."""
    fd = os.memfd_create("retinue", os.MFD_CLOEXEC)
    held.callback(os.close, fd)
    os.write(fd, data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def nothing_left(_: int) -> None:
    """For what takes everything along when it ends."""


async def run_process(
    argv: Sequence[str],
    *,
    directory: str,
    environment: Mapping[str, str],
    kill: Kill,
    sweep: Kill = nothing_left,
    timeout_s: float,
    max_output_bytes: int,
    pass_fds: Sequence[int] = (),
) -> Completed:
    """Run a program to its end, or to its time limit. Nothing that it starts outlives this call.

    `kill` ends it while it runs; `sweep` ends what it may have left behind.
    """
    output = CappedOutput(max_output_bytes)
    read_fd, write_fd = os.pipe()
    try:
        try:
            starting = _start(argv, directory, environment, write_fd, pass_fds)
            process = await _started(starting, kill)
        finally:
            os.close(write_fd)
        return await _finish(process, read_fd, output, timeout_s, kill, sweep)
    finally:
        os.close(read_fd)


async def _start(
    argv: Sequence[str],
    directory: str,
    environment: Mapping[str, str],
    write_fd: int,
    pass_fds: Sequence[int],
) -> asyncio.subprocess.Process:
    try:
        # Our own pipe: with asyncio's, waiting for the exit can mean waiting for its end.
        return await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=write_fd,
            stderr=write_fd,
            cwd=directory,
            env=dict(environment),
            start_new_session=True,
            pass_fds=pass_fds,
        )
    except OSError as error:
        raise WorkspaceError(f"No command can be run in {directory}: {error.strerror}.") from error


async def _started(
    starting: Coroutine[Any, Any, asyncio.subprocess.Process], kill: Kill
) -> asyncio.subprocess.Process:
    """Start a process; if cancelled meanwhile, see it started and killed.

    asyncio, cancelled while it starts a shell, kills the shell and not what that has started.
    """
    task = asyncio.ensure_future(starting)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    process = task.result()
    if cancelled is not None:
        kill(process.pid)
        await _reaped(process)
        raise cancelled
    return process


async def _finish(
    process: asyncio.subprocess.Process,
    read_fd: int,
    output: CappedOutput,
    timeout_s: float,
    kill: Kill,
    sweep: Kill,
) -> Completed:
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
                await process.wait()
        except TimeoutError:
            timed_out = True
        finally:
            # Its children too: nothing that a command starts outlives it.
            if process.returncode is None:
                kill(process.pid)
                await _reaped(process)
            sweep(process.pid)
        try:
            async with asyncio.timeout(_LINGER_S):
                await ended.wait()
        except TimeoutError:
            pass
    finally:
        loop.remove_reader(read_fd)
    code = process.returncode
    return Completed(
        exit_code=-signal.SIGKILL if code is None else code,
        output=output.text(),
        truncated_bytes=output.truncated_bytes,
        timed_out=timed_out,
    )


async def _reaped(process: asyncio.subprocess.Process) -> None:
    """Wait for a killed process, even if cancelled, but not for long: it may hang in the kernel."""
    waiting = asyncio.ensure_future(process.wait())
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
