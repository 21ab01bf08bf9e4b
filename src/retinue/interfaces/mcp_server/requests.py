"""Answers requests of MCP clients, whatever carries them: standard streams or HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, NamedTuple

from retinue.errors import RetinueError, UsageError
from retinue.interfaces.json_rpc import INVALID_PARAMS, METHOD_NOT_FOUND, Params, RpcError
from retinue.interfaces.mcp_server.tool_list import LONG_TOOLS, tool_list
from retinue.runtime.core.task_group import TaskGroup
from retinue.version import VERSION

if TYPE_CHECKING:  # Imported with the first call: clients wait for the list of tools.
    from retinue.interfaces.mcp_server.running_calls import OnProgress, RunningCall
    from retinue.ports.person import Listeners, Person
    from retinue.runtime.runtime import Runtime

HANDSHAKE_VERSIONS = ("2025-06-18", "2025-11-25")
"""Versions that begin with `initialize`. A client that asks for another is offered the newest."""
STATELESS_VERSIONS = ("2026-07-28",)
"""Versions in which each request names its version and what the client can do."""
MISSING_CAPABILITY, UNSUPPORTED_VERSION = -32021, -32022
RESOURCE_NOT_FOUND = -32002
META = "io.modelcontextprotocol/"
TASKS = f"{META}tasks"
INSTRUCTIONS = (
    "Sub-agents with budgets, sandboxes and their own copy of the files. Delegate work that would"
    " fill your context, or that can run in parallel."
)
CANCELLED = "cancelled by the MCP client"
CAPABILITIES: dict[str, Any] = {"tools": {}, "resources": {}, "prompts": {}}
SERVER_INFO = {"name": "retinue", "version": VERSION}
METHODS = (
    "server/discover", "tools/list", "tools/call", "prompts/list", "prompts/get", "resources/list",
    "resources/templates/list", "resources/read", "tasks/get", "tasks/update", "tasks/cancel",
)  # fmt: skip

OpenRuntime = Callable[["Person", "Listeners"], "AbstractAsyncContextManager[Runtime]"]


class Client(NamedTuple):
    """The client of a request, and the ways to reach it while the request is answered."""

    notify: Callable[[str, dict[str, Any]], None]
    """Sends a notification, or drops it while the client does not read."""
    request: Callable[[str, dict[str, Any]], Awaitable[Any]]
    """Asks the client. Stateless clients cannot be asked."""
    capabilities: Mapping[str, Any] = {}
    """From the handshake. Stateless clients send theirs with each request."""


class McpRequests:
    """Answers requests of clients. The first call of a tool opens a runtime, which all share."""

    def __init__(
        self,
        tasks: TaskGroup,
        *,
        open_runtime: OpenRuntime,
        directory: str,
        roles: Sequence[str] = (),
        attended: bool = False,
    ) -> None:
        """`roles`: the only ones that the user allows, the default first; empty if all are.

        `attended` if some clients can ask their users, whatever the first one can do.
        """
        self._open_runtime = open_runtime
        self._directory = directory
        self._tasks = tasks
        self._roles = roles
        self._attended = attended
        self._loaded = False

    @property
    def busy(self) -> bool:
        """Whether a call or a background agent is running."""
        return self._loaded and (self._running.busy or self._tools.busy)

    def suspend(self, why: str, then: Callable[[], None] | None) -> None:
        self._runtime.suspend(why, then)

    async def close(self) -> None:
        """Stop what runs, and close the runtime. Suspend first what is to be resumed."""
        if self._loaded:
            busy = self.busy
            await self._running.close()
            await self._runtime.close(suspended=busy)

    async def answer(self, method: str, params: Params, client: Client) -> dict[str, Any]:
        """The result of a request. Raises RpcError."""
        version, capabilities = _stateless_client(params)
        if version is not None:
            client = client._replace(capabilities=capabilities)
        has_tasks = version is not None and TASKS in _object(capabilities, "extensions")
        match method:
            case "server/discover":
                offered = CAPABILITIES | ({"extensions": {TASKS: {}}} if has_tasks else {})
                result: dict[str, Any] = {
                    "supportedVersions": [*HANDSHAKE_VERSIONS, *STATELESS_VERSIONS],
                    "capabilities": offered,
                    "instructions": INSTRUCTIONS,
                }
            case "ping":
                result = {}
            case "tools/list":
                result = {"tools": self.tools()}
            case "tools/call":
                result = await self._call_tool(
                    params, client, stateless=version is not None, has_tasks=has_tasks
                )
            case "tasks/get" | "tasks/update" | "tasks/cancel" if version is not None:
                if not has_tasks:
                    needed: Any = {"requiredCapabilities": {"extensions": {TASKS: {}}}}
                    raise RpcError(MISSING_CAPABILITY, f"{method} needs {TASKS}.", needed)
                result = self._task(method, params)
            case "prompts/list" | "prompts/get":
                result = _prompts(method, params)
            case "resources/list" | "resources/templates/list" | "resources/read":
                result = await self._resources(method, params)
            case _:
                raise RpcError(METHOD_NOT_FOUND, f"Unknown method {method!r}.")
        return result if version is None else _stateless(method, result)

    # Tools

    async def _call_tool(
        self, params: Params, client: Client, *, stateless: bool, has_tasks: bool
    ) -> dict[str, Any]:
        name, arguments = params.get("name"), params.get("arguments") or {}
        if not isinstance(name, str) or not isinstance(arguments, dict):
            raise RpcError(INVALID_PARAMS, "A call has a name, and arguments that are an object.")
        can_elicit = "elicitation" in client.capabilities
        self._load(attended=can_elicit)
        if stateless and params.get("requestState") is not None:
            call = self._running.waiting(params["requestState"])
            call.answer(params.get("inputResponses") or {})
        else:
            call = self._new_call(client, can_elicit=can_elicit, stateless=stateless)

            async def work(call: RunningCall) -> dict[str, Any]:
                return await self.run_tool(name, arguments, call)

            if has_tasks and self.is_long(name):
                return self._running.start_task(call, work)
            self._running.start(call, work)
        call.on_progress = _progress(params, client)
        try:
            await call.settled()
        except asyncio.CancelledError:
            self._cancel(call)
            raise
        if call.error is not None:
            raise call.error
        if call.status == "cancelled":
            raise RpcError(INVALID_PARAMS, "The call was cancelled: make the call again.")
        return call.as_input_required() if call.questions else call.result

    def _load(self, *, attended: bool) -> None:
        """Import what calls need, with the first of them: clients wait for the list of tools."""
        self._attended |= attended  # Counts until the first call of a tool opens the runtime.
        if self._loaded:
            return
        from retinue.interfaces.lazy_runtime import LazyRuntime
        from retinue.interfaces.mcp_server.running_calls import RunningCalls
        from retinue.interfaces.mcp_server.tool_calls import ToolCalls

        self._runtime = LazyRuntime(self._new_runtime, self._tasks)
        self._running = RunningCalls(self._tasks, self._directory)
        self._tools = ToolCalls(self._get_runtime, roles=self._roles)
        self._loaded = True

    def _new_runtime(self) -> AbstractAsyncContextManager[Runtime]:
        from retinue.interfaces.mcp_server.approvals import approve
        from retinue.ports.person import Listeners, Person

        person = Person(approve=approve) if self._attended else Person()
        return self._open_runtime(person, Listeners(on_event=self._tools.on_event))

    async def _get_runtime(self) -> Runtime:
        is_new = self._runtime.runtime is None
        runtime = await self._runtime.get()
        if is_new:
            runtime.share_numbers()
        return runtime

    def _new_call(self, client: Client, *, can_elicit: bool, stateless: bool) -> RunningCall:
        from retinue.interfaces.mcp_server.running_calls import RunningCall

        async def elicit(question: dict[str, Any]) -> Any:
            return await client.request("elicitation/create", question)

        if stateless:
            return RunningCall(keeps_questions=can_elicit)
        return RunningCall(elicit if can_elicit else None)

    def tools(self) -> list[dict[str, Any]]:
        """The tools of this server. A conformance suite has others (see its tests)."""
        return tool_list()

    def is_long(self, name: str) -> bool:
        """Whether a call of this tool becomes a task, for clients that know tasks."""
        return name in LONG_TOOLS

    async def run_tool(
        self, name: str, arguments: dict[str, Any], call: RunningCall
    ) -> dict[str, Any]:
        from retinue.interfaces.mcp_server.tool_calls import UnknownTool

        try:
            return (await self._tools.call(name, arguments, call)).content
        except UnknownTool as error:
            raise RpcError(INVALID_PARAMS, str(error)) from None

    def _cancel(self, call: RunningCall) -> None:
        if self._runtime.runtime is not None:
            self._runtime.runtime.set_cancel_reason(CANCELLED)
        call.cancel()

    # Tasks

    def _task(self, method: str, params: Params) -> dict[str, Any]:
        self._load(attended=False)
        task_id = params.get("taskId")
        if method == "tasks/get":
            return self._running.task_state(task_id)
        task = self._running.task(task_id)
        if task is not None and method == "tasks/cancel":
            self._cancel(task)
        elif task is not None:
            task.answer(params.get("inputResponses"))
        return {}

    # Resources

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


def _stateless_client(params: Params) -> tuple[str | None, Mapping[str, Any]]:
    """Version and capabilities that a request of a stateless client names. Raises RpcError.

    Requests of other clients name no version.
    """
    meta = _object(params, "_meta")
    version = meta.get(f"{META}protocolVersion")
    if version is None:
        return None, {}
    if version not in STATELESS_VERSIONS:
        data = {"supported": list(STATELESS_VERSIONS), "requested": version}
        raise RpcError(UNSUPPORTED_VERSION, "Unsupported protocol version", data)
    return str(version), _object(meta, f"{META}clientCapabilities")


def _object(params: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A part of a message that should be an object; empty if it is not."""
    found = params.get(name)
    return found if isinstance(found, dict) else {}


def _stateless(method: str, result: dict[str, Any]) -> dict[str, Any]:
    """A result for stateless versions: marked with its type; lists say how long they are valid."""
    lasting = method.startswith(("tools/call", "tasks/"))
    cached = {} if lasting else {"ttlMs": 0, "cacheScope": "private"}
    stamp = {"_meta": {f"{META}serverInfo": SERVER_INFO}}
    return {"resultType": "complete", **result, **cached, **stamp}


def _progress(params: Params, client: Client) -> OnProgress | None:
    """Sends progress of a call to a client that asked for it; the numbers only rise."""
    token = _object(params, "_meta").get("progressToken")
    if token is None:
        return None
    step = 0

    def report(text: str) -> None:
        nonlocal step
        step += 1
        progress = {"progressToken": token, "progress": step, "message": text[:200]}
        client.notify("notifications/progress", progress)

    return report


def _prompts(method: str, params: Params) -> dict[str, Any]:
    from retinue.interfaces.mcp_server.prompts import get_prompt, prompt_list

    if method == "prompts/list":
        return {"prompts": prompt_list()}
    goal = _object(params, "arguments").get("goal", "")
    try:
        return get_prompt(str(params.get("name")), str(goal))
    except UsageError as error:
        raise RpcError(INVALID_PARAMS, str(error)) from None
