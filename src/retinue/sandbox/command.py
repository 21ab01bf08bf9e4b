"""Checks a shell command before a sandbox runs it, starts it, and watches the disk meanwhile."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Mapping, Sequence

import msgspec

from retinue.domain.grant import Access
from retinue.errors import ToolFailure, WorkspaceError
from retinue.ports.sandbox import CommandResult, ProcessSandbox, ShellCommand
from retinue.processes.child import Monitor, ProcessSpec, run_process

# Bytes and inodes that a command always leaves free for others.
_RESERVED = (1024**3, 100_000)
# Linux limits one argument to 32 pages, less the byte that ends it.
_MAX_COMMAND_BYTES = 131_071


def check_command(command: str, access: Access) -> None:
    """Raise ToolFailure for a command that no shell takes, WorkspaceError for an unusable root."""
    try:
        os.close(os.open(access.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    except OSError as error:
        raise _cannot_run(access.root, error) from error
    if "\0" in command:
        raise ToolFailure("The command contains a NUL character, which no command can.")
    try:
        size = len(command.encode())
    except UnicodeEncodeError:
        raise ToolFailure(
            "The command is not valid Unicode: it has half a surrogate pair."
        ) from None
    if size > _MAX_COMMAND_BYTES:
        raise ToolFailure("The command is too long; write it to a file and run that.")


async def run_command(
    spec: ProcessSpec, command: ShellCommand, *, monitors: Sequence[Monitor] = ()
) -> CommandResult:
    """Run the process that a sandbox starts for `command`. WorkspaceError if that fails."""
    try:
        done = await run_process(
            spec,
            timeout_s=command.timeout_s,
            max_output_bytes=command.max_output_bytes,
            monitors=monitors,
        )
    except OSError as error:
        raise _cannot_run(spec.directory or os.curdir, error) from error
    return CommandResult(**msgspec.structs.asdict(done))


async def run_in_process(
    sandbox: ProcessSandbox, command: ShellCommand, environment: Mapping[str, str]
) -> CommandResult:
    """Run `command` as a process of a sandbox that needs nothing else for it."""
    check_command(command.text, command.access)
    variables = {**environment, **command.variables}
    async with sandbox.process(command.text, access=command.access, environment=variables) as spec:
        spec = msgspec.structs.replace(spec, stdin=subprocess.DEVNULL)
        return await run_command(spec, command)


def _cannot_run(directory: str, error: OSError) -> WorkspaceError:
    return WorkspaceError(f"No command can be run in {directory}: {error.strerror}.")


def memory_file(stack: contextlib.ExitStack | contextlib.AsyncExitStack, data: bytes) -> int:
    """A descriptor that reads `data`; it is closed when `stack` ends."""
    fd = os.memfd_create("retinue", os.MFD_CLOEXEC)
    stack.callback(os.close, fd)
    os.write(fd, data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def disk_monitor(path: str) -> Monitor:
    """A monitor that ends a command that fills the disk: files are limited in size, not in number.

    The limit is computed from the free space at the start of the command.
    """
    least_free = [
        min(most, total // 20, free // 2)
        for most, (total, free) in zip(_RESERVED, _space(path), strict=True)
    ]

    def check() -> None:
        now_free = (free for _, free in _space(path))
        if any(free < least for free, least in zip(now_free, least_free, strict=True)):
            raise WorkspaceError(
                f"The command was ended: the disk that {path} is on is almost full."
            )

    return check


def _space(path: str) -> tuple[tuple[int, int], tuple[int, int]]:
    """Total and free bytes; total and free inodes."""
    try:
        found = os.statvfs(path)
    except OSError:
        return (0, 0), (0, 0)
    size = found.f_frsize
    return (size * found.f_blocks, size * found.f_bavail), (found.f_files, found.f_favail)
