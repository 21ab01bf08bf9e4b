"""The MCP server over streamable HTTP, on the SDK. Only `retinue mcp --http` imports it."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import uvicorn
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp_types import HEADER_MISMATCH, RequestParams
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from retinue.interfaces.http_access import HttpAccess
from retinue.interfaces.json_rpc import INTERNAL_ERROR, INVALID_REQUEST, MAX_LINE_BYTES, RpcError
from retinue.interfaces.mcp_server.requests import (
    INSTRUCTIONS,
    METHODS,
    SERVER_INFO,
    Client,
    McpRequests,
)
from retinue.runtime.core.task_group import TaskGroup, run_to_completion

if TYPE_CHECKING:
    from retinue.interfaces.cli.terminal.interrupts import Interrupts

PATH = "/mcp"
STOP_S = 2
"""How long connections may stay open after the server is told to end."""
NO_TOKEN = "Send the token as `Authorization: Bearer TOKEN`; `retinue mcp --http` prints it."


class AnyParams(RequestParams, extra="allow"):
    """Parameters that `McpRequests` checks."""


class HttpServer:
    """Serves all clients that have the token. They share a runtime, its budget and its agents."""

    def __init__(self, new_requests: Callable[[TaskGroup], McpRequests], token: str) -> None:
        self._new_requests = new_requests
        self._token = token
        self._stopped = asyncio.Event()

    async def serve(self, listener: socket.socket, interrupts: Interrupts) -> None:
        """Serve until interrupted; then suspend what still runs."""
        port = listener.getsockname()[1]
        hosts = frozenset(f"{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]"))
        interrupts.runtime = self
        logging.getLogger("mcp.server.streamable_http").addFilter(_is_fault)
        async with TaskGroup() as tasks:
            self._requests = self._new_requests(tasks)
            app = self._sdk_server().streamable_http_app(
                streamable_http_path=PATH, max_request_body_size=MAX_LINE_BYTES
            )
            server = _Uvicorn(
                uvicorn.Config(
                    _Guarded(app, HttpAccess(hosts, self._token, NO_TOKEN)),
                    log_level="error",
                    timeout_graceful_shutdown=STOP_S,
                )
            )
            serving = tasks.create_task(server.serve([listener]))
            try:
                await self._stopped.wait()
            finally:
                await run_to_completion(self._requests.close())
                server.should_exit = True
                await run_to_completion(asyncio.wait([serving]))

    def suspend(self, why: str, then: Callable[[], None] | None = None) -> None:
        """Suspend the runs, for `Interrupts`. If nothing runs, end at once."""
        if self._requests.busy:
            self._requests.suspend(why, then)
        else:
            self._stopped.set()

    def _sdk_server(self) -> Server[Any]:
        name, version = SERVER_INFO["name"], SERVER_INFO["version"]
        server: Server[Any] = Server(name, version=version, instructions=INSTRUCTIONS)
        for method in METHODS:
            server.add_request_handler(method, AnyParams, self._answer)
        return server

    async def _answer(
        self, context: ServerRequestContext[Any, Request], _: AnyParams
    ) -> dict[str, Any]:
        _check_routing(context)
        async with _client_of(context) as client:
            try:
                return await self._requests.answer(context.method, context.params or {}, client)
            except RpcError as error:
                raise MCPError(error.code, str(error), error.data) from None
            except Exception as error:
                raise MCPError(INTERNAL_ERROR, f"retinue failed: {error!r}") from error


def _is_fault(record: logging.LogRecord) -> bool:
    """False for a client that leaves in mid-message, which the SDK logs with a traceback."""
    return not (record.exc_info and isinstance(record.exc_info[1], ClientDisconnect))


def _check_routing(context: ServerRequestContext[Any, Request]) -> None:
    """Refuse a request about a task whose header names another. The SDK checks other methods."""
    named = context.request.headers.get("mcp-name") if context.request is not None else None
    task = (context.params or {}).get("taskId")
    if context.method.startswith("tasks/") and named is not None and named != task:
        raise MCPError(HEADER_MISMATCH, f"The header Mcp-Name is {named!r}, not {task!r}.")


@asynccontextmanager
async def _client_of(context: ServerRequestContext[Any, Request]) -> AsyncIterator[Client]:
    """The client of a request. Progress is sent by a task; only the latest line waits."""
    waiting: list[dict[str, Any]] = []
    has_more = asyncio.Event()
    session = context.session

    def notify(method: str, params: dict[str, Any]) -> None:
        waiting[:] = [params]
        has_more.set()

    async def send() -> None:
        while True:
            await has_more.wait()
            has_more.clear()
            for params in waiting:
                await session.send_progress_notification(
                    params["progressToken"],
                    params["progress"],
                    message=params["message"],
                    related_request_id=str(context.request_id),
                )

    async def ask(method: str, params: dict[str, Any]) -> Any:
        if sending.done():
            raise RpcError(INTERNAL_ERROR, "its call is answered already")
        try:
            answer = await session.elicit_form(
                params["message"], params["requestedSchema"], context.request_id
            )
        except MCPError as error:
            raise RpcError(INTERNAL_ERROR, str(error)) from None
        return answer.model_dump(by_alias=True)

    known = session.client_capabilities
    capabilities = {} if known is None else known.model_dump(by_alias=True, exclude_none=True)
    sending = asyncio.ensure_future(send())
    try:
        yield Client(notify, ask, capabilities)
    finally:
        sending.cancel()


class _Guarded:
    """An ASGI application that passes on only the requests that may be answered."""

    def __init__(self, app: ASGIApp, access: HttpAccess) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = None
        if scope["type"] == "http":
            refused = self._access.refusal(scope["method"], Headers(scope=scope))
        if refused is None:
            return await self._app(scope, receive, send)
        # A body of JSON-RPC, which clients show to their users.
        error = {"code": INVALID_REQUEST, "message": refused.text}
        body = msgspec.json.encode({"jsonrpc": "2.0", "id": None, "error": error})
        # No WWW-Authenticate header: clients would take it for an invitation to OAuth.
        response = Response(body, refused.status, media_type="application/json")
        return await response(scope, receive, send)


class _Uvicorn(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to `Interrupts`, which suspends the runs first."""
        yield
