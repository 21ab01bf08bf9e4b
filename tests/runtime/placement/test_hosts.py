"""Hosts that fail to start, and reports that come too late."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    nullcontext,
)
from functools import partial
from typing import ClassVar, cast

import msgspec
import pytest

from retinue.domain.events import AgentPlaced
from retinue.errors import RunError, StoreError
from retinue.models.routing.lent_slots import HostSlots
from retinue.runtime.core.clock import SystemClock
from retinue.runtime.placement.host import FileChannel, HostLost
from retinue.runtime.placement.hosts import Hosts
from retinue.runtime.placement.messages import (
    Acknowledged,
    Alive,
    Cancel,
    Command,
    Ended,
    Heard,
    HostInfo,
    Item,
    Progress,
    Recorded,
)
from retinue.runtime.placement.placed_agent import PlacedAgent

LEND = partial(HostSlots, lambda name: None)


class LateHost:
    """A host that reports about placements that are over, as one does that was cut off."""

    name = "late"
    resources: ClassVar[Mapping[str, float]] = {}
    info = HostInfo(
        retinue_version="1",
        python="3",
        pid=1,
        machine="m",
        shares_disk=True,
        why_no_files="",
        sandbox="",
        tools=(),
        cpus=1,
        load=0.0,
    )

    @property
    def files(self) -> FileChannel:
        raise NotImplementedError

    def __init__(self) -> None:
        self.acknowledged, self.heard = asyncio.Event(), asyncio.Event()
        self.sent: list[Command] = []

    def send(self, command: Command) -> None:
        self.sent.append(command)
        if command == Acknowledged(3):
            self.acknowledged.set()
        if command == Heard(3):
            self.heard.set()

    async def poll(self, after: int) -> Sequence[Item]:
        if after:
            await asyncio.Event().wait()
        late = Recorded(msgspec.Raw(b'{"type":"agent.subagent_started","sub_agent_id":"a1"}'), 1)
        return [Item(1, 0, Alive((7,))), Item(2, 7, late), Item(3, 7, Ended(last_text="x"))]

    async def end(self) -> None:
        pass


@asynccontextmanager
async def starting(problem: str) -> AsyncIterator[LateHost]:
    if problem:
        raise HostLost(problem)
    yield LateHost()


async def test_reports_of_an_earlier_placement_are_refused() -> None:
    host = LateHost()

    @asynccontextmanager
    async def start() -> AsyncIterator[LateHost]:
        yield host

    async with Hosts([start], SystemClock(), LEND).opened() as hosts:
        await host.acknowledged.wait()
        assert hosts.refused == 2
        assert host.sent == [Heard(1), Acknowledged(3)]
        assert hosts.live == [host]


async def test_hosts_that_do_not_start() -> None:
    start = partial(starting, "one has ended while it started: No module named 'x'")
    with pytest.raises(RunError) as raised:
        async with Hosts([start, start], SystemClock(), LEND).opened():
            pass
    why = "No host could be started: one has ended while it started: No module named 'x'."
    assert str(raised.value) == why


async def test_one_host_of_two_is_enough() -> None:
    @asynccontextmanager
    async def start() -> AsyncIterator[LateHost]:
        yield LateHost()

    async with Hosts(
        [partial(starting, "a has not started within 60 s"), start], SystemClock(), LEND
    ).opened() as hosts:
        assert len(hosts.live) == 1


class EndingHost(LateHost):
    """A host that is lost, and takes its time to end."""

    def __init__(self) -> None:
        super().__init__()
        self.lost, self.ending, self.ended = (asyncio.Event() for _ in range(3))

    async def poll(self, after: int) -> Sequence[Item]:
        await self.lost.wait()
        raise HostLost("late has ended")

    async def end(self) -> None:
        self.ending.set()
        await self.ended.wait()


class WaitingAgent:
    """As much of an agent as asks for a host."""

    role = "researcher"
    inherited_stop_reason = None

    def __init__(self) -> None:
        self.agent, self.state = self, self
        self.placement = 1
        self.told = asyncio.Queue[str]()

    def record(self, fact: AgentPlaced) -> None:
        self.told.put_nowait(fact.reason)

    def waiting(self) -> AbstractContextManager[None]:
        return nullcontext()

    def why_not(self, host: LateHost) -> str:
        return ""


async def test_an_agent_waits_while_a_lost_host_is_ended() -> None:
    host, waiting = EndingHost(), WaitingAgent()

    @asynccontextmanager
    async def start() -> AsyncIterator[LateHost]:
        yield host

    async with Hosts([start], SystemClock(), LEND).opened() as hosts:
        host.lost.set()
        await host.ending.wait()
        taking = asyncio.create_task(hosts.take(cast("PlacedAgent", waiting)))
        assert await waiting.told.get() == "waits for a host: late has ended"
        taking.cancel()
        host.ended.set()


class ReportingHost(LateHost):
    """A host whose reports are put in by the test."""

    def __init__(self) -> None:
        super().__init__()
        self.reports = asyncio.Queue[Item]()

    async def poll(self, after: int) -> Sequence[Item]:
        return [await self.reports.get()]


class RecordingAgent(WaitingAgent):
    """As much of a placed agent as records reports, in a journal that the test holds up."""

    waits_for_others = False

    def __init__(self, run_id: str, host: LateHost) -> None:
        super().__init__()
        self.contract = self.parent = self
        self.run_id = run_id
        self.written = asyncio.get_running_loop().create_future()
        self.errors: list[Exception] = []
        self._host = host

    def handle(self, number: int, report: object) -> None:
        pass

    async def durable(self) -> None:
        await asyncio.shield(self.written)

    def lost(self, error: Exception) -> None:
        self.errors.append(error)
        self._host.send(Cancel(0))


@asynccontextmanager
async def reporting() -> AsyncIterator[tuple[ReportingHost, Hosts]]:
    host = ReportingHost()

    @asynccontextmanager
    async def start() -> AsyncIterator[LateHost]:
        yield host

    async with Hosts([start], SystemClock(), LEND).opened() as hosts:
        yield host, hosts


async def placed(hosts: Hosts, agent: RecordingAgent) -> int:
    return (await hosts.take(cast("PlacedAgent", agent))).serial


async def test_a_host_is_heard_while_the_journal_is_slow() -> None:
    async with reporting() as (host, hosts):
        agent = RecordingAgent("k3f9", host)
        serial = await placed(hosts, agent)
        host.reports.put_nowait(Item(1, serial, Progress("run_command", "")))
        host.reports.put_nowait(Item(2, 0, Alive()))
        host.reports.put_nowait(Item(3, 0, Alive()))
        await host.heard.wait()
        assert host.sent == [Heard(2), Heard(3)]
        agent.written.set_result(None)
        await host.acknowledged.wait()


async def test_what_cannot_be_recorded_ends_all_agents_of_its_run_first() -> None:
    async with reporting() as (host, hosts):
        agents = [RecordingAgent(run_id, host) for run_id in ("k3f9", "k3f9", "other")]
        serials = [await placed(hosts, agent) for agent in agents]
        error = StoreError("disk full")
        agents[0].written.set_exception(error)
        agents[2].written.set_result(None)
        for number, serial in enumerate((serials[0], serials[2], serials[2]), 1):
            host.reports.put_nowait(Item(number, serial, Progress("run_command", "")))
        await host.acknowledged.wait()
        assert [agent.errors for agent in agents] == [[error], [error], []]
        assert host.sent.index(Cancel(0)) < host.sent.index(Acknowledged(3))
        for serial in serials:
            hosts.leave(serial)


async def test_a_host_that_cannot_be_started_for_want_of_room() -> None:
    def start() -> AbstractAsyncContextManager[LateHost]:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(RunError) as raised:
        async with Hosts([start], SystemClock(), LEND).opened():
            pass
    why = "a host cannot be started here: No space left on device"
    assert str(raised.value) == f"No host could be started: {why}."


class ReportedAgent(WaitingAgent):
    """As much of an agent as a host reports about."""

    def __init__(self) -> None:
        super().__init__()
        self.handled: list[object] = []
        self.touched = 0

    def handle(self, number: int, report: object) -> None:
        self.handled.append(report)

    def touch(self) -> None:
        self.touched += 1


async def test_a_host_reports_only_about_its_own_agents() -> None:
    ours, other = ReportingHost(), ReportingHost()

    @asynccontextmanager
    async def start(host: ReportingHost) -> AsyncIterator[LateHost]:
        yield host

    starts = [partial(start, ours), partial(start, other)]
    async with Hosts(starts, SystemClock(), LEND).opened() as hosts:
        agent = ReportedAgent()
        placement = await hosts.take(cast("PlacedAgent", agent))
        assert placement.host is ours
        other.reports.put_nowait(Item(1, 0, Alive((placement.serial,))))
        other.reports.put_nowait(Item(2, placement.serial, Ended(last_text="forged")))
        other.reports.put_nowait(Item(3, 0, Alive()))
        await other.acknowledged.wait()
        assert (agent.handled, agent.touched, hosts.refused) == ([], 0, 1)
        hosts.leave(placement.serial)
