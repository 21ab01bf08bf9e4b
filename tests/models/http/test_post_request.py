"""POST requests without a session: what is sent, reuse of connections, early answers, pauses."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest
from multidict import CIMultiDict
from yarl import URL

from retinue.models.http import post_request
from retinue.models.http.post_request import Connector, PostRequest, Response

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
BODY = b'{"model":"m"}'


class RawServer:
    """Gives each connection to `serve`, and counts them."""

    def __init__(self, serve: Callable[[RawServer, Streams], Awaitable[None]]) -> None:
        self.serve = serve
        self.connections = 0
        self.heads: list[bytes] = []
        self.closed = asyncio.Event()

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            await self.serve(self, (reader, writer))
        finally:
            writer.close()
            self.closed.set()

    async def receive(self, streams: Streams) -> bool:
        """Read one request with `BODY`. False if the client has closed the connection."""
        try:
            self.heads.append(await streams[0].readuntil(b"\r\n\r\n"))
        except asyncio.IncompleteReadError:
            return False
        assert await streams[0].readexactly(len(BODY)) == BODY
        return True


@asynccontextmanager
async def posting(
    serve: Callable[[RawServer, Streams], Awaitable[None]],
) -> AsyncIterator[tuple[RawServer, PostRequest]]:
    server = RawServer(serve)
    listening = await asyncio.start_server(server.connected, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    connector = Connector(limit=4, ssl=True)
    async with listening, connector:
        headers = CIMultiDict({"Authorization": "Bearer k", "Content-Type": "application/json"})
        url = URL(f"http://127.0.0.1:{port}/v1/chat?beta=1")
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5.0)
        yield server, PostRequest(connector, url, headers, timeout)


async def _read(response: Response) -> bytes:
    pieces = []
    while piece := await response.content.readany():
        pieces.append(piece)
    return b"".join(pieces)


async def _answer_all(server: RawServer, streams: Streams) -> None:
    while await server.receive(streams):
        streams[1].write(OK)


async def test_requests_are_complete_and_use_one_connection() -> None:
    async with posting(_answer_all) as (server, request):
        for _ in range(3):
            response = await request.send(BODY)
            assert (response.status, await _read(response)) == (200, b"ok")
    assert server.connections == 1
    first, *lines = server.heads[0].decode().split("\r\n")
    assert first == "POST /v1/chat?beta=1 HTTP/1.1"
    assert lines[0].startswith("Host: 127.0.0.1:")
    assert {"Authorization: Bearer k", f"Content-Length: {len(BODY)}"} <= {*lines}
    assert sum(line.lower().startswith("content-length") for line in lines) == 1


async def test_a_response_that_is_closed_before_its_end_ends_its_connection() -> None:
    async def never_end(server: RawServer, streams: Streams) -> None:
        await server.receive(streams)
        streams[1].write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc")
        assert not await server.receive(streams)

    async with posting(never_end) as (server, request):
        response = await request.send(BODY)
        response.close()
        await server.closed.wait()
        (await request.send(BODY)).close()
    assert server.connections == 2


async def test_an_informational_response_is_no_response() -> None:
    async def hint_first(server: RawServer, streams: Streams) -> None:
        await server.receive(streams)
        streams[1].write(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + OK)

    async with posting(hint_first) as (_, request):
        response = await request.send(BODY)
        assert (response.status, await _read(response)) == (200, b"ok")


async def test_a_connection_with_unsent_data_is_not_used_again() -> None:
    """The server refuses a request that it has not read; the rest would look like a new one."""

    async def refuse(server: RawServer, streams: Streams) -> None:
        reader, writer = streams
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
        await writer.drain()
        await server.closed.wait()

    async with posting(refuse) as (server, request):
        for _ in range(2):
            response = await request.send(b"x" * 16_000_000)
            assert (response.status, await _read(response)) == (413, b"no")
        server.closed.set()
    assert server.connections == 2


async def test_a_paused_connection_goes_on_when_the_body_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    paused = asyncio.Event()
    pause = post_request._Protocol.pause_reading

    def pause_and_tell(protocol: post_request._Protocol) -> None:
        pause(protocol)
        paused.set()

    monkeypatch.setattr(post_request._Protocol, "pause_reading", pause_and_tell)
    chunk = b"%x\r\n%b\r\n" % (1000, b"x" * 1000)

    async def send_much(server: RawServer, streams: Streams) -> None:
        await server.receive(streams)
        streams[1].write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        streams[1].write(4000 * chunk + b"0\r\n\r\n")
        await streams[1].drain()

    async with posting(send_much) as (_, request):
        response = await request.send(BODY)
        await paused.wait()
        assert await _read(response) == b"x" * 4_000_000


def _chunk(content: bytes, size: bytes = b"") -> bytes:
    return (size or b"%x" % len(content)) + b"\r\n" + content + b"\r\n"


_CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
_FEW = _chunk(b"data: 1\n\n") + _chunk(b"data: 22\n\n") + _chunk(b"data: 333\n\n")
_END = b"0\r\n\r\n"
_FEW_CONTENT = b"data: 1\n\ndata: 22\n\ndata: 333\n\n"


@pytest.mark.parametrize(
    ("chunks", "content"),
    [
        (_FEW + _END, _FEW_CONTENT),
        (_END, b""),
        (_chunk(b"a\r\nb") + _chunk(b"\r\n") + _chunk(b"c") + _END, b"a\r\nb\r\nc"),
        (_chunk(b"x" * 26, b"1A") + _chunk(b"y", b"01") + _END, b"x" * 26 + b"y"),
        (_chunk(b"ab", b"2;name=value") + _FEW + _END, b"ab" + _FEW_CONTENT),
        (_FEW + b"0\r\nTrailer: x\r\n\r\n", _FEW_CONTENT),
    ],
    ids=["plain", "empty", "line breaks", "other sizes", "an extension", "a trailer"],
)
async def test_a_body_in_chunks_is_the_same_however_it_is_cut(
    chunks: bytes, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, cuts = _CHUNKED + chunks, iter(range(1, len(_CHUNKED + chunks)))
    receive = post_request._Protocol.data_received

    def receive_in_two(protocol: post_request._Protocol, data: bytes) -> None:
        if data == whole:
            cut = next(cuts)
            receive(protocol, data[:cut])
            receive(protocol, data[cut:])
        else:
            receive(protocol, data)

    async def answer(server: RawServer, streams: Streams) -> None:
        while await server.receive(streams):
            streams[1].write(whole)

    monkeypatch.setattr(post_request._Protocol, "data_received", receive_in_two)
    async with posting(answer) as (server, request):
        for _ in range(1, len(whole)):
            response = await request.send(BODY)
            assert (response.status, await _read(response)) == (200, content)
    assert server.connections == 1
    assert next(cuts, None) is None


async def test_chunks_that_arrive_together_are_one_piece_for_the_body(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pieces = []
    feed = aiohttp.StreamReader.feed_data

    def count(body: aiohttp.StreamReader, data: bytes, *size: int) -> bool:
        pieces.append(data)
        return feed(body, data, *size)

    async def answer(server: RawServer, streams: Streams) -> None:
        await server.receive(streams)
        streams[1].write(_CHUNKED + _FEW + _END)

    monkeypatch.setattr(aiohttp.StreamReader, "feed_data", count)
    async with posting(answer) as (_, request):
        assert await _read(await request.send(BODY)) == _FEW_CONTENT
    assert pieces == [_FEW_CONTENT]


@pytest.mark.parametrize("chunks", [_FEW, _FEW + b"5\r\nab"], ids=["no end", "half a chunk"])
async def test_a_body_whose_last_chunk_is_missing_is_an_error(chunks: bytes) -> None:
    async def answer(server: RawServer, streams: Streams) -> None:
        await server.receive(streams)
        streams[1].write(_CHUNKED + chunks)

    async with posting(answer) as (_, request):
        response = await request.send(BODY)
        with pytest.raises(aiohttp.ClientPayloadError):
            await _read(response)
        response.close()


@pytest.mark.parametrize("broken", [b"x\r\nab\r\n", b"2\r\nabc\r\n", b"+2\r\nab\r\n", b"\r\n"])
async def test_a_broken_chunk_ends_the_connection(broken: bytes) -> None:
    async def answer(server: RawServer, streams: Streams) -> None:
        await server.receive(streams)
        streams[1].write(_CHUNKED + _FEW + broken + _END)
        assert not await server.receive(streams)

    async with posting(answer) as (server, request):
        response = await request.send(BODY)
        await server.closed.wait()
        assert not response.content.is_eof()
        response.close()


async def test_a_compressed_body_in_chunks_is_unpacked() -> None:
    packed = gzip.compress(_FEW_CONTENT)
    head = _CHUNKED.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n")

    async def answer(server: RawServer, streams: Streams) -> None:
        await server.receive(streams)
        streams[1].write(head + _chunk(packed[:9]) + _chunk(packed[9:]) + _END)

    async with posting(answer) as (_, request):
        assert await _read(await request.send(BODY)) == _FEW_CONTENT


async def test_a_response_that_has_no_body_in_spite_of_its_head() -> None:
    async def answer(server: RawServer, streams: Streams) -> None:
        await server.receive(streams)
        streams[1].write(_CHUNKED.replace(b"200 OK", b"204 No Content") + _END)

    async with posting(answer) as (_, request):
        response = await request.send(BODY)
        assert (response.status, await _read(response)) == (204, b"")


async def test_what_is_not_http_is_an_error_of_the_client() -> None:
    async def greet(server: RawServer, streams: Streams) -> None:
        await server.receive(streams)
        streams[1].write(b"220 mail.example ESMTP\r\n\r\n")

    async with posting(greet) as (_, request):
        with pytest.raises(aiohttp.ClientResponseError):
            await request.send(BODY)


async def test_a_server_that_closes_without_a_response() -> None:
    async def hang_up(server: RawServer, streams: Streams) -> None:
        await server.receive(streams)

    async with posting(hang_up) as (_, request):
        with pytest.raises(aiohttp.ServerDisconnectedError):
            await request.send(BODY)


async def test_a_line_break_cannot_get_into_a_header() -> None:
    headers = CIMultiDict({"X-Key": "a\r\nX-Other: b"})
    async with Connector(limit=1, ssl=True) as connector:
        with pytest.raises(ValueError, match="line break"):
            PostRequest(connector, URL("http://h/"), headers, aiohttp.ClientTimeout())
