"""Hosts that fail to start, and reports that come too late."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from functools import partial
from typing import cast

import msgspec
import pytest

from retinue.domain.events import AgentPlaced
from retinue.errors import RunError
from retinue.models.routing.lent_slots import HostSlots
from retinue.runtime.core.clock import SystemClock
from retinue.runtime.placement.host import FileChannel, HostLost
from retinue.runtime.placement.hosts import Hosts
from retinue.runtime.placement.messages import (
    Acknowledged,
    Alive,
    Command,
    Ended,
    HostInfo,
    Item,
    Recorded,
)
from retinue.runtime.placement.placed_agent import PlacedAgent

LEND = partial(HostSlots, lambda name: None)


class LateHost:
    """A host that reports about placements that are over, as one does that was cut off."""

    name = "late"
    info = HostInfo(
        retinue_version="1",
        python="3",
        pid=1,
        machine="m",
        shares_disk=True,
        why_no_files="",
        sandbox="",
        tools=(),
    )

    @property
    def files(self) -> FileChannel:
        raise NotImplementedError

    def __init__(self) -> None:
        self.acknowledged = asyncio.Event()

    def send(self, command: Command) -> None:
        assert command == Acknowledged(3)
        self.acknowledged.set()

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
