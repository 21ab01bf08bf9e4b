"""The run that the calling program leads: it gives tasks to children, and no model does."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from retinue.domain.contract import title_of
from retinue.domain.drafting import AgentSpec
from retinue.domain.events import TasksSubmitted
from retinue.domain.lifecycle import State
from retinue.domain.plan.outcome import RunResult
from retinue.domain.result import Result, Status
from retinue.errors import ContractError, UsageError
from retinue.runtime.agent.baseline import Baseline
from retinue.runtime.agent.children import Children, Job
from retinue.runtime.core.task_group import TaskGroup, map_concurrently
from retinue.runtime.delegation.task import Task, asked, each_for_itself, on_record, origin_key
from retinue.runtime.delegation.task_resolver import TaskResolver
from retinue.runtime.history.recovery import RecoveredRun
from retinue.runtime.run.run import Run
from retinue.runtime.run.runs import BY_PROGRAM, Runs, outcome


class ProgramRun:
    """One per runtime. Its run begins with the first task, and ends when the runtime is closed."""

    def __init__(
        self, runs: Runs, task_resolver: TaskResolver, task_group: TaskGroup, *, at_once: int
    ) -> None:
        self._runs = runs
        self._task_resolver = task_resolver
        self._task_group = task_group
        self._at_once = at_once
        self._run: Run | None = None
        self._staff: Children | None = None
        self._given = 0
        """How many tasks the program has given so far."""

    async def spawn(self, task: Task) -> Result:
        """Give one task to one child and wait for it."""
        spec = await self._task_resolver.resolve(task)
        run = self._open(title_of(spec.task))
        return await _employ(run, spec, self._give(run, [task], self._at_once))

    async def fan_out(self, tasks: Sequence[Task | tuple[str, str]], *, most: int) -> list[Result]:
        """Give each task to a child of its own, `most` at a time."""
        wanted = each_for_itself(map(asked, tasks))
        # All of them first: a wrong one is told before any work begins.
        specs = [await self._task_resolver.resolve(task) for task in wanted]
        if not specs:
            return []
        first = title_of(specs[0].task)
        run = self._open(first if len(specs) == 1 else f"{len(specs)} tasks: {first}")
        number = self._give(run, wanted, most)
        round = Baseline()

        async def employ(numbered: tuple[int, AgentSpec]) -> Result:
            return await _employ(run, numbered[1], numbered[0], round)

        return await map_concurrently(employ, list(enumerate(specs, number)), most)

    async def start(self, task: Task) -> Job:
        """Give a task to a child in the background. Its contract is on record when this returns."""
        spec = await self._task_resolver.resolve(task)
        run = self._open(title_of(spec.task))
        if self._staff is None:
            self._staff = run.staff_of(run.root, self._task_group)
        job = await self._staff.hire(spec, origin_key(self._give(run, [task], self._at_once)))
        await job.agent.durable()
        return job

    async def join(self, jobs: Iterable[Job] | Literal["*"]) -> list[Result]:
        known = {} if self._staff is None else self._staff.jobs
        waited = list(known.values()) if jobs == "*" else list(jobs)
        for job in waited:
            if not isinstance(job, Job):
                raise UsageError(f'Jobs are what `start` returns, or "*" for all; not {job!r}.')
        return [await job.result() for job in waited]

    def dismiss(self) -> None:
        """Have those go who still work in the background."""
        if self._run is not None and self._staff is not None:
            for job in self._staff.jobs.values():
                job.cancel(self._run.why_stopped)

    async def close(self, error: BaseException | None) -> None:
        """End the run, if there is one; `error` is what has ended the program's work."""
        if self._run is not None:
            await self._runs.adjourn(self._run, error)

    def _open(self, task: str) -> Run:
        """The run, named after the first thing that is asked for."""
        # Nothing may be awaited here: two children may ask for it in the same moment.
        if self._run is None:
            self._run = self._runs.begin(BY_PROGRAM, task)
            self._run.preside()
        return self._run

    def _give(self, run: Run, tasks: Sequence[Task], most: int) -> int:
        """Put on record what the program wants done; answers the number of the first."""
        first, self._given = self._given, self._given + len(tasks)
        run.give(
            TasksSubmitted(first=first, tasks=tuple(map(on_record, tasks)), max_concurrent=most)
        )
        return first


async def go_on(
    runs: Runs, task_resolver: TaskResolver, run: Run, found: RecoveredRun
) -> RunResult:
    """Have all done that a program wanted to be done in a run that it has left."""

    async def work() -> tuple[tuple[Result, ...], Status, str]:
        return await _see_through(task_resolver, run, found), *outcome(run)

    results = await runs.ended(run, work())
    return msgspec.structs.replace(run.outcome, results=results)


async def _see_through(
    task_resolver: TaskResolver, run: Run, found: RecoveredRun
) -> tuple[Result, ...]:
    program = found.state.resume_points[run.root.id]
    if program.agent.state is State.CREATED:
        run.preside()
    run.reseat(run.root, program)

    async def again(given: TasksSubmitted) -> list[Result]:
        round = Baseline()

        async def work(numbered: tuple[int, msgspec.Raw]) -> Result:
            number, task = numbered
            child = run.employed(origin_key(number))
            if child is not None:
                return child.result or await run.see_through(child)
            spec = await task_resolver.resolve(msgspec.json.decode(task, type=Task))
            return await _employ(run, spec, number, round)

        tasks = list(enumerate(given.tasks, given.first))
        return await map_concurrently(work, tasks, given.max_concurrent)

    done = await map_concurrently(again, found.state.tasks, len(found.state.tasks))
    return tuple(result for results in done for result in results)


async def _employ(run: Run, spec: AgentSpec, number: int, round: Baseline | None = None) -> Result:
    if run.root.stop_reason is not None:
        return run.refused(spec.role.name, spec.task, run.root.stop_reason, Status.CANCELLED)
    try:
        child = await run.create(spec, run.root, round, origin_key=origin_key(number))
    except ContractError as error:
        run.rejected += 1
        spent_up = run.root.account.remaining().tokens == 0
        status = Status.BUDGET_EXCEEDED if spent_up else Status.REJECTED
        return run.refused(spec.role.name, spec.task, str(error), status)
    return await run.see_through(child)
