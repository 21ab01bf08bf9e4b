"""No sandbox: a plain process. Used only if the user asks for it explicitly."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import AsyncIterator, Mapping

from retinue.domain.grant import Access
from retinue.ports.sandbox import CommandResult, ShellCommand
from retinue.processes.child import ProcessSpec, kill_group
from retinue.sandbox.command import run_in_process


class Unconfined:
    """Runs commands with all rights of the user; `access` is not enforced.

    The process group of a command is killed when it ends, times out or is cancelled. A process
    that leaves the group (setsid) survives in this tier.
    """

    tier = "none"
    relocates = False

    def __init__(self, environment: Mapping[str, str]) -> None:
        """`environment` is the whole environment of commands."""
        self._environment = dict(environment)

    async def run(self, command: ShellCommand) -> CommandResult:
        return await run_in_process(self, command, self._environment)

    @contextlib.asynccontextmanager
    async def process(
        self, command: str, *, access: Access, environment: Mapping[str, str]
    ) -> AsyncIterator[ProcessSpec]:
        yield ProcessSpec(
            argv=("/bin/sh", "-c", command),
            environment=environment,
            directory=access.root,
            stdin=subprocess.PIPE,
            kill_leftovers=kill_group,
        )
