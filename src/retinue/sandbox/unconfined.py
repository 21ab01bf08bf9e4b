"""No sandbox at all: a plain process. Only for those who asked for it by name."""

from __future__ import annotations

from collections.abc import Mapping

from retinue.domain.reach import Reach
from retinue.ports.sandbox import CommandResult
from retinue.processes.child import kill_group
from retinue.sandbox.command import check_command, run_command


class Unconfined:
    """Runs commands as the user, who can do everything; the reach is not enforced.

    A command is a session of its own and is killed as a group when it ends, times out or is
    cancelled; a process that leaves the group (setsid) is out of reach in this tier.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        """`environment` is all that commands get to see."""
        self._environment = dict(environment)

    @property
    def tier(self) -> str:
        return "none"

    @property
    def relocates(self) -> bool:
        return False

    async def run(
        self, command: str, *, reach: Reach, timeout_s: float, max_output_bytes: int
    ) -> CommandResult:
        """Run a shell command. A non-zero exit is a result, never an exception."""
        check_command(command, reach)
        return await run_command(
            ("/bin/sh", "-c", command),
            directory=reach.root,
            environment=self._environment,
            kill_leftovers=kill_group,
            timeout_s=timeout_s,
            max_output_bytes=max_output_bytes,
        )
