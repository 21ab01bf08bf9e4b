"""Confinement by Landlock and seccomp, where namespaces are refused: in most containers."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import marshal
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import cache

import msgspec

from retinue.domain.grant import Access, Network
from retinue.domain.paths import SKILLS_FOLDER, STATE_FOLDER
from retinue.errors import WorkspaceError
from retinue.ports.sandbox import CommandResult, ShellCommand
from retinue.processes.child import ProcessSpec
from retinue.processes.removal import remove_folder
from retinue.sandbox import landlock_launcher as launcher
from retinue.sandbox.cgroups import cgroups
from retinue.sandbox.command import check_command, disk_monitor, memory_file, run_command
from retinue.sandbox.limits import DEFAULT_LIMITS, ProcessLimits
from retinue.sandbox.placeholders import placeholders
from retinue.sandbox.seccomp import build_filter, socket_families
from retinue.sandbox.system_paths import etc_files, etc_folders, program_folders
from retinue.sandbox.toolchains import command_environment, toolchain_folders, venv_base_folders
from retinue.sandbox.writable_paths import (
    closed_paths,
    find_closed_paths,
    missing_paths,
    without_protected,
    writable_paths,
)

_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty")
MIN_ABI = 6


@cache
def abi_version() -> int:
    """The Landlock version of this kernel; 0 if it has none."""
    try:
        syscall = ctypes.CDLL(None, use_errno=True).syscall
    except (OSError, AttributeError):
        return 0
    return max(0, int(syscall(ctypes.c_long(444), None, 0, 1)))


class Landlock:
    """Tier reduced: files, signals and system calls are confined; see REDUCED_TIER_LEAKS.

    `landlock_launcher` supervises each command. It kills all processes of the command when the
    command ends, when it gets SIGTERM, and when our process dies.
    """

    tier = "reduced"
    relocates = False

    def __init__(
        self,
        environment: Mapping[str, str],
        *,
        limits: ProcessLimits = DEFAULT_LIMITS,
        readable: Sequence[str] = (),
    ) -> None:
        """`environment` is all that commands get; `readable` are more folders to show."""
        self._environment = dict(environment)
        self._toolchains = toolchain_folders(environment)
        self._limits = limits
        self._readable = tuple(readable)
        self._cgroups = cgroups(limits)

    async def run(self, command: ShellCommand) -> CommandResult:
        access = command.access
        check_command(command.text, access)
        async with contextlib.AsyncExitStack() as stack:
            spec, failure_fd, private = await self._prepare(
                stack, command.text, access, self._environment | dict(command.variables)
            )
            done = await run_command(
                spec, command, monitors=(disk_monitor(access.root), disk_monitor(private))
            )
            with contextlib.suppress(BlockingIOError):
                why = os.read(failure_fd, 4096).decode(errors="replace")
                raise WorkspaceError(f"The sandbox failed: {why}. See `retinue doctor`.")
        return done

    @contextlib.asynccontextmanager
    async def process(
        self, command: str, *, access: Access, environment: Mapping[str, str]
    ) -> AsyncIterator[ProcessSpec]:
        check_command(command, access)
        async with contextlib.AsyncExitStack() as stack:
            spec, _, _ = await self._prepare(stack, f"exec {command}", access, environment)
            yield msgspec.structs.replace(spec, stdin=subprocess.PIPE)

    async def _prepare(
        self,
        stack: contextlib.AsyncExitStack,
        command: str,
        access: Access,
        environment: Mapping[str, str],
    ) -> tuple[ProcessSpec, int, str]:
        """The process, a descriptor for its failure, and its own folder, until `stack` ends."""
        private = tempfile.mkdtemp(prefix="retinue-")
        stack.push_async_callback(asyncio.to_thread, remove_folder, private)
        closed = await asyncio.to_thread(closed_paths, access)
        stack.enter_context(placeholders(access.root, *missing_paths(access, closed)))
        writable = await asyncio.to_thread(
            writable_paths, access.root, access.write_scope, whole_root=False
        )
        found = await find_closed_paths(writable, access)
        closed += (*found.git_dirs, *found.hard_links)
        write = [
            private,
            *(part for path in writable for part in without_protected(path, closed)),
        ]
        request = memory_file(stack, self._request(command, access, private, write, environment))
        failure_fd, failure_write_fd = os.pipe()
        for fd in (failure_fd, failure_write_fd):
            stack.callback(os.close, fd)
        os.set_blocking(failure_fd, False)
        slot = await stack.enter_async_context(self._cgroups.slot())
        fds = (request, failure_write_fd)
        supervisor = (sys.executable, "-I", "-S", launcher.__file__, *map(str, fds))
        spec = ProcessSpec(
            argv=(*slot.argv_prefix, *supervisor),
            environment={},
            directory="/",
            pass_fds=fds,
            kill=_ask_supervisor_to_kill,
            start_process=slot.start_process,
        )
        return spec, failure_fd, private

    def _request(
        self,
        command: str,
        access: Access,
        private: str,
        write: Sequence[str],
        environment: Mapping[str, str],
    ) -> bytes:
        shown = [
            *program_folders(),
            *etc_files(),
            *etc_folders(),
            *self._toolchains,
            *venv_base_folders(access.root, self._environment.get("HOME", "")),
        ]
        if access.network is Network.ALL:
            shown.append("/etc/resolv.conf")
        return marshal.dumps(
            {
                "command": command,
                "directory": access.root,
                "parent": os.getpid(),
                "network": access.network is Network.ALL,
                "environment": {
                    **command_environment(
                        environment, access.root, home=private, temporary=private
                    ),
                    # Git fails if a settings file exists and cannot be read.
                    "GIT_CONFIG_NOSYSTEM": "1",
                },
                "list": [access.root],
                "read": [
                    *map(os.path.realpath, (*shown, *access.readable)),
                    "/proc",
                    *self._readable,
                    *_readable_entries(access),
                ],
                "devices": _DEVICES,
                "write": write,
                "limits": self._limits.per_process(limited=self._cgroups.limited),
                "filter": build_filter(
                    families=socket_families(access.network, namespaced=False), namespaced=False
                ),
            }
        )


def _readable_entries(access: Access) -> list[str]:
    """The entries of the root, without `.retinue`: a rule for the root itself would include it."""
    with os.scandir(access.root) as listing:
        found = [
            e.path for e in listing if not e.is_symlink() and e.name.casefold() != STATE_FOLDER
        ]
    skills = os.path.join(os.path.realpath(access.root), SKILLS_FOLDER)
    # A link could lead anywhere.
    is_folder = os.path.isdir(skills) and os.path.realpath(skills) == skills
    return [*found, skills] if is_folder else found


def _ask_supervisor_to_kill(pid: int) -> None:
    """Ask the supervisor to kill the command and to exit."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGTERM)
