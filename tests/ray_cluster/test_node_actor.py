"""The actor that runs a host on a node, without Ray: it is a plain class."""

from __future__ import annotations

import asyncio
import socket
import threading

from retinue.processes.function_process import MODULE_PROGRAM
from retinue.ray_cluster.node_actor import HostActor
from retinue.runtime.placement.connection import message_frame
from retinue.version import VERSION


def main(fd: int) -> None:
    """A host that is frozen while it sends its second message."""
    opened = socket.socket(fileno=fd)
    opened.sendall(message_frame(b"started"))
    opened.sendall(message_frame(b"a message")[:-4])
    threading.Event().wait()


async def test_a_host_that_is_frozen_within_a_message_is_ended() -> None:
    actor = HostActor()
    why, processes = await actor.start(VERSION, __name__, MODULE_PROGRAM, {}, 0.5)
    assert not why
    assert len(processes) == 2
    try:
        async with asyncio.timeout(20):
            number, frames, _ = await actor.read(0)
            assert (number, frames) == (1, [message_frame(b"started")])
            assert await actor.read(1) == (2, [], "it was silent for 0.5 s")
    finally:
        assert await actor.end()
