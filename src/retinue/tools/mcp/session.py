"""Connection to an MCP server, with the official SDK.

The SDK takes a second to import, so this module is imported only when a connection is opened.
"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import httpx2
import mcp_types as types
import msgspec
from mcp import Client, MCPError
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

from retinue.domain.mcp_server import McpServerSpec, Transport
from retinue.tools.mcp.content import CallResult, render_result
from retinue.tools.mcp.errors import CallRefused, ServerLost, ServerUnavailable
from retinue.tools.mcp.listing import ListedTool
from retinue.tools.mcp.process import ServerLog, ServerProcess, start_process
from retinue.tools.mcp.schema import clean_description, clean_schema
from retinue.version import VERSION

MAX_TOOLS = 500
MAX_PAGES = 20
RELIST_S = 1.0
HTTP_TIMEOUT_S = 30.0
# A stream may be silent for this long; each call has its own limit.
HTTP_READ_TIMEOUT_S = 3_600.0
MAX_ANSWER_BYTES = 16 * 1024 * 1024
MAX_JUNK_BYTES = 8 * 1024 * 1024
"""Output between two messages before the server counts as broken."""
_SHOWN_CHARS = 300

# Without a handler, warnings of the SDK would appear in the terminal. Programs that configure
# logging still get them.
for _name in ("mcp", "client"):
    logging.getLogger(_name).addHandler(logging.NullHandler())


class Session:
    """An open connection for any number of concurrent calls."""

    def __init__(
        self, client: Client, state: ConnectionState, process: ServerProcess | None
    ) -> None:
        self._client = client
        self._state = state
        self._process = process

    @property
    def is_lost(self) -> bool:
        return self._state.lost

    async def loss_reason(self) -> str:
        """Reason that the connection was lost."""
        if self._state.loss_reason or self._process is None:
            return self._state.loss_reason or "closed the connection"
        return await self._process.how_ended()

    async def watch(self, changed: Callable[[Session], Awaitable[None]]) -> None:
        """Return when the connection is lost. Call `changed` when the server's tools change."""
        while not self.is_lost:
            await self._state.event.wait()
            self._state.event.clear()
            if self._state.changed:
                self._state.changed = False
                await changed(self)
                # Limits a server that reports changes without end to one listing a second.
                await asyncio.sleep(RELIST_S)

    async def tools(self) -> list[ListedTool]:
        """Tools of the server, sorted by name. Raises ServerUnavailable."""
        found: dict[str, ListedTool] = {}
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            page = await _translate_errors(
                self._client.list_tools(cursor=cursor, cache_mode="refresh")
            )
            for tool in page.tools:
                found.setdefault(tool.name, _listed_tool(tool))
            cursor = page.next_cursor
            if cursor is None or len(found) >= MAX_TOOLS:
                break
        return [found[name] for name in sorted(found)][:MAX_TOOLS]

    async def call(
        self, tool: str, arguments: Mapping[str, Any], on_progress: Callable[[], None]
    ) -> CallResult:
        """Call a tool. Raises ServerLost if the server ended, CallRefused for a protocol error."""

        async def heard(progress: float, total: float | None, message: str | None) -> None:
            on_progress()

        try:
            result = await self._client.call_tool(tool, dict(arguments), progress_callback=heard)
        except MCPError as error:
            # Over HTTP, 404 means that the server does not know the session any more.
            if error.code == types.CONNECTION_CLOSED or self._state.status == 404:
                self._state.lose()
                raise ServerLost from None
            if self._state.status >= 400:
                raise CallRefused(f"HTTP {self._state.status}") from None
            raise CallRefused(_shorten(error.message)) from None
        except (httpx2.TransportError, anyio.BrokenResourceError, anyio.ClosedResourceError):
            self._state.lose()
            raise ServerLost from None
        except ValidationError as error:
            raise CallRefused(f"its answer violates the protocol: {_shorten(error)}") from None
        except RuntimeError as error:
            raise CallRefused(_shorten(error)) from None
        return render_result(result.model_dump(mode="json", by_alias=True, exclude_none=True))


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

    async def look(self, response: httpx2.Response) -> None:
        self.status = response.status_code
        # The SDK limits only the events of a stream.
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            response.stream = _LimitedBody(response.stream)

    async def hear(self, message: Any) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self.changed = True
            self.event.set()


@asynccontextmanager
async def connect(server: McpServerSpec, log: ServerLog) -> AsyncIterator[Session]:
    """Connect to `server`, and start it if it is a command. Raises ServerUnavailable."""
    state = ConnectionState()
    try:
        async with AsyncExitStack() as stack:
            process = None
            if server.transport is Transport.STDIO:
                process = await stack.enter_async_context(start_process(server, log))
            transport = (
                _http_transport(server, state)
                if process is None
                else _stdio_transport(process, log, state)
            )

            async def logged(params: types.LoggingMessageNotificationParams) -> None:
                text = msgspec.json.encode(params.data, enc_hook=str)[:4096]
                log.write(f"[{params.level}] ".encode() + text + b"\n")

            client = Client(
                _repairing(transport),
                message_handler=state.hear,
                logging_callback=logged,
                client_info=types.Implementation(name="retinue", version=VERSION),
                cache=None,
            )
            try:
                session = Session(await stack.enter_async_context(client), state, process)
            except Exception as error:
                raise await _connection_error(error, state, process) from None
            yield session
    except BaseExceptionGroup as several:
        # The task groups of the SDK wrap errors.
        raise _innermost(several) from None


async def _connection_error(
    error: BaseException, state: ConnectionState, process: ServerProcess | None
) -> ServerUnavailable:
    """Error for a connection that cannot be opened."""
    found = _innermost(error)
    if process is not None and _is_closed(found):
        return ServerUnavailable(state.loss_reason or await process.how_ended())
    if state.status in (401, 403):
        return ServerUnavailable(
            f"requires authentication (HTTP {state.status}); put a token into its `headers`"
        )
    if state.status >= 400:
        return ServerUnavailable(f"answered with HTTP {state.status}")
    return ServerUnavailable(_explain(found))


def _innermost(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _is_closed(error: BaseException) -> bool:
    if isinstance(error, MCPError):
        return error.code == types.CONNECTION_CLOSED
    return isinstance(error, (anyio.BrokenResourceError, anyio.ClosedResourceError))


def _explain(error: BaseException) -> str:
    match error:
        case httpx2.ConnectError():
            return "cannot be connected to"
        case MCPError():
            return f"refused: {_shorten(error.message)}"
        case ValidationError():
            return f"violates the protocol: {_shorten(error)}"
        case _:
            return f"cannot be used: {type(error).__name__}: {_shorten(error)}"


async def _translate_errors(work: Any) -> Any:
    try:
        return await work
    except Exception as error:
        raise ServerUnavailable(_explain(_innermost(error))) from None


def _listed_tool(tool: types.Tool) -> ListedTool:
    hints = tool.annotations
    reads = hints is not None and hints.read_only_hint is True
    return ListedTool(
        name=tool.name,
        description=clean_description(tool.description),
        schema=clean_schema(tool.input_schema),
        reads=reads,
        repeatable=reads or (hints is not None and hints.idempotent_hint is True),
    )


def _shorten(error: object) -> str:
    text = " ".join(str(error).split())
    text = "".join(letter for letter in text if letter.isprintable())
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 1] + "…"


# Transports


@asynccontextmanager
async def _stdio_transport(
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
async def _http_transport(server: McpServerSpec, state: ConnectionState) -> AsyncIterator[Any]:
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
            event_hooks={"response": [state.look]},
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


@asynccontextmanager
async def _repairing(transport: AbstractAsyncContextManager[Any]) -> AsyncIterator[Any]:
    async with transport as (incoming, outgoing):
        yield _RepairingStream(incoming), outgoing


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


class _RepairingStream:
    """A stream that repairs malformed tools, so that the SDK does not reject all of them."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __aiter__(self) -> _RepairingStream:
        return self

    async def __anext__(self) -> Any:
        return _repair(await self._stream.__anext__())

    async def receive(self) -> Any:
        return _repair(await self._stream.receive())

    async def __aenter__(self) -> _RepairingStream:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *exc: Any) -> Any:
        return await self._stream.__aexit__(*exc)


def _repair(item: Any) -> Any:
    message = getattr(item, "message", None)
    if isinstance(message, types.JSONRPCResponse):
        result = message.result
        if isinstance(tools := result.get("tools"), list):
            result["tools"] = [_repair_tool(tool) for tool in tools if _has_name(tool)]
        if isinstance(blocks := result.get("content"), list):
            result["content"] = [_repair_block(block) for block in blocks]
    return item


def _has_name(tool: Any) -> bool:
    return isinstance(tool, dict) and isinstance(tool.get("name"), str) and bool(tool["name"])


def _repair_tool(tool: dict[str, Any]) -> dict[str, Any]:
    """The fields of a tool that we use, with the types of the protocol."""
    schema, hints = tool.get("inputSchema"), tool.get("annotations")
    if not isinstance(schema, dict) or schema.get("type", "object") != "object":
        schema = {}
    hints = hints if isinstance(hints, dict) else {}
    kept = {key: value for key, value in hints.items() if isinstance(value, bool)}
    # Without the output schema, which the SDK would enforce: the model judges the output.
    return {
        "name": tool["name"],
        "description": clean_description(tool.get("description")),
        "inputSchema": {**schema, "type": "object"},
        "annotations": kept,
    }


_BLOCKS = ("text", "image", "audio", "resource", "resource_link")


def _repair_block(block: Any) -> Any:
    if isinstance(block, dict) and block.get("type") in _BLOCKS:
        return block
    text = msgspec.json.encode(block, enc_hook=str).decode("utf-8", "replace")
    return {"type": "text", "text": f"[content of an unknown type]\n{text}"}
