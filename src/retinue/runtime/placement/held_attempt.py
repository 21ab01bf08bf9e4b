"""Keeps an attempt open at the run while a host runs it, for the children of its agent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from retinue.domain.resume_point import ResumePoint
from retinue.domain.run_state import fold_agent
from retinue.errors import RunSuspended
from retinue.ports.store import Store
from retinue.runtime.agent.agent import Agent
from retinue.runtime.agent.agent_services import ChildJobs
from retinue.runtime.core.task_group import TaskGroup
from retinue.runtime.placement import messages as msg


class _AttemptFailed(Exception):
    """Ends the children of an attempt that an error or a time limit has ended on its host."""


class HeldAttempt:
    """Opens the attempt of `agent` for its children when a host enters it, and closes it after.

    `on_left` is called when an attempt is closed, `on_error` if its children fail it.
    """

    def __init__(
        self,
        agent: Agent,
        store: Store,
        tasks: TaskGroup,
        *,
        on_left: Callable[[], None],
        on_error: Callable[[Exception], None],
    ) -> None:
        self._agent = agent
        self._store = store
        self._tasks = tasks
        self._on_left = on_left
        self._on_error = on_error
        self._task: asyncio.Task[None] | None = None
        self._leaving: asyncio.Future[msg.LeaveAttempt]
        self._resume_point, agent.resume_point = agent.resume_point, None

    async def enter(self, enter: msg.EnterAttempt, children: ChildJobs) -> None:
        if self._task is not None:
            if self._leaving.done():
                await asyncio.wait([self._task])
            elif enter.resumed:
                run_id = self._agent.contract.parent.run_id
                events = await self._store.agent_events(run_id, self._agent.id)
                children.rejoin(fold_agent(events))
                return
            else:
                await self.leave(msg.LeaveAttempt(failed=True))
        self._agent.activity.timed_out = False
        self._leaving = asyncio.get_running_loop().create_future()
        point, self._resume_point = self._resume_point, None
        entered = asyncio.Event()
        self._task = self._tasks.create_task(
            self._hold(children, entered, point if enter.resumed else None, enter.continued)
        )
        await entered.wait()

    async def _hold(
        self,
        children: ChildJobs,
        entered: asyncio.Event,
        resume_point: ResumePoint | None,
        continued: bool,
    ) -> None:
        try:
            async with children.attempt(resume_point, continued=continued):
                entered.set()
                leave = await self._leaving
                self._agent.activity.timed_out = leave.timed_out
                if leave.suspended:
                    raise RunSuspended(leave.suspended, run_id=self._agent.contract.parent.run_id)
                if leave.failed:
                    raise _AttemptFailed
        except (_AttemptFailed, RunSuspended):
            pass
        except Exception as error:
            self._on_error(error)
        finally:
            entered.set()

    async def leave(self, leave: msg.LeaveAttempt) -> None:
        """Close the attempt, if one is open."""
        if self._task is None:
            return
        if not self._leaving.done():
            self._leaving.set_result(leave)
        try:
            await asyncio.wait([self._task])
        except asyncio.CancelledError:
            self._task.cancel()
            raise
        self._task = None
        self._on_left()
