"""The MCP server on standard input and output, for the client that started it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from retinue.interfaces.json_rpc import Connection, LineReader, Params, RequestId
from retinue.interfaces.mcp_server.requests import (
    CAPABILITIES,
    HANDSHAKE_VERSIONS,
    INSTRUCTIONS,
    SERVER_INFO,
    Client,
    McpRequests,
)
from retinue.runtime.core.task_group import TaskGroup, run_to_completion

if TYPE_CHECKING:
    from retinue.interfaces.cli.terminal.interrupts import Interrupts


class StdioServer:
    """Serves one client."""

    def __init__(self, new_requests: Callable[[TaskGroup], McpRequests]) -> None:
        self._new_requests = new_requests

    async def serve(self, lines: LineReader, output: int, interrupts: Interrupts) -> None:
        """Serve the client until it closes the connection; then suspend what still runs."""
        connection = Connection(lines, output, self._on_request, self._on_notification)
        self._connection = connection
        self._client = Client(partial(connection.notify, may_drop=True), connection.request)
        interrupts.runtime = self
        async with TaskGroup() as tasks:
            self._requests = self._new_requests(tasks)
            serving = tasks.create_task(connection.serve())
            try:
                await connection.closed.wait()
                if self._requests.busy:
                    interrupts.interrupt()  # Suspends the runs, then cancels this task.
                    await asyncio.Event().wait()
            finally:
                await run_to_completion(self._requests.close())
                await run_to_completion(connection.stop_answering())
                serving.cancel()
        await connection.flush()

    def suspend(self, why: str, then: Callable[[], None] | None = None) -> None:
        """Suspend the runs, for `Interrupts`. If nothing runs, end as if the client had closed."""
        if self._requests.busy:
            self._requests.suspend(why, then)
        else:
            # Some clients end their servers by a signal, also when every call is answered.
            self._connection.closed.set()

    async def _on_request(self, request_id: RequestId, method: str, params: Params) -> Any:
        if method == "initialize":
            return self._initialize(params)
        return await self._requests.answer(method, params, self._client)

    def _on_notification(self, method: str, params: Params) -> None:
        if method == "notifications/cancelled":
            self._connection.cancel(params.get("requestId"))

    def _initialize(self, params: Params) -> dict[str, Any]:
        asked, capabilities = params.get("protocolVersion"), params.get("capabilities")
        if isinstance(capabilities, dict):
            self._client = self._client._replace(capabilities=capabilities)
        return {
            "protocolVersion": asked if asked in HANDSHAKE_VERSIONS else HANDSHAKE_VERSIONS[-1],
            "capabilities": CAPABILITIES,
            "serverInfo": SERVER_INFO,
            "instructions": INSTRUCTIONS,
        }
