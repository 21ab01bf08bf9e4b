"""Connection to an MCP server, with the official SDK.

The SDK takes a second to import, so this module is imported only when a connection is opened.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any, cast

import anyio
import httpx2
import mcp_types as types
import msgspec
from mcp import Client, MCPError
from pydantic import ValidationError

from retinue.domain.mcp_server import McpServerSpec, Transport
from retinue.threads import in_thread
from retinue.tools.mcp.content import CallResult, render_result
from retinue.tools.mcp.errors import CallRefused, ServerLost, ServerUnavailable
from retinue.tools.mcp.listing import ListedTool
from retinue.tools.mcp.process import ServerLog, ServerProcess, ServerStarter
from retinue.tools.mcp.repair import MAX_TOOLS
from retinue.tools.mcp.schema import clean_description, clean_schema
from retinue.tools.mcp.transports import (
    ConnectionState,
    checked,
    http_transport,
    stdio_transport,
)
from retinue.version import VERSION

MAX_PAGES = 20
RELIST_S = 1.0
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
            try:
                page = await self._client.list_tools(cursor=cursor, cache_mode="refresh")
            except Exception as error:
                raise ServerUnavailable(_explain(_innermost(error))) from None
            for tool in page.tools:
                found.setdefault(tool.name, _listed_tool(tool))
            cursor = page.next_cursor
            if cursor is None or len(found) >= MAX_TOOLS:
                break
        return [found[name] for name in sorted(found)][:MAX_TOOLS]

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        on_progress: Callable[[], None],
        *,
        traceparent: str = "",
    ) -> CallResult:
        """Call a tool, as part of the trace of `traceparent` if there is one.

        Raises ServerLost if the server ended, CallRefused for a protocol error.
        """

        async def on_report(progress: float, total: float | None, message: str | None) -> None:
            on_progress()

        # As the specification for traces over MCP says; the SDK's type does not know the key.
        meta = cast("types.RequestParamsMeta", {"traceparent": traceparent})
        try:
            result = await self._client.call_tool(
                tool,
                dict(arguments),
                progress_callback=on_report,
                meta=meta if traceparent else None,
            )
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
        said = result.model_dump(mode="json", by_alias=True, exclude_none=True)
        # Images are made smaller, which takes time.
        return await in_thread(partial(render_result, said))


@asynccontextmanager
async def connect(
    server: McpServerSpec, log: ServerLog, starter: ServerStarter
) -> AsyncIterator[Session]:
    """Connect to `server`, and start it if it is a command. Raises ServerUnavailable."""
    state = ConnectionState()
    try:
        async with AsyncExitStack() as stack:
            process = None
            if server.transport is Transport.STDIO:
                process = await stack.enter_async_context(starter.start(server, log))
            transport = (
                http_transport(server, state)
                if process is None
                else stdio_transport(process, log, state)
            )

            async def logged(params: types.LoggingMessageNotificationParams) -> None:
                text = msgspec.json.encode(params.data, enc_hook=str)[:4096]
                log.write(f"[{params.level}] ".encode() + text + b"\n")

            client = Client(
                checked(transport, state),
                message_handler=state.on_message,
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
            return "cannot be reached"
        case MCPError():
            return f"refused: {_shorten(error.message)}"
        case ValidationError():
            return f"violates the protocol: {_shorten(error)}"
        case _:
            return f"cannot be used: {type(error).__name__}: {_shorten(error)}"


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
