"""The agents of one host: runs their attempts, and reports to the run that owns them."""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from functools import partial
from typing import Any, assert_never

import msgspec

from retinue.errors import RunSuspended, WorkspaceError
from retinue.ports.clock import Clock, ClockGap
from retinue.ports.endpoint_slots import SlotSource
from retinue.ports.file_tree import FileTree, TreeLocation
from retinue.ports.model import ModelCatalog
from retinue.runtime.agent.agent import Agent
from retinue.runtime.agent.agent_services import Tools
from retinue.runtime.agent.lifecycle import run_attempts
from retinue.runtime.agent.watchdog import watch
from retinue.runtime.core.task_group import TaskGroup
from retinue.runtime.integration.tool_context import ToolContexts
from retinue.runtime.placement.hosted_agent import HostedAgent, NoFilesHere
from retinue.runtime.placement.hosted_files import HostFiles
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
    Item,
    NoFiles,
    Place,
    Report,
    SlotAnswered,
    Stop,
    Suspend,
    Tell,
)

ALIVE_EVERY_S = 1.0
COLLECT_S = 0.002


class HostServices(msgspec.Struct, frozen=True, kw_only=True):
    """What the agents of a host share. Built once per host."""

    models: ModelCatalog
    take_slots_from: Callable[[SlotSource], None]
    """Has each request to a model take a slot there."""
    tools: Tools
    tool_contexts: ToolContexts
    project: FileTree
    open_tree: Callable[[TreeLocation, str], Awaitable[FileTree]]
    """Opens the files of an agent that works in a directory of the project."""
    files: HostFiles
    """For agents of a run whose disk this machine does not see."""
    clock: Clock
    silence_s: float


class AgentHost:
    """Runs agents. The run sends commands to `handle`, and reads reports with `poll`.

    Reports are kept until the run has acknowledged them.
    """

    def __init__(self, services: HostServices, lease: Lease) -> None:
        self.services = services
        self._lease = lease
        self.hosted: dict[int, HostedAgent] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._group = TaskGroup()
        self._items: deque[Item] = deque()
        self._number = self._acknowledged = 0
        self._waiters: list[tuple[int, int, asyncio.Future[None]]] = []
        self._has_items = asyncio.Event()
        self.slots = HostedSlots(partial(self.report, 0))
        services.take_slots_from(self.slots)

    # Reports

    def report(self, serial: int, report: Report) -> int:
        """Add a report, and return its number."""
        self._number += 1
        self._items.append(Item(self._number, serial, report))
        self._has_items.set()
        return self._number

    async def poll(self, after: int) -> Sequence[Item]:
        """Wait for reports with a number above `after`."""
        while self._number <= after:
            self._has_items.clear()
            await self._has_items.wait()
        # Reports of one step of the loop, such as the end of a reservation and what was spent
        # instead, arrive together. So do those of several agents: messages cost more than bytes.
        await asyncio.sleep(COLLECT_S)
        return [item for item in self._items if item.number > after]

    async def durable(self, number: int) -> None:
        """Wait until the run has acknowledged everything up to `number`."""
        if number > self._acknowledged:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            heapq.heappush(self._waiters, (number, id(waiter), waiter))
            await waiter

    # Commands

    def handle(self, command: Command) -> None:
        self._lease.check()
        if isinstance(command, Acknowledged):
            self._acknowledge(command.upto)
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

    def _acknowledge(self, upto: int) -> None:
        self._acknowledged = upto
        while self._items and self._items[0].number <= upto:
            self._items.popleft()
        while self._waiters and self._waiters[0][0] <= upto:
            _, _, waiter = heapq.heappop(self._waiters)
            if not waiter.done():
                waiter.set_result(None)

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
            self._lease.reported(self.report(0, Alive(tuple(waiting))))

    def _place(self, place: Place) -> None:
        try:
            hosted = HostedAgent(self, place)
        except Exception as error:
            self.report(place.serial, Failed(f"{type(error).__name__}: {error}"))
            return
        self.hosted[place.serial] = hosted
        self._tasks[place.serial] = self._group.create_task(self._run(place, hosted))

    async def _run(self, place: Place, hosted: HostedAgent) -> None:
        agent = hosted.agent
        try:
            async with hosted.opened_files() as tree:
                outcome = await run_attempts(agent, hosted.agent_services(tree))
            self.report(place.serial, Ended(outcome=outcome, last_text=agent.last_text))
        except RunSuspended as error:
            self.report(place.serial, Ended(suspended=str(error), last_text=agent.last_text))
        except asyncio.CancelledError:
            self.report(place.serial, Ended(last_text=agent.last_text))
            raise
        except NoFilesHere as error:
            self.report(place.serial, NoFiles(str(error)))
        except WorkspaceError as error:
            self.report(place.serial, Failed(str(error)))
        except Exception as error:
            # A bug: it ends this agent, not its siblings.
            self.report(place.serial, Failed(f"{type(error).__name__}: {error}"))
        finally:
            del self.hosted[place.serial], self._tasks[place.serial]
