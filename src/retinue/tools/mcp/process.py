"""Process of an MCP server: lines in and out, its errors in a log file."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from retinue.domain.grant import Access, Network
from retinue.domain.mcp_server import McpServerSpec
from retinue.domain.scope import NOWHERE
from retinue.errors import WorkspaceError
from retinue.ports.sandbox import ProcessSandbox
from retinue.processes import guard
from retinue.processes.child import (
    ChildProcess,
    OutputPipe,
    ProcessSpec,
    child_process,
    finish_within,
)
from retinue.tools.mcp.errors import ServerUnavailable

MAX_LINE_BYTES = 16 * 1024 * 1024
MAX_LOG_BYTES = 1024 * 1024
_LAST_LINE_CHARS = 300
_CHUNK_BYTES = 65_536


class ServerLog:
    """The error output of a server, in a file of at most MAX_LOG_BYTES."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._last = b""
        self._fd: int | None = None
        self._left = MAX_LOG_BYTES

    def __enter__(self) -> ServerLog:
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(exist_ok=True)
            # A link in a cloned project could make us write anywhere.
            if not self.path.parent.is_symlink():
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
                self._fd = os.open(self.path, flags | os.O_CLOEXEC, 0o600)
                about = os.fstat(self._fd)
                if not stat.S_ISREG(about.st_mode):
                    self.__exit__()
                elif about.st_size > MAX_LOG_BYTES:
                    os.ftruncate(self._fd, 0)
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def write(self, data: bytes) -> None:
        self._last = (self._last + data)[-4 * _LAST_LINE_CHARS :]
        kept, self._left = data[: self._left], self._left - len(data)
        if self._fd is not None and kept:
            with contextlib.suppress(OSError):
                os.write(self._fd, kept)

    @property
    def last_line(self) -> str:
        """The last line of the error output, printable and shortened."""
        lines = self._last.decode("utf-8", "replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return "".join(letter for letter in last if letter.isprintable())[:_LAST_LINE_CHARS]


class ServerProcess:
    """A running server. Made by `ServerStarter.start`."""

    def __init__(
        self,
        child: ChildProcess,
        stdin: asyncio.StreamWriter,
        stdout: asyncio.StreamReader,
        log: ServerLog,
    ) -> None:
        self._child = child
        self._stdin = stdin
        self._stdout = stdout
        self._log = log

    async def lines(self) -> AsyncIterator[bytes]:
        """Lines of its output, until it ends. Raises ServerUnavailable if one is too long."""
        while True:
            try:
                line = await self._stdout.readline()
            except ValueError:
                raise ServerUnavailable(
                    f"sent a line of more than {MAX_LINE_BYTES:,} bytes"
                ) from None
            if not line:
                return
            yield line

    async def write(self, data: bytes) -> None:
        """Send `data` to its input. A server that reads no more is noticed by its end."""
        with contextlib.suppress(ConnectionError):
            self._stdin.write(data)
            await self._stdin.drain()

    async def how_ended(self) -> str:
        """How a server ended whose output has ended."""
        await finish_within(self._child.wait(), guard.GRACE_S)
        code, last = self._child.exit_code, self._log.last_line
        how = "closed its output" if code is None else f"ended with exit code {code}"
        return f"{how}: {last}" if last else how

    async def drain(self) -> None:
        """Wait for the server's end, and read its output: with a full pipe it would not end."""
        while await self._stdout.read(_CHUNK_BYTES):
            pass
        await self._child.wait()


class ServerStarter(msgspec.Struct, frozen=True, kw_only=True):
    """Starts the MCP servers of a project, in its sandbox and after a check of their code."""

    project: str = "."
    sandbox: ProcessSandbox | None = None
    is_changed: Callable[[McpServerSpec], bool] = lambda _: False
    """Whether the user has not trusted the code that would run."""

    @asynccontextmanager
    async def start(self, server: McpServerSpec, log: ServerLog) -> AsyncIterator[ServerProcess]:
        """Start a server, and end it on exit. Raises ServerUnavailable."""
        command, path = server.command[0], server.environment.get("PATH")
        at = os.path.join(server.directory, command) if os.sep in command else command
        if shutil.which(at, path=path) is None:
            raise ServerUnavailable(f"cannot be started: there is no command {command!r}")
        async with contextlib.AsyncExitStack() as stack:
            errors = stack.enter_context(OutputPipe(log.write))
            spec = await stack.enter_async_context(self._spec(server, at))
            if await asyncio.to_thread(self.is_changed, server):
                raise ServerUnavailable(
                    "is not started, because its files have changed since you trusted it;"
                    " `retinue trust` allows it again"
                )
            running = child_process(spec, stdout=subprocess.PIPE, stderr=errors.write_fd)
            try:
                child = await stack.enter_async_context(running)
            except (OSError, ValueError) as error:
                why = getattr(error, "strerror", None) or error
                raise ServerUnavailable(f"cannot be started: {why}") from None
            errors.close_write_end()
            stdin, stdout = await stack.enter_async_context(_streams(child.process))
            process = ServerProcess(child, stdin, stdout, log)
            try:
                yield process
            finally:
                stdin.close()
                # The server gets some time; then all of it is killed.
                await finish_within(process.drain(), guard.GRACE_S + guard.KILL_S)

    @asynccontextmanager
    async def _spec(self, server: McpServerSpec, at: str) -> AsyncIterator[ProcessSpec]:
        if not server.confined:
            yield ProcessSpec(
                argv=(sys.executable, "-I", "-S", guard.__file__, at, *server.command[1:]),
                environment=server.environment,
                directory=server.directory,
                stdin=subprocess.PIPE,
            )
            return
        if self.sandbox is None:
            raise ServerUnavailable(
                f"cannot be started: there is no sandbox here; `sandbox = false` under"
                f" [mcp.{server.name}] in your settings runs it with all your rights"
            )
        access = Access(
            root=self.project,
            write_scope=NOWHERE,
            network=Network.ALL if server.network else Network.NONE,
        )
        words = shlex.join((at, *server.command[1:]))
        command = f"sh -c {shlex.quote(f'cd {shlex.quote(server.directory)} && exec {words}')}"
        try:
            async with self.sandbox.process(
                command, access=access, environment=server.environment
            ) as spec:
                yield spec
        except WorkspaceError as error:
            raise ServerUnavailable(f"cannot be started: {error}") from None


@asynccontextmanager
async def _streams(
    process: subprocess.Popen[bytes],
) -> AsyncIterator[tuple[asyncio.StreamWriter, asyncio.StreamReader]]:
    """The input and the output of a process as streams."""
    assert process.stdin is not None
    assert process.stdout is not None
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=MAX_LINE_BYTES)
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(process.stdin.close)
        stack.callback(process.stdout.close)
        read_transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), process.stdout
        )
        stack.callback(read_transport.close)
        write_transport, protocol = await loop.connect_write_pipe(
            # Only its flow control is used.
            lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()),
            process.stdin,
        )
        stack.callback(_close, write_transport)
        yield asyncio.StreamWriter(write_transport, protocol, None, loop), reader


def _close(transport: asyncio.WriteTransport) -> None:
    """Close a pipe at once: a server that does not read would hold up what is still to be sent."""
    if transport.get_write_buffer_size():
        transport.abort()
    else:
        transport.close()
