"""The MCP protocol for one client: handshake, tools, resources, prompts, approvals."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

from retinue.errors import RetinueError, UsageError
from retinue.interfaces.json_rpc import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    Connection,
    LineReader,
    Params,
    RequestId,
    RpcError,
)
from retinue.interfaces.mcp_server.tool_list import tool_list
from retinue.runtime.core.task_group import TaskGroup, run_to_completion
from retinue.version import VERSION

if TYPE_CHECKING:  # Imported with the first call: clients wait for the list of tools.
    from retinue.domain.approval import ApprovalRequest, Refusal, Rule
    from retinue.interfaces.cli.terminal.interrupts import Interrupts
    from retinue.interfaces.mcp_server.tool_calls import OnProgress
    from retinue.ports.person import Listeners, Person
    from retinue.runtime.runtime import Runtime

HANDSHAKE_VERSIONS = ("2025-06-18", "2025-11-25")
"""Versions that begin with `initialize`. A client that asks for another is offered the newest."""
STATELESS_VERSIONS = ("2026-07-28",)
"""Versions in which each request names its version and what the client can do."""
UNSUPPORTED_VERSION = -32022
RESOURCE_NOT_FOUND = -32002
META = "io.modelcontextprotocol/"
INSTRUCTIONS = (
    "Sub-agents with budgets, sandboxes and their own copy of the files. Delegate work that would"
    " fill your context, or that can run in parallel."
)
CANCELLED = "cancelled by the MCP client"
ANSWER_SCHEMA = {
    "type": "object",
    "properties": {
        "allow": {"type": "boolean", "title": "Allow it?"},
        "reason": {"type": "string", "title": "If not: why? The agent is told."},
    },
    "required": ["allow"],
}

CAPABILITIES: dict[str, Any] = {"tools": {}, "resources": {}, "prompts": {}}
SERVER_INFO = {"name": "retinue", "version": VERSION}

OpenRuntime = Callable[["Person", "Listeners"], "AbstractAsyncContextManager[Runtime]"]

WIDTH = 100  # Columns of a question to the user of the client.


class McpServer:
    """Serves one client. The runtime is opened by the first call of a tool."""

    def __init__(self, open_runtime: OpenRuntime, directory: str, *, default_role: str) -> None:
        self._open_runtime = open_runtime
        self._directory = directory
        self._default_role = default_role
        self._client_elicits = False
        self._call_made = asyncio.Event()
        self._new_runtime()

    def _new_runtime(self) -> None:
        self._call_made.clear()
        self._runtime: asyncio.Future[Runtime] = asyncio.get_running_loop().create_future()

    async def serve(self, lines: LineReader, output: int, interrupts: Interrupts) -> None:
        """Serve the client until it closes the connection; then suspend what still runs."""
        connection = Connection(lines, output, self._on_request, self._on_notification)
        self._connection = connection
        async with TaskGroup() as tasks:
            serving = tasks.create_task(connection.serve())
            try:
                while await self._next_call():
                    try:
                        await self._serve_calls(interrupts)
                    except RetinueError as error:
                        if self._runtime.done():
                            raise
                        # Every waiting call gets the reason; the next call tries again.
                        self._runtime.set_exception(error)
                        self._new_runtime()
            finally:
                serving.cancel()
        await connection.flush()

    async def _next_call(self) -> bool:
        """Wait for a call of a tool. False if the client has closed the connection."""
        events = (self._call_made, self._connection.closed)
        waits = [asyncio.ensure_future(event.wait()) for event in events]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return not self._connection.closed.is_set()

    async def _serve_calls(self, interrupts: Interrupts) -> None:
        """Open the runtime, and keep it open until the client closes the connection."""
        from retinue.interfaces.mcp_server.tool_calls import ToolCalls
        from retinue.ports.person import Listeners, Person

        self._calls = calls = ToolCalls(self._get_runtime, default_role=self._default_role)
        person = Person(approve=self._approve) if self._client_elicits else Person()
        async with self._open_runtime(person, Listeners(on_event=calls.on_event)) as runtime:
            runtime.share_numbers()
            interrupts.runtime = self
            self._runtime.set_result(runtime)
            try:
                await self._connection.closed.wait()
                if self._busy:
                    interrupts.interrupt()  # Suspends the runs, then cancels this task.
                    await asyncio.Event().wait()
            finally:
                await run_to_completion(self._connection.stop_answering())

    @property
    def _busy(self) -> bool:
        return self._connection.busy or self._calls.busy

    def suspend(self, why: str, then: Callable[[], None] | None = None) -> None:
        """Suspend the runs, for `Interrupts`. If nothing runs, end as if the client had closed."""
        if self._busy:
            self._runtime.result().suspend(why, then)
        else:
            # Some clients end their servers by a signal, also when every call is answered.
            self._connection.closed.set()

    async def _get_runtime(self) -> Runtime:
        return await asyncio.shield(self._runtime)

    # Messages

    async def _on_request(self, request_id: RequestId, method: str, params: Params) -> Any:
        version = _stateless_version(params)
        match method:
            case "initialize":
                return self._initialize(params)
            case "server/discover":
                result: dict[str, Any] = {
                    "supportedVersions": [*HANDSHAKE_VERSIONS, *STATELESS_VERSIONS],
                    "capabilities": CAPABILITIES,
                    "instructions": INSTRUCTIONS,
                }
            case "ping":
                result = {}
            case "tools/list":
                result = {"tools": tool_list()}
            case "tools/call":
                result = await self._call_tool(params)
            case "prompts/list" | "prompts/get":
                result = _prompts(method, params)
            case "resources/list" | "resources/templates/list" | "resources/read":
                result = await self._resources(method, params)
            case _:
                raise RpcError(METHOD_NOT_FOUND, f"Unknown method {method!r}.")
        return result if version is None else _stateless(method, result)

    def _on_notification(self, method: str, params: Params) -> None:
        if method == "notifications/cancelled":
            if self._runtime.done():
                self._runtime.result().set_cancel_reason(CANCELLED)
            self._connection.cancel(params.get("requestId"))

    def _initialize(self, params: Params) -> dict[str, Any]:
        asked, capabilities = params.get("protocolVersion"), params.get("capabilities")
        self._client_elicits = isinstance(capabilities, dict) and "elicitation" in capabilities
        return {
            "protocolVersion": asked if asked in HANDSHAKE_VERSIONS else HANDSHAKE_VERSIONS[-1],
            "capabilities": CAPABILITIES,
            "serverInfo": SERVER_INFO,
            "instructions": INSTRUCTIONS,
        }

    async def _call_tool(self, params: Params) -> dict[str, Any]:
        from retinue.interfaces.mcp_server.tool_calls import UnknownTool
        from retinue.interfaces.mcp_server.tool_results import failed

        name, arguments = params.get("name"), params.get("arguments") or {}
        if not isinstance(name, str) or not isinstance(arguments, dict):
            raise RpcError(INVALID_PARAMS, "A call has a name, and arguments that are an object.")
        self._call_made.set()
        try:
            await self._get_runtime()
        except RetinueError as error:
            return failed(str(error)).content
        try:
            result = await self._calls.call(name, arguments, self._progress_of(params))
        except UnknownTool as error:
            raise RpcError(INVALID_PARAMS, str(error)) from None
        return result.content

    def _progress_of(self, params: Params) -> OnProgress | None:
        """Sends progress of a call to a client that asked for it; the numbers only rise."""
        meta = params.get("_meta")
        token = meta.get("progressToken") if isinstance(meta, dict) else None
        if token is None:
            return None
        step = 0

        def report(text: str) -> None:
            nonlocal step
            step += 1
            progress = {"progressToken": token, "progress": step, "message": text[:200]}
            self._connection.notify("notifications/progress", progress, may_drop=True)

        return report

    async def _resources(self, method: str, params: Params) -> dict[str, Any]:
        from retinue.interfaces.mcp_server.resources import Resources

        resources = Resources(self._directory)
        if method == "resources/list":
            return {"resources": await resources.latest_runs()}
        if method == "resources/templates/list":
            return {"resourceTemplates": resources.templates()}
        try:
            return {"contents": [await resources.read(str(params.get("uri")))]}
        except RetinueError as error:
            raise RpcError(RESOURCE_NOT_FOUND, str(error)) from None

    async def _approve(self, request: ApprovalRequest) -> bool | Rule | Refusal:
        """Ask the user of the client."""
        from retinue.domain.approval import Refusal
        from retinue.interfaces.view.approvals import explanation_lines, request_lines
        from retinue.interfaces.view.styled_text import plain_text

        lines = [*request_lines(request, WIDTH), *explanation_lines(request, WIDTH)]
        question = {"message": plain_text(lines), "requestedSchema": ANSWER_SCHEMA}
        answer = await self._connection.request("elicitation/create", question)
        content = answer.get("content") if isinstance(answer, dict) else None
        if not isinstance(content, dict) or answer.get("action") != "accept":
            return False
        return content.get("allow") is True or Refusal(str(content.get("reason") or ""))


def _stateless_version(params: Params) -> str | None:
    """The version that a request of a stateless client names; None for others. Raises RpcError."""
    meta = params.get("_meta")
    version = meta.get(f"{META}protocolVersion") if isinstance(meta, dict) else None
    if version is None:
        return None
    if version not in STATELESS_VERSIONS:
        data = {"supported": list(STATELESS_VERSIONS), "requested": version}
        raise RpcError(UNSUPPORTED_VERSION, "Unsupported protocol version", data)
    return str(version)


def _stateless(method: str, result: dict[str, Any]) -> dict[str, Any]:
    """A result for stateless versions: marked as complete; lists say how long they are valid."""
    cached = {} if method == "tools/call" else {"ttlMs": 0, "cacheScope": "private"}
    stamp = {"resultType": "complete", "_meta": {f"{META}serverInfo": SERVER_INFO}}
    return {**result, **cached, **stamp}


def _prompts(method: str, params: Params) -> dict[str, Any]:
    from retinue.interfaces.mcp_server.prompts import get_prompt, prompt_list

    if method == "prompts/list":
        return {"prompts": prompt_list()}
    arguments = params.get("arguments")
    goal = arguments.get("goal", "") if isinstance(arguments, dict) else ""
    try:
        return get_prompt(str(params.get("name")), str(goal))
    except UsageError as error:
        raise RpcError(INVALID_PARAMS, str(error)) from None
