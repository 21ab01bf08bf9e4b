"""The children of one agent: spawn them, wait for them, stop them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Self

from retinue.domain.agent_spec import AgentSpec
from retinue.domain.agent_state import ABOUT_FAILURES
from retinue.domain.result import ChildFailure, Result
from retinue.domain.resume_point import ResumePoint
from retinue.errors import RunSuspended
from retinue.runtime.agent.agent import Agent
from retinue.runtime.agent.agent_services import RunningChild
from retinue.runtime.agent.loop import CHILDREN_RUNNING
from retinue.runtime.core.task_group import TaskGroup
from retinue.runtime.delegation.spawner import Spawner
from retinue.runtime.integration.baseline import BACKGROUND, Baseline

PARENT_DONE = "its parent is done"
RunAgent = Callable[[Agent, "Permit"], Coroutine[Any, Any, Result]]


class Permit:
    """Concurrency permit of a child, released while the child waits for a sibling."""

    def __init__(self, permits: asyncio.Semaphore) -> None:
        self._permits = permits
        self._held = False

    async def acquire(self) -> None:
        """Wait for the permit, unless it is held already."""
        if not self._held:
            await self._permits.acquire()
            self._held = True

    def release(self) -> None:
        if self._held:
            self._held = False
            self._permits.release()

    async def __aenter__(self) -> Self:
        await self.acquire()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.release()


class ChildJob:
    """A child that runs or is done. A background child that runs has a task of its own."""

    def __init__(
        self, agent: Agent, baseline: Baseline, task: asyncio.Task[Result] | None = None
    ) -> None:
        self.agent = agent
        self.delivered = False
        """Whether the parent has read the result."""
        self._baseline = baseline
        self._task = task

    @property
    def id(self) -> str:
        return self.agent.id

    @property
    def run_id(self) -> str:
        return self.agent.contract.parent.run_id

    @property
    def title(self) -> str:
        return self.agent.contract.step.title

    @property
    def done(self) -> bool:
        return self.agent.result is not None if self._task is None else self._task.done()

    def cancel(self, reason: str = "cancelled by the program") -> None:
        """Stop the child for good. It is closed as cancelled, and its result says so."""
        if self._task is None:
            self.agent.stop(reason)
        elif not self.done and self.agent.stop_reason is None:
            self.agent.activity.stop_reason = reason
            self._task.cancel()

    async def result(self) -> Result:
        """Wait for the child. Cancelling the wait does not cancel the child.

        Raises RunSuspended if the child cannot continue because a model endpoint is gone.
        """
        if self._task is not None and not self._task.done():
            # Awaiting the task itself would cancel it with the wait.
            ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._task.add_done_callback(partial(_wake, ended))
            self.agent.activity.awaited_by.append(ended)
            if not self.is_left_open:
                await ended
            if self.is_left_open:
                raise RunSuspended(self.agent.activity.endpoint_failure, run_id=self.run_id)
        self._baseline.result_seen = True
        return self.outcome

    @property
    def is_left_open(self) -> bool:
        """Whether the child waits for its model endpoint, and was not cancelled since."""
        return bool(self.agent.activity.endpoint_failure) and self.agent.stop_reason is None

    def leave_open(self) -> None:
        """End the task of a child that waits for its model endpoint; the child stays open."""
        if self._task is not None:
            self._task.cancel()

    @property
    def outcome(self) -> Result:
        """The result of a child that is done."""
        if self._task is not None and not self._task.cancelled():
            return self._task.result()
        assert self.agent.result is not None, "it is done"
        return self.agent.result


def _wake(ended: asyncio.Future[None], _: asyncio.Task[Result]) -> None:
    if not ended.done():
        ended.set_result(None)


class Children:
    """The children of one agent, or of the program that leads a run. Implements `ChildJobs`.

    A child beyond `max_concurrent` waits for a permit. The limit is per parent: with one limit per
    run, parents that wait for their children would hold the permits that those children need.
    """

    def __init__(
        self,
        spawner: Spawner,
        run: RunAgent,
        parent: Agent,
        *,
        max_concurrent: int,
        tasks: TaskGroup | None = None,
    ) -> None:
        """`run` runs an agent from its contract to its closing.

        `tasks` runs the background children of a program; an agent enters `attempt` instead.
        """
        self._spawner = spawner
        self._run = run
        self._parent = parent
        self._max_concurrent = max_concurrent
        self._reset(tasks)

    def _reset(self, tasks: TaskGroup | None) -> None:
        self._tasks = tasks
        self.permits = asyncio.Semaphore(self._max_concurrent)
        self.jobs: dict[str, ChildJob] = {}
        self._by_origin: dict[str, ChildJob] = {}
        self._running_reported = self._failed_reported = False
        self._start_turn()

    def _start_turn(self) -> None:
        """Let the children that are spawned from now on start from the same files."""
        self._baseline, self._background_baseline = Baseline(), Baseline(queue=BACKGROUND)

    @asynccontextmanager
    async def attempt(
        self, resume_point: ResumePoint | None, *, continued: bool = False
    ) -> AsyncIterator[None]:
        async with TaskGroup() as tasks:
            if continued:
                self._tasks = tasks
            else:
                self._reset(tasks)
            if resume_point is not None:
                self._restore(resume_point)
            try:
                yield
            except RunSuspended:
                for job in self.background:
                    with suppress(RunSuspended):
                        await job.result()
                raise
            await self.cancel_running(PARENT_DONE)

    def rejoin(self, resume_point: ResumePoint) -> None:
        self._running_reported = resume_point.has_message_from(CHILDREN_RUNNING)
        for job in self.jobs.values():
            job.delivered = job.id in resume_point.delivered

    def _restore(self, resume_point: ResumePoint) -> None:
        """Take over the children that an earlier process spawned in the same attempt."""
        self._running_reported = resume_point.has_message_from(CHILDREN_RUNNING)
        self._failed_reported = resume_point.has_message_from(ABOUT_FAILURES)
        for agent in self._spawner.restore_children(self._parent, resume_point):
            runs = agent.state.background and agent.result is None
            job = ChildJob(agent, Baseline(), self._run_in_background(agent) if runs else None)
            job.delivered = agent.id in resume_point.delivered
            self.jobs[agent.id] = self._by_origin[agent.state.origin_key] = job

    def _run_in_background(self, agent: Agent) -> asyncio.Task[Result]:
        assert self._tasks is not None, "an attempt is entered"
        return self._tasks.create_task(self._run(agent, Permit(self.permits)))

    @property
    def background(self) -> list[ChildJob]:
        return [job for job in self.jobs.values() if job.agent.state.background]

    def restored(self, origin_key: str) -> ChildJob | None:
        """The child that an earlier process spawned for `origin_key`."""
        return self._by_origin.get(origin_key)

    def child_for(self, origin_key: str) -> Agent | None:
        agents = (job.agent for job in self.jobs.values())
        return next((agent for agent in agents if agent.state.origin_key == origin_key), None)

    async def approve(self, wanted: Mapping[str, AgentSpec], *, typed: bool = False) -> None:
        """Ask the user about children, by origin key, that need approval; `Spawner.approve`."""
        await self._spawner.approve(wanted, self._parent, typed=typed)

    @property
    def may_ask(self) -> bool:
        """Whether children that write or run commands need the user's approval."""
        return self._spawner.may_ask(self._parent)

    async def spawn(
        self,
        make_spec: Callable[[], Awaitable[AgentSpec]],
        origin_key: str,
        baseline: Baseline | None = None,
    ) -> Result:
        """Spawn a child and wait for it. Raises UsageError.

        If an earlier process spawned a child for `origin_key`, wait for that child; run it if
        nothing runs it. A new child is made when there is a permit for it: a thousand children
        that a model asks for in one reply take no more memory than those that run.
        """
        job = self.restored(origin_key)
        if job is not None:
            if job.agent.state.background or job.done:
                return await job.result()
            async with Permit(self.permits) as permit:
                return await self._run(job.agent, permit)
        spec = await make_spec()
        baseline = baseline or self._baseline
        async with Permit(self.permits) as permit:
            agent = await self._spawner.create(spec, self._parent, baseline, origin_key=origin_key)
            self.jobs[agent.id] = ChildJob(agent, baseline)
            return await self._run(agent, permit)

    def add(self, agent: Agent) -> None:
        """Take over a child that something else runs, such as a race."""
        self.jobs[agent.id] = ChildJob(agent, self._baseline)

    async def start(self, spec: AgentSpec, origin_key: str) -> ChildJob:
        """Spawn a child in the background. Raises UsageError."""
        if self._background_baseline.result_seen:
            self._background_baseline = Baseline(queue=BACKGROUND)
        baseline = self._background_baseline
        agent = await self._spawner.create(
            spec, self._parent, baseline, origin_key=origin_key, background=True
        )
        job = self.jobs[agent.id] = ChildJob(agent, baseline, self._run_in_background(agent))
        # A task that is cancelled before its first step never runs, and could not close its agent.
        await asyncio.sleep(0)
        return job

    async def has_news(self) -> bool:
        return any(job.done and not job.delivered for job in self.background)

    async def take_ended(self) -> list[Result]:
        self._start_turn()
        ended = [job for job in self.background if job.done and not job.delivered]
        for job in ended:
            job.delivered = True
        return [job.outcome for job in ended]

    def take_failed(self) -> list[ChildFailure]:
        if self._failed_reported or self._parent.parent is not None:
            return []
        failed = self._spawner.reportable_failures()
        self._failed_reported = bool(failed)
        return failed

    async def take_running(self) -> list[RunningChild]:
        if self._running_reported:
            return []
        running = [RunningChild(job.id, job.title) for job in self.background if not job.done]
        self._running_reported = bool(running)
        return running

    async def cancel_running(self, reason: str) -> None:
        """Stop all children that still run, and wait until they are closed."""
        running = [job for job in self.jobs.values() if not job.done]
        for job in running:
            job.cancel(reason)
        for job in running:
            await job.result()
