from __future__ import annotations

import asyncio

from retinue.models.scripted.model import say
from retinue.testing.server import Framing, ModelServer, Response

REQUEST = b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}"


async def exchanged(server: ModelServer, request: bytes = REQUEST) -> bytes:
    """Everything that comes back until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(request)
    try:
        return await reader.read()
    finally:
        writer.close()
        await writer.wait_closed()


def test_a_body_is_cut_where_it_was_told() -> None:
    assert Response(body=b"abcdef", cuts=(2, 2, 5, 99, 0)).pieces() == [b"ab", b"cde", b"f"]
    assert Response(body=b"abc").pieces() == [b"abc"]
    assert Response().pieces() == []


async def test_an_answer_is_sent_as_it_is() -> None:
    response = Response(
        status=418, headers={"x-a": "b"}, body=b"short and stout", framing=Framing.CLOSE
    )
    async with ModelServer([response]) as server:
        answer = await exchanged(server)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 418 I'm a Teapot\r\n")
    assert b"x-a: b" in head
    assert body == b"short and stout"


async def test_raw_bytes_are_sent_as_they_are() -> None:
    async with ModelServer([Response(raw=b"\x00garbage")]) as server:
        assert await exchanged(server) == b"\x00garbage"


async def test_requests_are_recorded() -> None:
    async with ModelServer([Response(framing=Framing.CLOSE)]) as server:
        await exchanged(server)
        request = await server.received()
    assert (request.method, request.target) == ("POST", "/v1/chat/completions")
    assert request.headers == {"content-length": "2"}
    assert request.json == {}


async def test_a_body_in_chunks_is_understood() -> None:
    request = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"
    async with ModelServer([Response(framing=Framing.CLOSE)]) as server:
        await exchanged(server, request)
        assert server.requests[0].body == b"abc"


async def test_nothing_is_sent_before_the_gate_opens() -> None:
    gate = asyncio.Event()
    response = Response(body=b"late", framing=Framing.CLOSE, gate=gate)
    async with ModelServer([response]) as server, asyncio.TaskGroup() as group:
        answer = group.create_task(exchanged(server))
        await server.received()
        assert not answer.done()
        gate.set()
    assert answer.result().endswith(b"late")


async def test_leaving_it_ends_connections_that_are_open() -> None:
    async with ModelServer([say("x")]) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    assert await reader.read() == b""
    writer.close()


async def test_a_function_may_answer() -> None:
    async with ModelServer(lambda r: Response(body=r.body, framing=Framing.CLOSE)) as server:
        assert (await exchanged(server)).endswith(b"{}")


async def test_requests_beyond_the_slots_are_refused() -> None:
    gate = asyncio.Event()
    slow = Response(body=b"done", framing=Framing.CLOSE, gate=gate)
    async with ModelServer(lambda _: slow, slots=2) as server, asyncio.TaskGroup() as group:
        working = [group.create_task(exchanged(server)) for _ in range(2)]
        await server.received(2)
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(REQUEST)
        assert await reader.readline() == b"HTTP/1.1 429 Too Many Requests\r\n"
        writer.close()
        assert (server.busy, server.refused) == (2, 1)
        gate.set()
    assert all(task.result().endswith(b"done") for task in working)
    assert (server.busy, server.busiest) == (0, 2)


async def test_it_can_come_back_where_it_was() -> None:
    async with ModelServer([Response(framing=Framing.CLOSE)]) as first:
        await exchanged(first)
    async with ModelServer([Response(framing=Framing.CLOSE)], port=first.port) as second:
        await exchanged(second)
        assert second.port == first.port
