"""Starts a child process, watches it, and makes sure that it ends with the code that started it.

Sandboxed commands, MCP servers, the embedded model and its installer all start their processes
here. They differ in how a whole process tree is killed, so the caller passes that in as `kill`:

- bubblewrap: killing its process ends the pid namespace, and with it every process inside;
- Landlock: a supervisor process kills all that it may signal, which is the command;
- MCP servers: `guard` stands in front of the server and finds its descendants in /proc;
- everything else: the process group, which a process that calls setsid can leave.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import msgspec

from retinue.processes.capped_output import CappedOutput

KILL_S = 5.0
"""Time for a killed process to disappear; it may hang in the kernel."""
MONITOR_S = 0.25
LINGER_S = 0.5
"""Time for a background process that keeps the output open after the main one has ended."""
_CHUNK_BYTES = 65_536

Kill = Callable[[int], None]
"""Kills the process with this pid, and everything that it has started."""

Monitor = Callable[[], None]
"""Called at intervals while a process runs. If it raises, the process is killed."""

Starter = Callable[[Callable[[], "subprocess.Popen[bytes]"]], "subprocess.Popen[bytes]"]
"""Calls the given function, which starts the process, in a thread of its choice."""


def kill_group(pid: int) -> None:
    """Kill a process that leads a process group, and its group."""
    # Already gone, or only zombies are left (which macOS reports as a lack of permission).
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def is_stopped(pid: str) -> bool:
    """Whether a process is stopped (Ctrl-Z). False on systems without /proc."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2][:1] in b"Tt"
    except OSError:
        return False


def start_here(start: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
    """Start the process in the calling thread."""
    return start()


class ProcessSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A process to start. `kill_leftovers` kills processes that it leaves when it ends."""

    argv: Sequence[str]
    environment: Mapping[str, str]
    directory: str | None = None
    stdin: int = subprocess.DEVNULL
    pass_fds: Sequence[int] = ()
    kill: Kill = kill_group
    kill_leftovers: Kill | None = None
    start_process: Starter = start_here


class ProcessResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a process ended. A non-zero exit is a result."""

    exit_code: int
    output: str
    errors: str = ""
    """Standard error, if it was captured apart from standard output."""
    truncated_bytes: int = 0
    timed_out: bool = False


class ChildProcess:
    """A running process. Made by `child_process`."""

    def __init__(self, process: subprocess.Popen[bytes], exited: asyncio.Event) -> None:
        self.process = process
        self.exited = exited
        """Set when the process has ended and was reaped."""

    @property
    def exit_code(self) -> int | None:
        return self.process.returncode

    async def wait(self, *, monitors: Sequence[Monitor] = (), every_s: float = MONITOR_S) -> None:
        """Wait until the process has ended. Each of `monitors` is called every `every_s`."""
        while not self.exited.is_set():
            try:
                async with asyncio.timeout(every_s if monitors else None):
                    await self.exited.wait()
            except TimeoutError:
                for monitor in monitors:
                    monitor()


@asynccontextmanager
async def child_process(
    spec: ProcessSpec, *, stdout: int, stderr: int
) -> AsyncIterator[ChildProcess]:
    """Run a process in a session of its own. OSError if it cannot be started.

    At the end of the block a process that still runs is killed and waited for, even while the
    caller is being cancelled.
    """
    # Not asyncio's subprocess: that takes a thread for each process, waits for its pipes to close,
    # and loses a process whose start is cancelled.
    process = spec.start_process(
        lambda: subprocess.Popen(
            spec.argv,
            stdin=spec.stdin,
            stdout=stdout,
            stderr=stderr,
            cwd=spec.directory,
            env=dict(spec.environment),
            start_new_session=True,
            pass_fds=spec.pass_fds,
        )
    )
    with _watch_exit(process) as exited:
        try:
            yield ChildProcess(process, exited)
        finally:
            if not exited.is_set():
                spec.kill(process.pid)
                if not await finish_within(exited.wait(), KILL_S):
                    process.kill()
            if spec.kill_leftovers is not None:
                spec.kill_leftovers(process.pid)


async def run_process(
    spec: ProcessSpec,
    *,
    timeout_s: float | None,
    max_output_bytes: int,
    errors_apart: bool = False,
    monitors: Sequence[Monitor] = (),
    monitor_every_s: float = MONITOR_S,
) -> ProcessResult:
    """Run a program until it ends or `timeout_s` is over. No process of it outlives this call.

    Standard output and standard error are captured together, unless `errors_apart`.
    """
    output, errors = CappedOutput(max_output_bytes), CappedOutput(max_output_bytes)
    timed_out = False
    with contextlib.ExitStack() as pipes:
        pipe = error_pipe = pipes.enter_context(OutputPipe(output.feed))
        if errors_apart:
            error_pipe = pipes.enter_context(OutputPipe(errors.feed))
        async with child_process(spec, stdout=pipe.write_fd, stderr=error_pipe.write_fd) as child:
            pipe.close_write_end()
            error_pipe.close_write_end()
            try:
                async with asyncio.timeout(timeout_s):
                    await child.wait(monitors=monitors, every_s=monitor_every_s)
            except TimeoutError:
                timed_out = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_S):
                await pipe.ended.wait()
                await error_pipe.ended.wait()
    code = child.exit_code
    return ProcessResult(
        exit_code=-signal.SIGKILL if code is None else code,
        output=output.text(),
        errors=errors.text(),
        truncated_bytes=output.truncated_bytes,
        timed_out=timed_out,
    )


class OutputPipe:
    """A pipe that a child process writes to; the event loop passes its data to `feed`."""

    def __init__(self, feed: Callable[[bytes], object]) -> None:
        self._feed = feed
        self._loop = asyncio.get_running_loop()
        self.ended = asyncio.Event()
        """Set when every process has closed its write end."""

    def __enter__(self) -> OutputPipe:
        self._read_fd, self.write_fd = os.pipe()
        self._write_end_open = True
        os.set_blocking(self._read_fd, False)
        self._loop.add_reader(self._read_fd, self._read)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.remove_reader(self._read_fd)
        os.close(self._read_fd)
        self.close_write_end()

    async def drained(self, seconds: float) -> None:
        """Wait until the pipe has ended, but not longer: a background process may keep it open."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.ended.wait()

    def close_write_end(self) -> None:
        """Close our own copy of the write end; without that the pipe never ends."""
        if self._write_end_open:
            self._write_end_open = False
            os.close(self.write_fd)

    def _read(self) -> None:
        try:
            data = os.read(self._read_fd, _CHUNK_BYTES)
        except BlockingIOError:
            return
        if data:
            self._feed(data)
        else:
            self._loop.remove_reader(self._read_fd)
            self.ended.set()


async def finish_within(work: Coroutine[Any, Any, object], seconds: float) -> bool:
    """Wait for `work` at most `seconds`, even while being cancelled; whether it has finished.

    A cancellation that arrives meanwhile is dropped: the one that led here is raised afterwards.
    """
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)
    deadline = loop.time() + seconds
    try:
        while not task.done() and (left_s := deadline - loop.time()) > 0:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([task], timeout=left_s)
        return task.done()
    finally:
        task.cancel()


@contextmanager
def _watch_exit(process: subprocess.Popen[bytes]) -> Iterator[asyncio.Event]:
    """The event is set when the process has ended and was reaped."""
    loop = asyncio.get_running_loop()
    exited = asyncio.Event()
    try:
        fd = os.pidfd_open(process.pid)
    except (AttributeError, OSError):  # Not on this system, or not in this container.

        def wait() -> None:
            process.wait()
            with contextlib.suppress(RuntimeError):  # The loop may be closed.
                loop.call_soon_threadsafe(exited.set)

        threading.Thread(target=wait, daemon=True).start()
        yield exited
        return

    def reap() -> None:
        process.wait()
        loop.remove_reader(fd)
        exited.set()

    loop.add_reader(fd, reap)
    try:
        yield exited
    finally:
        loop.remove_reader(fd)
        os.close(fd)
