"""Acceptance checks: commands that decide whether work is integrated, instead of a child's word."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable

from retinue.domain.events import CheckFinished
from retinue.domain.result import Check
from retinue.domain.scope import ANYWHERE
from retinue.ports.clock import Clock
from retinue.ports.file_tree import FileTree, WorkingCopy
from retinue.ports.sandbox import Sandbox
from retinue.ports.workspace import Workspace
from retinue.runtime.agent.agent import Agent
from retinue.runtime.core.task_group import run_to_completion

TIMEOUT_S = 600.0
MAX_OUTPUT_BYTES = 30_000
KEPT_CHARS = 4_000
SHOWN_CHARS = 200

NO_SANDBOX = (
    "Its checks ({checks}) run what children have written, and there is no sandbox to run them in;"
    " leave the checks away, or allow it without one by --unsafe-no-sandbox."
)


Confine = Callable[[], Awaitable[Sandbox | None]]
"""What confines commands here, whether or not agents have any; None if nothing does."""


def copy_names(run_id: str, agent_id: str) -> tuple[str, str, str]:
    """What the copies for an agent are called: its own, for its conflicts, and for checks."""
    name = f"{run_id}-{agent_id}"
    return name, f"{name}-merge", f"{name}-check"


class Checks:
    """Runs them on fresh copies. The same check in the same folder of a commit is run once."""

    def __init__(self, confine: Confine, clock: Clock) -> None:
        self._confine = confine
        self._clock = clock
        self._known: dict[tuple[str, str, str], Check] = {}

    async def possible(self) -> bool:
        return await self._confine() is not None

    async def run(self, agent: Agent, file_tree: FileTree, commit: str) -> str:
        """Check what is in `commit`, for `agent`; why it does not pass, or "" if it does."""
        commands = agent.contract.outputs.checks
        if not commands:
            return ""
        directory = agent.contract.execution.working_directory
        copies: list[WorkingCopy] = []

        async def fresh() -> None:
            *_, name = copy_names(agent.contract.parent.run_id, agent.id)
            copies.append(await file_tree.copy(commit, name=name, directory=directory))

        try:
            for command in commands:
                check = self._known.get((commit, directory, command))
                if check is None:
                    if not copies:
                        await run_to_completion(fresh())
                    place = copies[0].workspace(directory)
                    check = await self._checked(command, place)
                    self._known[commit, directory, command] = check
                agent.checks.append(check)
                agent.record(CheckFinished(check=check))
                if not check.ok:
                    return f"a check failed: {check}{_last_line(check)}"
        finally:
            for copy in copies:
                await run_to_completion(copy.remove())
        agent.tested = True
        return ""

    async def _checked(self, command: str, place: Workspace) -> Check:
        sandbox = await self._confine()
        assert sandbox is not None, "or there would be no such contract"
        started = self._clock.monotonic()
        done = await sandbox.run(
            command,
            reach=place.reach(ANYWHERE),
            timeout_s=TIMEOUT_S,
            max_output_bytes=MAX_OUTPUT_BYTES,
        )
        return Check(
            command=command,
            exit_code=done.exit_code,
            output_sha256=hashlib.sha256(done.output.encode("utf-8", "replace")).hexdigest(),
            output=done.output[-KEPT_CHARS:],
            timed_out=done.timed_out,
            duration_s=round(self._clock.monotonic() - started, 3),
        )


def _last_line(check: Check) -> str:
    """What it said last, which is mostly why."""
    said = check.output.strip().rpartition("\n")[2].strip()
    return f": {said[:SHOWN_CHARS]}" if said else ""
