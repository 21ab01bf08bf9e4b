"""Runs that a program leads: their root, how they end, and resuming one without its program."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TypeVar

import msgspec

from retinue.domain.agent_spec import AgentSpec
from retinue.domain.events import TasksSubmitted
from retinue.domain.race import RaceResult
from retinue.domain.result import Result, Status
from retinue.domain.role import Role
from retinue.errors import RunSuspended, UsageError
from retinue.runtime.core.task_group import map_concurrently
from retinue.runtime.delegation.task import Task, origin_key
from retinue.runtime.delegation.task_resolver import TaskResolver
from retinue.runtime.history.recovery import RecoveredRun
from retinue.runtime.integration.baseline import Baseline
from retinue.runtime.run.run import Run

T = TypeVar("T")

PROGRAM = Role(
    name="program",
    description="A root without a model: the calling program spawns the children.",
    instructions="",
)


async def complete_tasks(
    run: Run, found: RecoveredRun, task_resolver: TaskResolver
) -> tuple[tuple[tuple[Result, ...], tuple[RaceResult, ...]], Status, str]:
    """Complete all tasks of a run whose program has left it: results, races, and the outcome."""
    done: dict[int, Result] = {}
    races: dict[int, RaceResult] = {}

    async def complete(submitted: TasksSubmitted) -> None:
        baseline = Baseline()
        if submitted.race:

            async def candidate(number: int) -> AgentSpec:
                task = msgspec.json.decode(submitted.tasks[number], type=Task)
                return await task_resolver.resolve(task)

            with suppress(UsageError):  # The race was refused, and the run counts that.
                race = await run.race(
                    origin_key(submitted.first),
                    len(submitted.tasks),
                    candidate,
                    rule=submitted.race,
                    max_concurrent=submitted.max_concurrent,
                )
                races[submitted.first] = race
                done.update(enumerate(race.results, submitted.first))
            return

        async def spawn(numbered: tuple[int, msgspec.Raw]) -> None:
            number, task = numbered

            async def make_spec() -> AgentSpec:
                return await task_resolver.resolve(msgspec.json.decode(task, type=Task))

            done[number] = await run.spawn_once(make_spec, origin_key(number), baseline)

        tasks = list(enumerate(submitted.tasks, submitted.first))
        await map_concurrently(spawn, tasks, submitted.max_concurrent)

    groups = found.state.tasks
    try:
        await map_concurrently(complete, groups, len(groups))
    except RunSuspended as error:
        raise RunSuspended(str(error), run_id=run.id, results=_in_order(done)) from None
    return (_in_order(done), _in_order(races)), *program_outcome(run)


def _in_order(numbered: Mapping[int, T]) -> tuple[T, ...]:
    return tuple(numbered[number] for number in sorted(numbered))


def program_outcome(run: Run) -> tuple[Status, str]:
    """Status and reason of a run that a program led."""
    registry = run.registry
    # A child that is still open counts as failed.
    failed = registry.failed + run.rejected + registry.open_children
    if run.root.stop_reason is not None:
        return Status.CANCELLED, run.root.stop_reason
    if failed:
        return Status.ERROR, f"{failed} of {registry.children + run.rejected} children failed"
    return Status.COMPLETED, ""


def program_error(error: BaseException) -> str:
    return f"the program ended with {type(error).__name__}"
