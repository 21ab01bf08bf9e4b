"""Jobs: children of a program that run in the background."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, Literal

from retinue.domain.agent_spec import AgentSpec
from retinue.domain.result import Result, T
from retinue.errors import UsageError
from retinue.runtime.agent.output_type import typed
from retinue.runtime.core.task_group import TaskGroup
from retinue.runtime.delegation.children import ChildJob, Children
from retinue.runtime.run.run import Run


class Job(Generic[T]):
    """A child in the background, as `Runtime.start` returns it.

    `id` and `run_id` name the child in events and on the command line. When the runtime closes, a
    child that still runs is cancelled.

    ```python
    job = await rt.start("researcher", "Look around.")
    print(job.id, job.title, job.done)
    result = await job.result()
    assert job.done
    ```
    """

    def __init__(self, job: ChildJob, convert: Callable[[Any], Any] | None) -> None:
        self._job = job
        self._convert = convert

    @property
    def id(self) -> str:
        """The id of the agent, such as `a3`."""
        return self._job.id

    @property
    def run_id(self) -> str:
        """The run that the agent belongs to."""
        return self._job.run_id

    @property
    def title(self) -> str:
        """The beginning of its task."""
        return self._job.title

    @property
    def done(self) -> bool:
        """Whether `result` returns at once."""
        return self._job.done

    def cancel(self, reason: str = "cancelled by the program") -> None:
        """Stop the child for good. Its result has the status `cancelled` and this reason."""
        self._job.cancel(reason)

    async def result(self) -> Result[T]:
        """Wait for the child. Cancelling the wait does not cancel the child.

        Raises RunSuspended if the child cannot continue because a model endpoint is gone.
        """
        return typed(await self._job.result(), self._convert)


class Jobs:
    """All jobs of a program."""

    def __init__(self, task_group: TaskGroup) -> None:
        self._task_group = task_group
        self._jobs: list[Job[Any]] = []
        self._background: tuple[Run, Children] | None = None

    async def start(self, run: Run, spec: AgentSpec, origin_key: str) -> Job[Any]:
        """Start a child of the run's root. Its contract is durable when this returns."""
        if self._background is None:
            self._background = run, run.runner.children_of(run.root, self._task_group)
        _, children = self._background
        await children.approve({origin_key: spec}, typed=True)
        child = await children.start(spec, origin_key)
        await child.agent.durable()
        job = Job[Any](child, spec.output.convert)
        self._jobs.append(job)
        return job

    async def join(self, jobs: Iterable[Job[Any]] | Literal["*"]) -> list[Result[Any]]:
        """Wait for these jobs, or for all."""
        joined = list(self._jobs if jobs == "*" else jobs)
        for job in joined:
            if not isinstance(job, Job):
                raise UsageError(f'Jobs are what `start` returns, or "*" for all; not {job!r}.')
        return [await job.result() for job in joined]

    def end(self) -> None:
        """End all jobs that still run, since the program is done."""
        if self._background is None:
            return
        run, children = self._background
        for job in children.jobs.values():
            if job.is_left_open:
                job.leave_open()
            else:
                job.cancel(run.runner.cancel_reason)
