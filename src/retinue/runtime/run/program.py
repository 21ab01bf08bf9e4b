"""Resume a run that a program led: complete the tasks that the program submitted."""

from __future__ import annotations

import msgspec

from retinue.domain.agent_spec import AgentSpec
from retinue.domain.events import TasksSubmitted
from retinue.domain.plan.outcome import RunResult
from retinue.domain.result import Result, Status
from retinue.runtime.core.task_group import map_concurrently
from retinue.runtime.delegation.task import Task, origin_key
from retinue.runtime.delegation.task_resolver import TaskResolver
from retinue.runtime.history.recovery import RecoveredRun
from retinue.runtime.integration.baseline import Baseline
from retinue.runtime.run.run import Run
from retinue.runtime.run.runs import Runs, program_outcome


async def resume_program(
    runs: Runs, task_resolver: TaskResolver, run: Run, recovered: RecoveredRun
) -> RunResult:
    """Complete all tasks of a run whose program has left it."""

    async def complete(given: TasksSubmitted) -> list[Result]:
        baseline = Baseline()

        async def spawn(numbered: tuple[int, msgspec.Raw]) -> Result:
            number, task = numbered

            async def make_spec() -> AgentSpec:
                return await task_resolver.resolve(msgspec.json.decode(task, type=Task))

            return await run.spawn_once(make_spec, origin_key(number), baseline)

        tasks = list(enumerate(given.tasks, given.first))
        return await map_concurrently(spawn, tasks, given.max_concurrent)

    async def work() -> tuple[tuple[Result, ...], Status, str]:
        groups = recovered.state.tasks
        done = await map_concurrently(complete, groups, len(groups))
        return tuple(result for results in done for result in results), *program_outcome(run)

    results = await runs.run_to_end(run, work())
    return msgspec.structs.replace(run.outcome, results=results)
