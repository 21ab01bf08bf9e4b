"""Hosts that are processes of this machine."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing, suppress

import msgspec

from retinue.config.environment import Environment
from retinue.config.settings import SettingsLayers
from retinue.domain.role import Role
from retinue.domain.skill import Skill
from retinue.errors import WorkspaceError
from retinue.processes import guard
from retinue.processes.child import ChildProcess, OutputPipe, ProcessSpec, child_process
from retinue.processes.function_process import MODULE_PROGRAM, python_command
from retinue.runtime.placement.connection import Connection, transfer_folder
from retinue.runtime.placement.host import FileChannel, HostLost
from retinue.runtime.placement.messages import (
    Command,
    HostInfo,
    Item,
    decode_items,
    encode,
)
from retinue.version import VERSION
from retinue.workspace.shared_disk import DiskToken

START_S = 60.0
HOST_MODULE = "retinue.host_program"
FOLDERS = ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME")
"""Variables that say where the user's files are."""
TRANSFERS = "transfers"
"""Folder of the cache for the files of connections."""


class HostOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How the runtime was opened, as far as its hosts have to know."""

    root: str
    machine: str
    disk_tokens: tuple[DiskToken, ...]
    model: str
    """"" for a host that gets no agents."""
    is_trusted_model: bool
    """Whether the user named the model, so that its server may be sent the key."""
    settings: SettingsLayers
    roles: Mapping[str, Role]
    skills: Mapping[str, Skill]
    test: str
    """The project's test command, or ""."""
    web_hosts: tuple[str, ...]
    shell: bool
    asks: bool
    unsafe_no_sandbox: bool
    unsafe_writable_install: bool
    folders: Mapping[str, str]
    """The variables FOLDERS of the runtime, for a host that sees its files."""
    lease_s: float | None = None
    """How long a host that cannot be ended from here works without its run; see `Lease`."""


def read_info(name: str, message: bytes) -> HostInfo:
    """The first message of a host. Raises HostLost."""
    try:
        return msgspec.json.decode(message, type=HostInfo)
    except msgspec.DecodeError as error:
        raise HostLost(f"{name} sends what cannot be read: {error}") from error


def folders(environment: Environment) -> dict[str, str]:
    return {name: value for name in FOLDERS if (value := environment.get(name)) is not None}


def _end(pid: int) -> None:
    """Have the guard of a host kill it, and all that it has started."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)


class ConnectedHost:
    """A host at the other end of a connection: the port `Host` without its end."""

    def __init__(
        self,
        name: str,
        info: HostInfo,
        connection: Connection,
        *,
        resources: Mapping[str, float] | None = None,
    ) -> None:
        self.name = name
        self.info = info
        self.resources = resources or {}
        self._connection = connection
        self.files: FileChannel = connection

    def send(self, command: Command) -> None:
        self._connection.send(encode(command))

    async def poll(self, after: int) -> Sequence[Item]:
        try:
            # The pipe loses nothing, so the next reports are those after the last.
            return decode_items(await self._connection.receive())
        except (asyncio.IncompleteReadError, OSError):
            raise HostLost(f"{self.name} (process {self.info.pid}) has ended") from None
        except (WorkspaceError, msgspec.DecodeError) as error:
            raise HostLost(f"{self.name} sends what cannot be read: {error}") from error


class ProcessHost(ConnectedHost):
    """A host in a process of this machine. Implements the port `Host`."""

    def __init__(self, name: str, info: HostInfo, program: Program) -> None:
        super().__init__(name, info, program.connection)
        self._process = program.process

    async def end(self) -> None:
        self._connection.close()
        # The guard kills a frozen host too.
        _end(self._process.process.pid)
        await self._process.exited.wait()


class Program:
    """A program of ours in a process of its own, at the other end of a connection."""

    def __init__(
        self,
        name: str,
        process: ChildProcess,
        connection: Connection,
        opened: socket.socket,
        errors: OutputPipe,
        said: bytearray,
    ) -> None:
        self.name = name
        self.process = process
        self.connection = connection
        self.socket = opened
        self._errors = errors
        self._said = said

    async def first_message(self) -> bytes:
        """The first message of a started host. Raises HostLost, with the host's last output."""
        try:
            async with asyncio.timeout(START_S):
                return await self.connection.receive()
        except TimeoutError:
            last = f": {self._last_line}" if self._said else ""
            raise HostLost(f"{self.name} has not started within {START_S:g} s{last}") from None
        except (asyncio.IncompleteReadError, OSError):
            why = await self.last_words()
            raise HostLost(f"{self.name} has ended while it started: {why}") from None

    async def last_words(self) -> str:
        """The last line that it has written. It has ended, or closes its output."""
        await self._errors.drained(1.0)
        return self._last_line

    @property
    def _last_line(self) -> str:
        lines = self._said.decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"


@asynccontextmanager
async def running_program(
    name: str, module: str, options: object, environment: Environment
) -> AsyncIterator[Program]:
    """Run `main` of a module with a socket, until the end of the block. It is sent `options`.

    When it or this process ends, all that it has started ends too.
    """
    ours, theirs = socket.socketpair()
    said = bytearray()

    def keep_last(data: bytes) -> None:
        said.extend(data)
        del said[:-2_000]

    with ours, theirs, OutputPipe(keep_last) as errors:
        fd = theirs.fileno()
        program = python_command(MODULE_PROGRAM, (sys.path, module, fd))
        spec = ProcessSpec(
            # When the host or this process ends, commands end too. In a sandbox without a pid
            # namespace they would still run beside the next host of their agent.
            argv=(sys.executable, "-I", "-S", guard.__file__, *program),
            environment=environment.variables,
            directory="/",
            stdin=subprocess.PIPE,
            pass_fds=(fd,),
            kill=_end,
        )
        async with child_process(
            spec, stdout=subprocess.DEVNULL, stderr=errors.write_fd
        ) as process:
            errors.close_write_end()
            theirs.close()
            stdin = process.process.stdin
            assert stdin is not None, "it is a pipe, which tells the guard that this process lives"
            with closing(stdin):
                async with connection_over(ours, environment) as connection:
                    # Not in the command line, which other users see.
                    connection.send(encode(options))
                    yield Program(name, process, connection, ours, errors, said)


@asynccontextmanager
async def connection_over(
    opened: socket.socket, environment: Environment
) -> AsyncIterator[Connection]:
    """The connection over a socket, which is closed at the end."""
    reader, writer = await asyncio.open_connection(sock=opened)
    try:
        with transfer_folder(str(environment.cache_dir / TRANSFERS)) as folder:
            yield Connection(reader, writer, folder)
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


@asynccontextmanager
async def process_host(
    name: str, options: HostOptions, environment: Environment
) -> AsyncIterator[ProcessHost]:
    """Start a host. It is killed at the end. Raises HostLost if it does not start."""
    async with running_program(name, HOST_MODULE, options, environment) as program:
        info = read_info(name, await program.first_message())
        if info.retinue_version != VERSION:
            raise HostLost(
                f"{name} has retinue {info.retinue_version}, and this process {VERSION}: it was"
                " updated meanwhile; start again"
            )
        yield ProcessHost(name, info, program)
