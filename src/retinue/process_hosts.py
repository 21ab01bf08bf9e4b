"""Hosts that are processes of this machine."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress

import msgspec

from retinue.config.environment import Environment
from retinue.config.settings import SettingsLayers
from retinue.domain.role import Role
from retinue.domain.skill import Skill
from retinue.errors import UsageError, WorkspaceError
from retinue.processes import guard
from retinue.processes.child import ChildProcess, OutputPipe, ProcessSpec, child_process
from retinue.processes.function_process import python_command
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
MAX_HOSTS = 256
_MODULE = "retinue.host_program"
_PROGRAM = """
import importlib, json, sys
path, module, fd = json.loads(sys.argv[1])
sys.path[:] = path
importlib.import_module(module).main(fd)
"""
TRANSFERS = "transfers"
"""Folder of the cache for the files of connections."""


class HostOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How the runtime was opened, as far as its hosts have to know."""

    root: str
    machine: str
    disk_tokens: tuple[DiskToken, ...]
    model: str
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


def process_count(cluster: str) -> int:
    """How many host processes `cluster` asks for: `local:4`. Raises UsageError."""
    kind, _, number = cluster.partition(":")
    if kind != "local" or not number.isdecimal() or not 1 <= int(number) <= MAX_HOSTS:
        raise UsageError(
            f"Unknown cluster {cluster!r}; local:N runs children in N processes of this machine,"
            f" with N from 1 to {MAX_HOSTS}."
        )
    return int(number)


def _end(pid: int) -> None:
    """Have the guard of a host kill it, and all that it has started."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)


class ProcessHost:
    """A host in a process of this machine. Implements the port `Host`."""

    def __init__(
        self,
        name: str,
        info: HostInfo,
        process: ChildProcess,
        connection: Connection,
    ) -> None:
        self.name = name
        self.info = info
        self._process = process
        self._connection = connection

    @property
    def files(self) -> FileChannel:
        return self._connection

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

    async def end(self) -> None:
        self._connection.close()
        # The guard kills a frozen host too.
        _end(self._process.process.pid)
        await self._process.exited.wait()


@asynccontextmanager
async def process_host(
    name: str, options: HostOptions, environment: Environment
) -> AsyncIterator[ProcessHost]:
    """Start a host. It is killed at the end. Raises HostLost if it does not start."""
    ours, theirs = socket.socketpair()
    said = bytearray()

    def keep_last(data: bytes) -> None:
        said.extend(data)
        del said[:-2_000]

    with OutputPipe(keep_last) as errors:
        fd = theirs.fileno()
        program = python_command(_PROGRAM, (sys.path, _MODULE, fd))
        spec = ProcessSpec(
            # When the host or this process ends, commands end too. In a sandbox that is no pid
            # namespace they would go on beside the next host of their agent.
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
            reader, writer = await asyncio.open_connection(sock=ours)
            try:
                with transfer_folder(str(environment.cache_dir / TRANSFERS)) as folder:
                    connection = Connection(reader, writer, folder)
                    # Not in the command line, which other users see.
                    connection.send(encode(options))
                    info = await _started(name, connection, said, errors)
                    yield ProcessHost(name, info, process, connection)
            finally:
                stdin.close()
                writer.close()
                with suppress(OSError):
                    await writer.wait_closed()


async def _started(
    name: str, connection: Connection, said: bytearray, errors: OutputPipe
) -> HostInfo:
    """Wait until a host has started. Raises HostLost, with what it `said` last."""
    try:
        async with asyncio.timeout(START_S):
            info = msgspec.json.decode(await connection.receive(), type=HostInfo)
    except TimeoutError:
        raise HostLost(f"{name} has not started within {START_S:g} s") from None
    except (asyncio.IncompleteReadError, OSError):
        with suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await errors.ended.wait()
        lines = said.decode("utf-8", "replace").strip().splitlines()
        why = lines[-1] if lines else "it said nothing"
        raise HostLost(f"{name} has ended while it started: {why}") from None
    if info.retinue_version != VERSION:
        raise HostLost(
            f"{name} has retinue {info.retinue_version}, and this process {VERSION}: it was updated"
            " meanwhile; start again"
        )
    return info
