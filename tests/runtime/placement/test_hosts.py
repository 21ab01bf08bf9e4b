"""Hosts that fail to start, and reports that come too late."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial

import msgspec
import pytest

from retinue.errors import RunError
from retinue.runtime.core.clock import SystemClock
from retinue.runtime.placement.host import HostLost
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


class LateHost:
    """A host that reports about placements that are over, as one does that was cut off."""

    name = "late"
    info = HostInfo(
        retinue_version="1",
        python="3",
        pid=1,
        machine="m",
        shares_disk=True,
        sandbox="",
        tools=(),
    )

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

    async with Hosts([start], SystemClock()).opened() as hosts:
        await host.acknowledged.wait()
        assert hosts.refused == 2
        assert hosts.live == [host]


async def test_hosts_that_do_not_start() -> None:
    start = partial(starting, "one has ended while it started: No module named 'x'")
    with pytest.raises(RunError) as raised:
        async with Hosts([start, start], SystemClock()).opened():
            pass
    why = "No host could be started: one has ended while it started: No module named 'x'."
    assert str(raised.value) == why


async def test_one_host_of_two_is_enough() -> None:
    @asynccontextmanager
    async def start() -> AsyncIterator[LateHost]:
        yield LateHost()

    async with Hosts(
        [partial(starting, "a has not started within 60 s"), start], SystemClock()
    ).opened() as hosts:
        assert len(hosts.live) == 1
