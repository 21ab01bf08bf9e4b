"""Acceptance checks: commands that must succeed before the work of an agent is integrated."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from retinue.domain.events import CheckFinished
from retinue.domain.result import Check
from retinue.domain.scope import ANYWHERE
from retinue.ports.clock import Clock
from retinue.ports.file_tree import FileTree, WorkingCopy
from retinue.ports.sandbox import Sandbox, ShellCommand
from retinue.ports.workspace import Workspace
from retinue.runtime.agent.agent import Agent
from retinue.runtime.core.task_group import run_to_completion

TIMEOUT_S = 600.0
MAX_OUTPUT_BYTES = 30_000
KEPT_CHARS = 4_000
SHOWN_CHARS = 200

NO_SANDBOX = (
    "The checks ({checks}) run code that children have written, and there is no sandbox to run it"
    " in. Leave out the checks, or allow them without a sandbox: --unsafe-no-sandbox."
)


FindSandbox = Callable[[], Awaitable[Sandbox | None]]
"""Return the sandbox for checks, even if agents have no shell; None if there is no sandbox."""


def copy_names(run_id: str, agent_id: str) -> tuple[str, str, str]:
    """Names of the copies for an agent: for its work, its conflicts, and its checks."""
    name = f"{run_id}-{agent_id}"
    return name, f"{name}-merge", f"{name}-check"


@asynccontextmanager
async def temporary_copy(
    file_tree: FileTree,
    commit: str,
    *,
    name: str,
    directory: str,
    on_progress: Callable[[str], None] | None = None,
) -> AsyncIterator[WorkingCopy]:
    """A copy that is removed at the end, even if the caller is cancelled while it is made."""
    copies: list[WorkingCopy] = []

    async def make() -> None:
        copies.append(
            await file_tree.copy(commit, name=name, directory=directory, on_progress=on_progress)
        )

    try:
        await run_to_completion(make())
        yield copies[0]
    finally:
        for copy in copies:
            await run_to_completion(copy.remove(on_progress))


class Checks:
    """Runs checks on fresh copies. A check runs once per commit and directory."""

    def __init__(self, find_sandbox: FindSandbox, clock: Clock) -> None:
        self._find_sandbox = find_sandbox
        self._clock = clock
        self._results: dict[tuple[str, str, str], Check] = {}
        self._durations_s: dict[tuple[str, str], float] = {}
        """How long each command took in each directory, the last time."""

    async def are_possible(self) -> bool:
        return await self._find_sandbox() is not None

    async def run(self, agent: Agent, file_tree: FileTree, commit: str) -> str:
        """Run the checks of `agent` on `commit`. Return why they fail, or ""."""
        commands = agent.contract.outputs.checks
        if not commands:
            return ""
        directory = agent.contract.execution.working_directory
        *_, name = copy_names(agent.contract.parent.run_id, agent.id)
        copy: WorkingCopy | None = None
        report = partial(agent.report_progress, "")
        async with AsyncExitStack() as stack:
            for number, command in enumerate(commands, 1):
                check = self._results.get((commit, directory, command))
                if check is None:
                    if copy is None:
                        made = temporary_copy(
                            file_tree, commit, name=name, directory=directory, on_progress=report
                        )
                        copy = await stack.enter_async_context(made)
                    last_s = self._durations_s.get((directory, command))
                    took = "" if last_s is None else f" (took {last_s:.0f}s last time)"
                    report(f"check {number} of {len(commands)}{took}: {command}")
                    check = await self._run(command, copy.workspace(directory))
                    self._results[commit, directory, command] = check
                    self._durations_s[directory, command] = check.duration_s
                agent.record(CheckFinished(check=check))
                if not check.ok:
                    return f"a check failed: {check}{_last_line(check)}"
        return ""

    async def _run(self, command: str, workspace: Workspace) -> Check:
        sandbox = await self._find_sandbox()
        assert sandbox is not None, "no contract has checks without a sandbox"
        started = self._clock.monotonic()
        access = workspace.access(ANYWHERE)
        finished = await sandbox.run(ShellCommand(command, access, TIMEOUT_S, MAX_OUTPUT_BYTES))
        return Check(
            command=command,
            exit_code=finished.exit_code,
            output_sha256=hashlib.sha256(finished.output.encode("utf-8", "replace")).hexdigest(),
            output=finished.output[-KEPT_CHARS:],
            timed_out=finished.timed_out,
            duration_s=round(self._clock.monotonic() - started, 3),
        )


def _last_line(check: Check) -> str:
    """The last line of the output: mostly the reason of a failure."""
    line = check.output.strip().rpartition("\n")[2].strip()
    return f": {line[:SHOWN_CHARS]}" if line else ""
