"""No sandbox at all: a plain process. Only for those who asked for it by name."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
from collections.abc import Coroutine, Mapping
from typing import Any

from retinue.errors import ToolFailure, WorkspaceError
from retinue.ports import Completed
from retinue.sandbox.output import CappedOutput

# For a process in the background that keeps the output open after the shell is gone.
_LINGER_S = 0.5
_KILL_S = 5.0
_CHUNK_BYTES = 65_536


class Unconfined:
    """Runs commands as the user, who can do everything.

    A command is a session of its own and is killed as a group when it ends, times out or is
    cancelled; a process that leaves the group (setsid) is out of reach in this tier.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        """`environment` is all that commands get to see."""
        self._environment = dict(environment)

    @property
    def tier(self) -> str:
        return "none"

    async def run(
        self, command: str, *, directory: str, timeout_s: float, max_output_bytes: int
    ) -> Completed:
        """Run a shell command. A non-zero exit is a result, never an exception."""
        output = CappedOutput(max_output_bytes)
        read_fd, write_fd = os.pipe()
        try:
            try:
                process = await _started(self._start(command, directory, write_fd))
            finally:
                os.close(write_fd)
            return await _finish(process, read_fd, output, timeout_s)
        finally:
            os.close(read_fd)

    async def _start(
        self, command: str, directory: str, write_fd: int
    ) -> asyncio.subprocess.Process:
        try:
            # Our own pipe: with asyncio's, waiting for the exit can mean waiting for its end.
            return await asyncio.create_subprocess_exec(
                "/bin/sh",
                "-c",
                command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=write_fd,
                stderr=write_fd,
                cwd=directory,
                env=self._environment,
                start_new_session=True,
            )
        except ValueError:
            raise ToolFailure("The command holds a NUL, which no command can.") from None
        except OSError as error:
            if error.errno == errno.E2BIG:
                raise ToolFailure(
                    "The command is too long; write it to a file and run that."
                ) from None
            raise WorkspaceError(
                f"No command can be run in {directory}: {error.strerror}."
            ) from error


async def _started(
    starting: Coroutine[Any, Any, asyncio.subprocess.Process],
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
        _kill_group(process.pid)
        await _reaped(process)
        raise cancelled
    return process


async def _finish(
    process: asyncio.subprocess.Process, read_fd: int, output: CappedOutput, timeout_s: float
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
            _kill_group(process.pid)
            if process.returncode is None:
                await _reaped(process)
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


def _kill_group(pid: int) -> None:
    # All gone, or only zombies left (which macOS reports as a lack of permission).
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


async def _reaped(process: asyncio.subprocess.Process) -> None:
    """Wait for a killed process, even if cancelled, but not for long: it may hang in the kernel."""
    waiting = asyncio.ensure_future(process.wait())
    deadline = asyncio.get_running_loop().time() + _KILL_S
    try:
        while not waiting.done():
            left_s = deadline - asyncio.get_running_loop().time()
            if left_s <= 0:
                break
            try:
                await asyncio.wait([waiting], timeout=left_s)
            except asyncio.CancelledError:
                # The one that brought us here is raised when this is done.
                continue
    finally:
        waiting.cancel()
