"""The run that the calling program leads: the program spawns the children, not a model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from retinue.domain.agent_spec import AgentSpec
from retinue.domain.contract import title_of
from retinue.domain.events import TasksSubmitted
from retinue.domain.plan.outcome import RunResult
from retinue.domain.result import Result, Status
from retinue.errors import UsageError
from retinue.runtime.core.task_group import TaskGroup, map_concurrently
from retinue.runtime.delegation.children import Children, Job
from retinue.runtime.delegation.task import (
    Task,
    as_task,
    encode_task,
    origin_key,
    without_cache_for_duplicates,
)
from retinue.runtime.delegation.task_resolver import TaskResolver
from retinue.runtime.history.recovery import RecoveredRun
from retinue.runtime.integration.baseline import Baseline
from retinue.runtime.run.run import PROGRAM_LED, Run
from retinue.runtime.run.runs import Runs, program_outcome


class ProgramRun:
    """The program's run. It begins with the first task, and ends when the runtime is closed."""

    def __init__(
        self, runs: Runs, task_resolver: TaskResolver, tasks: TaskGroup, *, max_concurrent: int
    ) -> None:
        self._runs = runs
        self._task_resolver = task_resolver
        self._tasks = tasks
        self._max_concurrent = max_concurrent
        self._run: Run | None = None
        self._children: Children | None = None
        self._task_count = 0

    async def spawn(self, task: Task) -> Result:
        """Spawn one child and wait for it."""
        spec = await self._task_resolver.resolve(task)
        run = self._begun(title_of(spec.task))
        number = self._record_tasks(run, [task], self._max_concurrent)
        return await run.spawn(spec, origin_key(number), Baseline())

    async def fan_out(
        self, tasks: Sequence[Task | tuple[str, str]], *, max_concurrent: int
    ) -> list[Result]:
        """Spawn a child for each task, at most `max_concurrent` at a time."""
        wanted = without_cache_for_duplicates(map(as_task, tasks))
        # Make all specs first: a wrong task raises before any work begins.
        specs = [await self._task_resolver.resolve(task) for task in wanted]
        if not specs:
            return []
        first = title_of(specs[0].task)
        run = self._begun(first if len(specs) == 1 else f"{len(specs)} tasks: {first}")
        number = self._record_tasks(run, wanted, max_concurrent)
        baseline = Baseline()

        async def spawn(numbered: tuple[int, AgentSpec]) -> Result:
            return await run.spawn(numbered[1], origin_key(numbered[0]), baseline)

        return await map_concurrently(spawn, list(enumerate(specs, number)), max_concurrent)

    async def start(self, task: Task) -> Job:
        """Spawn a child in the background. Its contract is on record when this returns."""
        spec = await self._task_resolver.resolve(task)
        run = self._begun(title_of(spec.task))
        if self._children is None:
            self._children = run.runner.children_of(run.root, self._tasks)
        number = self._record_tasks(run, [task], self._max_concurrent)
        job = await self._children.start(spec, origin_key(number))
        await job.agent.durable()
        return job

    async def join(self, jobs: Iterable[Job] | Literal["*"]) -> list[Result]:
        started = {} if self._children is None else self._children.jobs
        joined = list(started.values()) if jobs == "*" else list(jobs)
        for job in joined:
            if not isinstance(job, Job):
                raise UsageError(f'Jobs are what `start` returns, or "*" for all; not {job!r}.')
        return [await job.result() for job in joined]

    def cancel_background(self) -> None:
        """Cancel the background children that still run."""
        if self._run is not None and self._children is not None:
            for job in self._children.jobs.values():
                job.cancel(self._run.runner.cancel_reason)

    async def close(self, error: BaseException | None) -> None:
        """End the run, if it has begun; `error` is what ended the program's work."""
        if self._run is not None:
            await self._runs.end_program_led(self._run, error)

    def _begun(self, title: str) -> Run:
        """The run. The first task gives it its title."""
        # Nothing may be awaited here: two tasks may begin the run at the same moment.
        if self._run is None:
            self._run = self._runs.begin(PROGRAM_LED, title)
        return self._run

    def _record_tasks(self, run: Run, tasks: Sequence[Task], max_concurrent: int) -> int:
        """Record tasks before any of them is done. Return the number of the first."""
        first, self._task_count = self._task_count, self._task_count + len(tasks)
        recorded = tuple(map(encode_task, tasks))
        run.root.record(TasksSubmitted(first=first, tasks=recorded, max_concurrent=max_concurrent))
        return first


async def resume_program(
    runs: Runs, task_resolver: TaskResolver, run: Run, recovered: RecoveredRun
) -> RunResult:
    """Complete all tasks of a run whose program has left it."""

    async def work() -> tuple[tuple[Result, ...], Status, str]:
        return await _complete_tasks(task_resolver, run, recovered), *program_outcome(run)

    results = await runs.run_to_end(run, work())
    return msgspec.structs.replace(run.outcome, results=results)


async def _complete_tasks(
    task_resolver: TaskResolver, run: Run, recovered: RecoveredRun
) -> tuple[Result, ...]:
    async def complete(given: TasksSubmitted) -> list[Result]:
        baseline = Baseline()

        async def spawn(numbered: tuple[int, msgspec.Raw]) -> Result:
            number, task = numbered

            async def make_spec() -> AgentSpec:
                return await task_resolver.resolve(msgspec.json.decode(task, type=Task))

            return await run.spawn_once(make_spec, origin_key(number), baseline)

        tasks = list(enumerate(given.tasks, given.first))
        return await map_concurrently(spawn, tasks, given.max_concurrent)

    groups = recovered.state.tasks
    done = await map_concurrently(complete, groups, len(groups))
    return tuple(result for results in done for result in results)
