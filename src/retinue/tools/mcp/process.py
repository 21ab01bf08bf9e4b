"""The process of a server: lines in, lines out, its complaints in a log, and nothing left of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import stat
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from retinue.domain.mcp_server import McpServerSpec
from retinue.tools.mcp.errors import ServerUnavailable
from retinue.tools.mcp.guard import GRACE_S, KILL_S

MAX_LINE_BYTES = 16 * 1024 * 1024
MAX_LOG_BYTES = 1024 * 1024
_TOLD_CHARS = 300
_CHUNK_BYTES = 65_536
_GUARD = Path(__file__).with_name("guard.py")


class Log:
    """What a server complains of, in a file of the project's state. No more than MAX_LOG_BYTES."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._last = b""
        self._fd: int | None = None
        self._left = MAX_LOG_BYTES

    def __enter__(self) -> Log:
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(exist_ok=True)
            # A project that somebody cloned could have this written anywhere by links.
            if not self.path.parent.is_symlink():
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
                self._fd = os.open(self.path, flags | os.O_CLOEXEC, 0o600)
                self._make_room(self._fd)
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def write(self, data: bytes) -> None:
        self._last = (self._last + data)[-4 * _TOLD_CHARS :]
        kept, self._left = data[: self._left], self._left - len(data)
        if self._fd is not None and kept:
            with contextlib.suppress(OSError):
                os.write(self._fd, kept)

    @property
    def last_words(self) -> str:
        """The last line of it, for people to read."""
        lines = self._last.decode("utf-8", "replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return "".join(letter for letter in last if letter.isprintable())[:_TOLD_CHARS]

    def _make_room(self, fd: int) -> None:
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode):
            self.__exit__()
        elif about.st_size > MAX_LOG_BYTES:
            os.ftruncate(fd, 0)


class Process:
    """A server that runs. Made by `started`."""

    def __init__(self, process: asyncio.subprocess.Process, log: Log) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._in, self._out = process.stdin, process.stdout
        self._log = log

    async def lines(self) -> AsyncIterator[bytes]:
        """What it says, until it ends. Raises Unusable for a line that is too long."""
        while True:
            try:
                line = await self._out.readline()
            except ValueError:
                raise ServerUnavailable(
                    f"sent a line of more than {MAX_LINE_BYTES:,} bytes"
                ) from None
            if not line:
                return
            yield line

    async def write(self, data: bytes) -> None:
        """Say something to it. Nobody may be listening any more, which is seen by its end."""
        with contextlib.suppress(ConnectionError):
            self._in.write(data)
            await self._in.drain()

    async def how_ended(self) -> str:
        """How a process ended whose output has ended."""
        await _finished(self._process.wait(), GRACE_S)
        code, last = self._process.returncode, self._log.last_words
        how = "closed its output" if code is None else f"ended with exit code {code}"
        return f"{how}: {last}" if last else how

    async def end(self) -> None:
        """See it gone, with all that it has started; even while being cancelled."""
        self._in.close()
        # The guard gives it some time, then kills what is left.
        await _finished(self._drained(), GRACE_S + KILL_S)
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await _finished(self._drained(), KILL_S)

    async def _drained(self) -> None:
        """Wait for its end. Who cannot get rid of its output does not end."""
        while await self._out.read(_CHUNK_BYTES):
            pass
        await self._process.wait()


@asynccontextmanager
async def started(server: McpServerSpec, log: Log) -> AsyncIterator[Process]:
    """The process of a server, for as long as this is open. Raises Unusable."""
    read_fd, write_fd = os.pipe()
    loop = asyncio.get_running_loop()
    try:
        try:
            process = Process(await _spawned(server, write_fd), log)
        finally:
            os.close(write_fd)
        os.set_blocking(read_fd, False)
        loop.add_reader(read_fd, _take, read_fd, log)
        try:
            yield process
        finally:
            await process.end()
            loop.remove_reader(read_fd)
    finally:
        os.close(read_fd)


def _take(fd: int, log: Log) -> None:
    try:
        data = os.read(fd, _CHUNK_BYTES)
    except BlockingIOError:
        return
    if data:
        log.write(data)
    else:
        asyncio.get_running_loop().remove_reader(fd)


async def _spawned(server: McpServerSpec, stderr: int) -> asyncio.subprocess.Process:
    command, path = server.command[0], server.environment.get("PATH")
    at = os.path.join(server.directory, command) if os.sep in command else command
    if shutil.which(at, path=path) is None:
        raise ServerUnavailable(f"cannot be started: there is no command {command!r}")
    argv = (sys.executable, "-I", "-S", str(_GUARD), at, *server.command[1:])
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=stderr,
            cwd=server.directory,
            env=dict(server.environment),
            start_new_session=True,
            limit=MAX_LINE_BYTES,
        )
    )
    # Cancelled in the middle, asyncio would leave the process without anybody who knows of it.
    cancelled: asyncio.CancelledError | None = None
    while not starting.done():
        try:
            await asyncio.wait([starting])
        except asyncio.CancelledError as error:
            cancelled = error
    try:
        process = starting.result()
    except (OSError, ValueError) as error:
        raise ServerUnavailable(
            f"cannot be started: {getattr(error, 'strerror', None) or error}"
        ) from None
    if cancelled is not None:
        await Process(process, Log(Path())).end()
        raise cancelled
    return process


async def _finished(work: Coroutine[Any, Any, object], at_most_s: float) -> None:
    """Wait for `work`, even while being cancelled, but not for ever."""
    task = asyncio.ensure_future(work)
    deadline = asyncio.get_running_loop().time() + at_most_s
    try:
        while not task.done():
            left_s = deadline - asyncio.get_running_loop().time()
            if left_s <= 0:
                return
            try:
                await asyncio.wait([task], timeout=left_s)
            except asyncio.CancelledError:
                # Whoever sent it is answered when this is over; it never takes long.
                continue
    finally:
        task.cancel()
