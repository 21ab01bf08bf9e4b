"""The agents of one host: runs their attempts, and reports to the run that owns them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from functools import partial
from typing import Any, assert_never

from retinue.errors import RunSuspended, WorkspaceError
from retinue.ports.clock import ClockGap
from retinue.runtime.agent.agent import Agent
from retinue.runtime.agent.lifecycle import run_attempts
from retinue.runtime.agent.watchdog import watch
from retinue.runtime.core.task_group import TaskGroup
from retinue.runtime.placement.host_reports import HostReports
from retinue.runtime.placement.hosted_agent import HostedAgent, HostServices, NoFilesHere
from retinue.runtime.placement.hosted_slots import HostedSlots
from retinue.runtime.placement.lease import Lease
from retinue.runtime.placement.messages import (
    Acknowledged,
    Alive,
    Answered,
    Cancel,
    Command,
    Ended,
    Failed,
    Heard,
    NoFiles,
    Place,
    SlotAnswered,
    Stop,
    Suspend,
    Tell,
)

ALIVE_EVERY_S = 1.0


class AgentHost:
    """Runs agents. The run sends commands to `handle`, and gets `reports`."""

    def __init__(self, services: HostServices, lease: Lease) -> None:
        self.services = services
        self._lease = lease
        self.hosted: dict[int, HostedAgent] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._group = TaskGroup()
        self.reports = HostReports()
        self.slots = HostedSlots(partial(self.reports.add, 0))
        services.take_slots_from(self.slots)

    # Commands

    def handle(self, command: Command) -> None:
        self._lease.check()
        if isinstance(command, Acknowledged):
            self.reports.acknowledge(command.upto)
        elif isinstance(command, Heard):
            self._lease.heard(command.upto)
        elif isinstance(command, SlotAnswered):
            self.slots.answered(command)
        elif isinstance(command, Place):
            self._place(command)
        elif (hosted := self.hosted.get(command.serial)) is not None:
            match command:
                case Answered():
                    hosted.link.answered(command)
                case Tell():
                    hosted.tell(command.source, command.text)
                case Stop():
                    hosted.agent.stop(command.reason)
                case Suspend():
                    hosted.suspend(command.reason, raises=command.raises)
                case Cancel():
                    self._tasks[command.serial].cancel()
                case _:
                    assert_never(command)

    # Agents

    async def run(self, *transport: Coroutine[Any, Any, None]) -> None:
        """Run agents forever. The coroutines of `transport` pass commands and reports on."""
        clock = self.services.clock
        with clock.watch(self._skip_stall):
            async with self._group as group:
                group.create_task(watch(self._agents, clock, self.services.silence_s / 4))
                group.create_task(self._report_life())
                for passing_on in transport:
                    group.create_task(passing_on)

    def _agents(self) -> Iterator[Agent]:
        return iter([hosted.agent for hosted in self.hosted.values()])

    def _skip_stall(self, gap: ClockGap) -> None:
        now = self.services.clock.monotonic()
        for agent in self._agents():
            agent.activity.last_seen = min(now, agent.activity.last_seen + gap.stalled_s)

    async def _report_life(self) -> None:
        while True:
            await self.services.clock.sleep(ALIVE_EVERY_S)
            waiting = [n for n, hosted in self.hosted.items() if hosted.agent.activity.waits]
            self._lease.check()
            self._lease.reported(self.reports.add(0, Alive(tuple(waiting))))

    def _place(self, place: Place) -> None:
        try:
            hosted = HostedAgent(self.services, self.reports, place)
        except Exception as error:
            self.reports.add(place.serial, Failed(f"{type(error).__name__}: {error}"))
            return
        self.hosted[place.serial] = hosted
        task = self._tasks[place.serial] = self._group.create_task(self._run(place, hosted))
        # Not in `_run`: a task that is cancelled before its first step runs nothing of it.
        task.add_done_callback(partial(self._ended, place.serial, hosted))

    def _ended(self, serial: int, hosted: HostedAgent, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            self.reports.add(serial, Ended(last_text=hosted.agent.last_text))
        del self.hosted[serial], self._tasks[serial]

    async def _run(self, place: Place, hosted: HostedAgent) -> None:
        agent = hosted.agent
        try:
            async with hosted.opened_files() as tree:
                outcome = await run_attempts(agent, hosted.agent_services(tree))
            self.reports.add(place.serial, Ended(outcome=outcome, last_text=agent.last_text))
        except RunSuspended as error:
            self.reports.add(place.serial, Ended(suspended=str(error), last_text=agent.last_text))
        except NoFilesHere as error:
            self.reports.add(place.serial, NoFiles(str(error)))
        except WorkspaceError as error:
            self.reports.add(place.serial, Failed(str(error)))
        except Exception as error:
            # A bug: it ends this agent, not its siblings.
            self.reports.add(place.serial, Failed(f"{type(error).__name__}: {error}"))
