"""Transports over HTTP and through pipes."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import anyio
import mcp_types as types
import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from mcp.shared.message import SessionMessage

from retinue.domain.mcp_server import McpServerSpec, Transport
from retinue.errors import ToolFailure
from retinue.ports.tool import ToolContext
from retinue.tools.mcp.servers import McpServers
from retinue.tools.mcp.transports import MAX_UNASKED, ConnectionState, checked
from tests.tools.mcp.helpers import inside, tools_of

Serve = Callable[..., AbstractAsyncContextManager[McpServers]]
TOOL = {"name": "echo", "inputSchema": {"type": "object", "properties": {"text": {}}}}


def answer(message: dict[str, Any]) -> dict[str, Any] | None:
    """The answer of a small server to a message; none to a notification."""
    if "id" not in message:
        return None
    match message["method"]:
        case "initialize":
            info = {"name": "web", "version": "1"}
            result: dict[str, Any] = {
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {}},
                "serverInfo": info,
            }
        case "tools/list":
            result = {"tools": [TOOL]}
        case "tools/call":
            text = message["params"]["arguments"].get("text", "")
            result = {"content": [{"type": "text", "text": text}]}
        case _:
            error = {"code": -32601, "message": "unknown"}
            return {"jsonrpc": "2.0", "id": message["id"], "error": error}
    return {"jsonrpc": "2.0", "id": message["id"], "result": result}


class Web:
    """A server of the streamable kind at /mcp, and one of the older kind at /sse."""

    def __init__(self) -> None:
        self.headers: list[Any] = []
        self.broken = False
        self.refusing = 0
        self.flooding = False
        self.compressing = False
        self._events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        app = web.Application()
        app.router.add_post("/mcp", self._mcp)
        app.router.add_get("/mcp", self._nothing)
        app.router.add_delete("/mcp", self._gone)
        app.router.add_get("/sse", self._sse)
        app.router.add_post("/messages", self._message)
        app.router.add_route("*", "/{status:[0-9]+}", self._status)
        self.server = TestServer(app)

    def url(self, path: str) -> str:
        return str(self.server.make_url(path))

    async def _mcp(self, request: web.Request) -> web.StreamResponse:
        self.headers.append(request.headers)
        message = await request.json()
        if self.broken and message.get("method") == "tools/call":
            assert request.transport is not None
            request.transport.close()
        if self.flooding:
            response = web.StreamResponse(headers={"Content-Type": "application/json"})
            await response.prepare(request)
            while True:  # Until nobody reads it any more.
                await response.write(b" " * 1_000_000)
        if self.refusing:
            return web.Response(status=self.refusing)
        told = answer(message)
        if self.compressing and told is not None:
            coded = gzip.compress(msgspec.json.encode(told) + b" " * 1_000_000)
            return web.Response(
                body=coded,
                headers={"Content-Type": "application/json", "Content-Encoding": "gzip"},
            )
        return web.Response(status=202) if told is None else web.json_response(told)

    async def _nothing(self, request: web.Request) -> web.StreamResponse:
        return web.Response(status=405)

    async def _gone(self, request: web.Request) -> web.StreamResponse:
        return web.Response(status=204)

    async def _status(self, request: web.Request) -> web.StreamResponse:
        self.headers.append(request.headers)
        status = int(request.match_info["status"])
        elsewhere = {"Location": request.query["to"]} if "to" in request.query else {}
        return web.Response(status=status, headers=elsewhere)

    async def _sse(self, request: web.Request) -> web.StreamResponse:
        self.headers.append(request.headers)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"event: endpoint\ndata: /messages\n\n")
        while True:
            message = await self._events.get()
            data = web.json_response(message).body
            assert isinstance(data, bytes)
            await response.write(b"event: message\ndata: " + data + b"\n\n")

    async def _message(self, request: web.Request) -> web.StreamResponse:
        self.headers.append(request.headers)
        told = answer(await request.json())
        if told is not None:
            self._events.put_nowait(told)
        return web.Response(status=202)


@asynccontextmanager
async def running() -> AsyncIterator[Web]:
    made = Web()
    async with made.server:
        yield made


def at(url: str, transport: Transport = Transport.HTTP) -> McpServerSpec:
    return McpServerSpec(
        name="web",
        source="settings",
        transport=transport,
        url=url,
        headers={"X-Token": "t0ken"},
    )


@pytest.mark.parametrize(("path", "transport"), [("/mcp", Transport.HTTP), ("/sse", Transport.SSE)])
async def test_configured_headers_are_sent(
    serve: Serve, ctx: ToolContext, path: str, transport: Transport
) -> None:
    async with running() as there, serve(at(there.url(path), transport)) as servers:
        (one,) = await servers.list_tools()
        (tool,) = one.tools
        outcome = await tool.run({"text": "over the wire"}, ctx)
        assert "\nover the wire\n" in outcome.content
        assert there.headers
        assert all(headers["X-Token"] == "t0ken" for headers in there.headers)


@pytest.mark.parametrize(
    ("status", "problem"),
    [
        (401, "requires authentication (HTTP 401); put a token into its `headers`"),
        (403, "requires authentication (HTTP 403); put a token into its `headers`"),
        (404, "answered with HTTP 404"),
        (500, "answered with HTTP 500"),
    ],
)
@pytest.mark.parametrize("transport", [Transport.HTTP, Transport.SSE])
async def test_http_error_is_reported(
    serve: Serve, status: int, problem: str, transport: Transport
) -> None:
    async with running() as there, serve(at(there.url(f"/{status}"), transport)) as servers:
        (one,) = await servers.list_tools()
    assert one.problem == problem


@pytest.mark.parametrize("transport", [Transport.HTTP, Transport.SSE])
async def test_redirect_is_not_followed(serve: Serve, transport: Transport) -> None:
    async with running() as there, running() as elsewhere:
        url = there.url(f"/307?to={elsewhere.url('/mcp')}")
        async with serve(at(url, transport)) as servers:
            (one,) = await servers.list_tools()
        assert one.problem
        assert elsewhere.headers == []


@pytest.mark.parametrize(
    ("status", "words", "quoted"),
    [
        (404, "was lost during this call", "It closed the connection."),
        (503, "refused the call", "HTTP 503"),
    ],
)
async def test_call_without_an_answer(
    serve: Serve, ctx: ToolContext, status: int, words: str, quoted: str
) -> None:
    async with running() as there, serve(at(there.url("/mcp"))) as servers:
        (one,) = await servers.list_tools()
        (tool,) = one.tools
        there.refusing = status
        with pytest.raises(ToolFailure, match=f"The MCP server web {words}") as failure:
            await tool.run({"text": "x"}, ctx)
        assert failure.value.quoted == quoted
        there.refusing = 0
        outcome = await tool.run({"text": "again"}, ctx)
        assert "\nagain\n" in outcome.content


async def test_endless_response_is_limited(serve: Serve, ctx: ToolContext) -> None:
    async with running() as there, serve(at(there.url("/mcp"))) as servers:
        (one,) = await servers.list_tools()
        (tool,) = one.tools
        there.flooding = True
        with pytest.raises(ToolFailure, match="The MCP server web"):
            await tool.run({"text": "x"}, ctx)
        there.flooding = False
        outcome = await tool.run({"text": "again"}, ctx)
        assert "\nagain\n" in outcome.content


async def test_compressed_response_is_refused(serve: Serve, ctx: ToolContext) -> None:
    """16 MB of it, as much as is read, would become 16 GB."""
    async with running() as there, serve(at(there.url("/mcp"))) as servers:
        (one,) = await servers.list_tools()
        (tool,) = one.tools
        there.compressing = True
        with pytest.raises(ToolFailure, match="was lost during this call") as failure:
            await tool.run({"text": "x"}, ctx)
        assert failure.value.quoted == (
            "It sent content in the coding 'gzip', which was not asked for."
        )
        there.compressing = False
        outcome = await tool.run({"text": "again"}, ctx)
        assert "\nagain\n" in outcome.content


async def test_broken_connection_is_reopened(serve: Serve, ctx: ToolContext) -> None:
    async with running() as there, serve(at(there.url("/mcp"))) as servers:
        (one,) = await servers.list_tools()
        (tool,) = one.tools
        there.broken = True
        with pytest.raises(ToolFailure, match="The MCP server web"):
            await tool.run({"text": "x"}, ctx)
        there.broken = False
        outcome = await tool.run({"text": "again"}, ctx)
        assert "\nagain\n" in outcome.content


Faulty = Callable[..., McpServerSpec]


async def test_half_a_surrogate_pair_is_accepted(
    faulty: Faulty, serve: Serve, ctx: ToolContext
) -> None:
    async with serve(faulty()) as servers:
        tools = await tools_of(servers)
        assert inside(await tools["half"].run({}, ctx)) == "A feather: ?"


async def test_endless_output_ends_the_server(
    faulty: Faulty, serve: Serve, ctx: ToolContext
) -> None:
    async with serve(faulty()) as servers:
        tools = await tools_of(servers)
        assert inside(await tools["rubbish"].run({"text": "100"}, ctx)) == "after the rubbish"
        with pytest.raises(ToolFailure, match="lost during this call") as failure:
            await tools["rubbish"].run({"text": "200"}, ctx)
        assert failure.value.quoted == "It printed 8,454,144 bytes that are not messages."
        assert inside(await tools["act"].run({"text": "on"}, ctx)) == "on"


async def test_server_that_asks_and_does_not_listen_is_ended(
    faulty: Faulty, serve: Serve, ctx: ToolContext
) -> None:
    """Each of its requests was a task that waited to send the answer."""
    async with serve(faulty()) as servers:
        tools = await tools_of(servers)
        assert inside(await tools["pings"].run({"text": "50"}, ctx)) == "after the pings"
        with pytest.raises(ToolFailure, match="lost during this call") as failure:
            await tools["pings"].run({"text": "20000"}, ctx)
        assert failure.value.quoted == "It sent 100 requests and did not read the answers."
        assert inside(await tools["act"].run({"text": "on"}, ctx)) == "on"


async def test_server_that_notifies_without_end_is_ended() -> None:
    state = ConnectionState()
    sending, incoming = anyio.create_memory_object_stream[SessionMessage](MAX_UNASKED + 2)
    outgoing, reading = anyio.create_memory_object_stream[SessionMessage](1)

    @asynccontextmanager
    async def transport() -> AsyncIterator[Any]:
        async with sending, incoming, outgoing, reading:
            yield incoming, outgoing

    notice = SessionMessage(
        types.JSONRPCNotification(jsonrpc="2.0", method="notifications/message")
    )
    async with checked(transport(), state) as (received, sent):
        for _ in range(MAX_UNASKED):
            await sending.send(notice)
            await received.receive()
        call = types.JSONRPCRequest(jsonrpc="2.0", id=1, method="tools/call")
        await sent.send(SessionMessage(call))
        for _ in range(MAX_UNASKED + 2):
            sending.send_nowait(notice)
        assert len([message async for message in received]) == MAX_UNASKED
    assert state.lost
    assert state.loss_reason == "sent 20,000 messages that were not asked for"
