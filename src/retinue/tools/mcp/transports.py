"""Transports of MCP: messages through the pipes of a process, and over HTTP."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Self

import anyio
import httpx2
import mcp_types as types
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage

from retinue.domain.mcp_server import McpServerSpec, Transport
from retinue.tools.mcp.errors import ServerUnavailable
from retinue.tools.mcp.process import ServerLog, ServerProcess
from retinue.tools.mcp.repair import repaired

HTTP_TIMEOUT_S = 30.0
# A stream may be silent for this long; each call has its own limit.
HTTP_READ_TIMEOUT_S = 3_600.0
MAX_ANSWER_BYTES = 16 * 1024 * 1024
MAX_JUNK_BYTES = 8 * 1024 * 1024
"""Output between two messages before the server counts as broken."""
MAX_UNASKED = 20_000
"""Requests and notifications of the server since the last request to it."""
MAX_UNANSWERED = 100
"""Requests of the server whose answers it does not read."""


class ConnectionState:
    """State of a connection, as its transport reports it."""

    def __init__(self) -> None:
        self.event = asyncio.Event()
        self.lost = False
        self.loss_reason = ""
        self.changed = False
        self.status = 200
        """Last HTTP status, which the SDK does not expose."""

    def lose(self, loss_reason: str = "") -> None:
        self.lost = True
        self.loss_reason = self.loss_reason or loss_reason
        self.event.set()

    async def on_response(self, response: httpx2.Response) -> None:
        self.status = response.status_code
        coding = response.headers.get("content-encoding", "identity")
        if coding.lower() != "identity":
            # Decompressed, it could be a thousand times larger.
            self.lose(f"sent content in the coding {coding[:40]!r}, which was not asked for")
            raise httpx2.RemoteProtocolError("compressed content")
        # The SDK limits only the events of a stream.
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            response.stream = _LimitedBody(response.stream)

    async def on_message(self, message: Any) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self.changed = True
            self.event.set()


@asynccontextmanager
async def stdio_transport(
    process: ServerProcess, log: ServerLog, state: ConnectionState
) -> AsyncIterator[Any]:
    """Messages as lines through the pipes of a process. Other output goes to the log."""
    received, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, sent = anyio.create_memory_object_stream[SessionMessage](0)

    async def read() -> None:
        junk = 0
        async with received:
            try:
                async for line in process.lines():
                    message = _parse_message(line)
                    if message is None:
                        log.write(line)
                        junk += len(line)
                        if junk > MAX_JUNK_BYTES:
                            raise ServerUnavailable(f"printed {junk:,} bytes that are not messages")
                        # Let other tasks run, however much the server prints.
                        await asyncio.sleep(0)
                        continue
                    junk = 0
                    try:
                        await received.send(SessionMessage(message))
                    except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                        return
            except ServerUnavailable as error:
                state.lose(str(error))
            finally:
                state.lose()

    async def write() -> None:
        async with sent:
            async for message in sent:
                text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                await process.write(text.encode() + b"\n")

    async with anyio.create_task_group() as tasks, incoming, outgoing:
        tasks.start_soon(read)
        tasks.start_soon(write)
        try:
            yield incoming, outgoing
        finally:
            tasks.cancel_scope.cancel()


@asynccontextmanager
async def checked(
    transport: AbstractAsyncContextManager[Any], state: ConnectionState
) -> AsyncIterator[Any]:
    """Open `transport`, and repair its messages; a server that floods us counts as lost.

    The SDK has a task for each request of a server until the answer is sent.
    """
    async with transport as (incoming, outgoing):
        traffic = _Traffic(state)
        yield _Incoming(incoming, traffic), _Outgoing(outgoing, traffic)


class _Traffic:
    """Counts the messages of a server that nobody asked for."""

    def __init__(self, state: ConnectionState) -> None:
        self._state = state
        self._unasked = 0
        self._unanswered = 0

    def received(self, message: Any) -> None:
        """Raises EndOfStream if the server sends too much."""
        if isinstance(message, types.JSONRPCRequest):
            self._unanswered += 1
            if self._unanswered > MAX_UNANSWERED:
                self._end(f"sent {MAX_UNANSWERED} requests and did not read the answers")
        if isinstance(message, (types.JSONRPCRequest, types.JSONRPCNotification)):
            self._unasked += 1
            if self._unasked > MAX_UNASKED:
                self._end(f"sent {MAX_UNASKED:,} messages that were not asked for")

    def sent(self, message: Any) -> None:
        if isinstance(message, types.JSONRPCRequest):
            self._unasked = 0
        elif not isinstance(message, types.JSONRPCNotification):
            self._unanswered -= 1

    def _end(self, why: str) -> None:
        self._state.lose(why)
        raise anyio.EndOfStream


class _Stream:
    """Wraps a stream of messages, to count them."""

    def __init__(self, stream: Any, traffic: _Traffic) -> None:
        self._stream = stream
        self._traffic = traffic

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *exc: Any) -> Any:
        return await self._stream.__aexit__(*exc)


class _Incoming(_Stream):
    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def receive(self) -> Any:
        item = await self._stream.receive()
        self._traffic.received(getattr(item, "message", None))
        return repaired(item)


class _Outgoing(_Stream):
    async def send(self, item: Any) -> None:
        await self._stream.send(item)
        self._traffic.sent(item.message)


def _parse_message(line: bytes) -> Any:
    """Message in a line; None if the line is not a message."""
    read = types.jsonrpc_message_adapter.validate_json
    try:
        return read(line, by_name=False)
    except ValueError:
        pass
    # Servers in JavaScript that cut a text inside an emoji send half a surrogate pair. Without the
    # answer the caller would wait until its timeout.
    try:
        text = json.dumps(json.loads(line), ensure_ascii=False)
        return read(text.encode("utf-8", "replace"), by_name=False)
    except (ValueError, RecursionError):
        return None


@asynccontextmanager
async def http_transport(server: McpServerSpec, state: ConnectionState) -> AsyncIterator[Any]:
    """Messages over HTTP. The SDK does not follow redirects to other addresses."""
    context = ssl.create_default_context(cafile=server.ca_file)

    def client(
        headers: Mapping[str, str] | None = None,
        timeout: httpx2.Timeout | None = None,
        auth: httpx2.Auth | None = None,
    ) -> httpx2.AsyncClient:
        # Proxies and certificates come from our settings, not from httpx reading the environment.
        return httpx2.AsyncClient(
            headers=headers,
            timeout=timeout or httpx2.Timeout(HTTP_TIMEOUT_S, read=HTTP_READ_TIMEOUT_S),
            auth=auth,
            proxy=server.proxy,
            verify=context,
            trust_env=False,
            event_hooks={"response": [state.on_response]},
        )

    # Compressed content could be far larger than its size on the wire.
    headers = {"Accept-Encoding": "identity", **server.headers}
    if server.transport is Transport.SSE:
        async with sse_client(
            server.url, headers, sse_read_timeout=HTTP_READ_TIMEOUT_S, httpx_client_factory=client
        ) as streams:
            yield streams
        return
    async with (
        client(headers) as http,
        streamable_http_client(
            server.url, http_client=http, max_sse_event_size=MAX_ANSWER_BYTES
        ) as streams,
    ):
        yield streams


class _LimitedBody(httpx2.AsyncByteStream):
    """A response body of at most MAX_ANSWER_BYTES."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = MAX_ANSWER_BYTES
        async for chunk in self._stream:
            left -= len(chunk)
            if left < 0:
                raise httpx2.ReadError(f"more than {MAX_ANSWER_BYTES:,} bytes")
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()
