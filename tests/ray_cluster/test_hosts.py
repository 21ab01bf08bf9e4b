"""The run's side of a host on a Ray node: what a lost driver and a hostile host do to it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest

from retinue.process_hosts import Program
from retinue.ray_cluster.hosts import DriverLink, RayHost
from retinue.ray_cluster.messages import LOST, Node, Starting
from retinue.runtime.placement.connection import Connection, message_frame
from retinue.runtime.placement.host import HostLost
from retinue.runtime.placement.lease import TAKEOVER_S
from retinue.runtime.placement.messages import Heard, HostInfo
from retinue.testing.clock import FakeClock

NODE = Node(id="n1", name="here", address="10.0.0.1", resources={}, labels={})
INFO = HostInfo(
    retinue_version="1", python="3", pid=1, machine="m", shares_disk=False, why_no_files="",
    sandbox="", tools=(), cpus=1, load=0.0,
)  # fmt: skip


class EndedDriver:
    """As much of a driver's process as says why it has ended."""

    def __init__(self) -> None:
        self.asked = 0

    async def last_words(self) -> str:
        self.asked += 1
        assert self.asked < 5, "it would be asked for ever, without a pause"
        return "killed"


@asynccontextmanager
async def ray_host(folder: Path, clock: FakeClock) -> AsyncIterator[tuple[RayHost, socket.socket]]:
    """A host, and the end of its connection that the driver has."""
    ours, theirs = socket.socketpair()
    with theirs:
        reader, writer = await asyncio.open_connection(sock=ours)
        connection = Connection(reader, writer, str(folder))
        driver = cast("Program", EndedDriver())
        link = DriverLink("ray-1@here", connection, ours, driver, clock)
        yield RayHost("ray-1@here", INFO, Starting(NODE, {}), link), theirs
        connection.close()


async def end_of_lease(host: RayHost, clock: FakeClock) -> None:
    """End a host of which nothing says that it has ended: so its agents wait for its lease."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(host.end())
        await clock.asleep(TAKEOVER_S)
        clock.advance(TAKEOVER_S)


async def test_a_driver_that_is_killed_before_it_has_read_all_keeps_nobody_waiting(
    tmp_path: Path,
) -> None:
    clock = FakeClock()
    async with ray_host(tmp_path, clock) as (host, theirs):
        host.send(Heard(1))
        await asyncio.to_thread(theirs.recv, 1)
        theirs.close()  # What it has not read makes this a reset.
        with pytest.raises(HostLost, match="was lost with the Ray driver: killed"):
            await host.poll(0)
        await end_of_lease(host, clock)


async def test_a_host_that_sends_rubbish_until_its_end_is_only_lost(tmp_path: Path) -> None:
    clock = FakeClock()
    async with ray_host(tmp_path, clock) as (host, theirs):
        theirs.sendall(message_frame(LOST) * 2)
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises(HostLost, match="ray-1@here sends what cannot be read"):
            await host.poll(0)
        await end_of_lease(host, clock)
