"""A model server in a process of its own, that can be killed: `serve.py PORT WHAT`.

It stops when its standard input closes, and so cannot outlive the test that started it.
"""

from __future__ import annotations

import asyncio
import sys

from retinue.models.scripted.model import say
from retinue.testing.server import (
    Answering,
    ModelServer,
    Received,
    Response,
    ResponseEnding,
    chunk,
    events,
)


def answer(_: Received) -> Answering:
    if sys.argv[2] == "half a reply":
        begun = events(chunk({"role": "assistant"}), chunk({"content": "I was just"}))
        return Response(body=begun, ending=ResponseEnding.HANG)
    return say("Whole.")


async def serve() -> None:
    async with ModelServer(answer, port=int(sys.argv[1])) as server:
        print(server.port, flush=True)
        await asyncio.to_thread(sys.stdin.buffer.read)


asyncio.run(serve())
