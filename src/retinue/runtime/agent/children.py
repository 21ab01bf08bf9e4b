"""The children of one agent: hired, waited for, told things, stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Protocol

from retinue.domain.drafting import AgentSpec
from retinue.domain.result import Result
from retinue.domain.resume_point import ResumePoint
from retinue.runtime.agent.agent import Agent
from retinue.runtime.agent.baseline import BACKGROUND, Baseline
from retinue.runtime.core.task_group import TaskGroup

LOOSE_ENDS = "loose ends"  # source of a reminder that background children are still running


class Slot:
    """A place among those that work at the same time. Who has only to wait leaves it to others."""

    def __init__(self, slots: asyncio.Semaphore) -> None:
        self._slots = slots
        self._taken = False

    async def take(self) -> None:
        """Return when it is taken, which it may be already."""
        if not self._taken:
            await self._slots.acquire()
            self._taken = True

    def leave(self) -> None:
        if self._taken:
            self._taken = False
            self._slots.release()


class Employer(Protocol):
    """What a run does for those who hire."""

    async def agree(self, spec: AgentSpec, by: Agent) -> None: ...

    async def create(
        self,
        spec: AgentSpec,
        by: Agent,
        round: Baseline | None = None,
        *,
        origin_key: str = "",
        background: bool = False,
    ) -> Agent: ...

    async def see_through(self, agent: Agent, slot: Slot | None = None) -> Result: ...


class Job:
    """A child, under way or done. One in the background has a task of its own."""

    def __init__(
        self,
        agent: Agent,
        round: Baseline,
        task: asyncio.Task[Result] | None = None,
        *,
        background: bool = False,
    ) -> None:
        self.agent = agent
        self.background = background or task is not None
        self._round = round
        self.delivered = False
        self._task = task

    @property
    def id(self) -> str:
        return self.agent.id

    @property
    def run_id(self) -> str:
        return self.agent.contract.parent.run_id

    @property
    def done(self) -> bool:
        return self.agent.result is not None if self._task is None else self._task.done()

    def cancel(self, why: str = "cancelled by the program") -> None:
        """Stop the child for good. It is closed as cancelled, and its result says so."""
        if self._task is None:
            self.agent.stop(why)
        elif not self.done and self.agent.stop_reason is None:
            self.agent.stop_reason = why
            self._task.cancel()

    async def result(self) -> Result:
        """Wait for the child. Cancelling the wait does not cancel the child."""
        if self._task is not None and not self._task.done():
            # Awaiting the task itself would cancel it with the wait.
            ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._task.add_done_callback(partial(_tell, ended))
            await ended
        self._round.over = True
        return self.outcome

    @property
    def outcome(self) -> Result:
        """The result of a child that is done."""
        if self._task is not None and not self._task.cancelled():
            return self._task.result()
        assert self.agent.result is not None, "it is done"
        return self.agent.result


def _tell(ended: asyncio.Future[None], _: asyncio.Task[Result]) -> None:
    if not ended.done():
        ended.set_result(None)


class Children:
    """Limits queue: a child beyond `max_concurrent` waits for its turn.

    The limit is each parent's own. One for the whole run would let parents that wait for their
    children hold the places that those children need.
    """

    def __init__(
        self, employer: Employer, boss: Agent, tasks: TaskGroup, *, max_concurrent: int
    ) -> None:
        self._employer = employer
        self._boss = boss
        self._task_group = tasks
        self._slots = asyncio.Semaphore(max_concurrent)
        self._jobs: dict[str, Job] = {}
        self._errands: dict[str, Job] = {}
        self._told_of_loose_ends = False
        self._round = Baseline()
        self._background_round = Baseline(line=BACKGROUND)

    def take_up(self, past: ResumePoint, children: Mapping[str, Agent]) -> None:
        """Have the children again that another process has employed in the same attempt."""
        self._told_of_loose_ends = past.was_told_by(LOOSE_ENDS)
        for agent_id in past.children:
            agent = children[agent_id]
            task = None
            if agent.background and agent.result is None:
                work = self._employer.see_through(agent, Slot(self._slots))
                task = self._task_group.create_task(work)
            job = Job(agent, Baseline(), task, background=agent.background)
            job.delivered = agent_id in past.delivered
            self._jobs[agent_id] = self._errands[agent.origin_key] = job

    def known(self, origin_key: str) -> Job | None:
        """The child that an errand has made already, in another process."""
        return self._errands.get(origin_key)

    async def go_on(self, job: Job) -> Result:
        """Wait for a child that another process has employed."""
        if job.background or job.done:
            return await job.result()
        slot = Slot(self._slots)
        await slot.take()
        try:
            return await self._employer.see_through(job.agent, slot)
        finally:
            slot.leave()

    @property
    def jobs(self) -> Mapping[str, Job]:
        return self._jobs

    @property
    def background(self) -> list[Job]:
        return [job for job in self._jobs.values() if job.background]

    async def employ(
        self, spec: AgentSpec, origin_key: str, round: Baseline | None = None
    ) -> Result:
        """Have a child do it, and wait for it. Raises ContractError.

        A child is made when there is a slot for it: a thousand that a model asks for in one reply
        cost no more memory than those that run.

        Children of one round begin from the same files.
        """
        await self._employer.agree(spec, self._boss)
        round = round or self._round
        slot = Slot(self._slots)
        await slot.take()
        try:
            agent = await self._create(spec, round, origin_key)
            self._jobs[agent.id] = Job(agent, round)
            return await self._employer.see_through(agent, slot)
        finally:
            slot.leave()

    async def hire(self, spec: AgentSpec, origin_key: str) -> Job:
        """Write the contract and set the child to work in the background. Raises ContractError."""
        await self._employer.agree(spec, self._boss)
        if self._background_round.over:
            self._background_round = Baseline(line=BACKGROUND)
        round = self._background_round
        agent = await self._create(spec, round, origin_key, background=True)
        work = self._employer.see_through(agent, Slot(self._slots))
        task = self._task_group.create_task(work)
        job = self._jobs[agent.id] = Job(agent, round, task)
        # A task that is cancelled before its first step never runs, and could not close its agent.
        await asyncio.sleep(0)
        return job

    async def _create(
        self, spec: AgentSpec, round: Baseline, origin_key: str, *, background: bool = False
    ) -> Agent:
        return await self._employer.create(
            spec, self._boss, round, origin_key=origin_key, background=background
        )

    def news(self) -> list[Job]:
        """The background children that have ended since; each is told of once.

        Asked at the beginning of each turn: those that are hired in it make a round.
        """
        self._round, self._background_round = Baseline(), Baseline(line=BACKGROUND)
        ended = [job for job in self.background if job.done and not job.delivered]
        for job in ended:
            job.delivered = True
        return ended

    def loose_ends(self) -> list[Job]:
        """The background children still under way, if this was not asked before."""
        if self._told_of_loose_ends:
            return []
        running = [job for job in self.background if not job.done]
        self._told_of_loose_ends = bool(running)
        return running

    async def dismiss(self, why: str) -> None:
        """Stop whoever still works, and see them closed."""
        running = [job for job in self._jobs.values() if not job.done]
        for job in running:
            job.cancel(why)
        for job in running:
            await job.result()
