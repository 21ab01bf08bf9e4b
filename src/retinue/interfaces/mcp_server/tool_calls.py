"""Runs the tools of the MCP server: children, background children, plans, changes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from msgspec import UNSET

from retinue.domain.events import Event
from retinue.domain.grant import Mode
from retinue.domain.plan.plan import Plan
from retinue.domain.result import Result, cap
from retinue.domain.role import GENERAL, Role
from retinue.domain.run_state import RunState
from retinue.domain.tool_names import matches, select_names
from retinue.errors import RetinueError, RunSuspended, UsageError
from retinue.interfaces.mcp_server import tool_list
from retinue.interfaces.mcp_server.running_calls import RunningCall, current_call
from retinue.interfaces.mcp_server.tool_list import TOOLS, ToolArguments
from retinue.interfaces.mcp_server.tool_results import (
    FAN_OUT_TOKENS,
    MIN_REPORT_TOKENS,
    REPORT_TOKENS,
    ToolResult,
    changes_result,
    child_result,
    failed,
    fan_out_result,
    plan_result,
    undo_result,
)
from retinue.interfaces.view.task_lines import task_summary
from retinue.runtime.delegation.task import Task, make_task
from retinue.runtime.run.job import Job
from retinue.runtime.runtime import Runtime

HEARTBEAT_S = 8.0
"""Clients drop a call that is silent for long; progress keeps it alive."""
STEPS = frozenset({
    "agent.subagent_created", "agent.subagent_attempt", "agent.subagent_closed", "agent.cached",
    "agent.limit_reached", "agent.silent", "agent.worktree_merged", "model.failed", "tool.started",
    "tool.denied", "plan.step_started",
})  # fmt: skip
"""Events that are worth a line of progress."""

GetRuntime = Callable[[], Awaitable[Runtime]]


class UnknownTool(UsageError):
    """The client called a tool that does not exist."""


class ToolCalls:
    """Runs tool calls of one client, in one runtime that is opened for the first of them."""

    def __init__(self, runtime: GetRuntime, *, roles: Sequence[str]) -> None:
        """`roles`: the only ones that the user allows, the default first; empty if all are."""
        self._runtime = runtime
        self._roles = roles
        self._runs: dict[str, RunState] = {}
        """Runs of this client, the latest last. No two of their agents have the same id."""
        self._jobs: dict[str, Job[Any]] = {}
        self._results: dict[str, Result] = {}

    @property
    def busy(self) -> bool:
        """Whether a background child is running."""
        return any(not job.done for job in self._jobs.values())

    def on_event(self, event: Event) -> None:
        """Follow an event of the runtime. It belongs to the call whose task recorded it."""
        if event.run_id not in self._runs:
            self._runs[event.run_id] = RunState()
        self._runs[event.run_id].apply(event)
        call = current_call.get()
        if call is not None and event.type in STEPS:
            call.run_id = event.run_id
            call.report(f"{event.agent_id}: {event.summary}")

    async def call(self, name: str, arguments: Mapping[str, Any], call: RunningCall) -> ToolResult:
        """Run one call. A mistake of the caller becomes a result that its model can read."""
        try:
            expected, _ = TOOLS[name]
        except KeyError:
            raise UnknownTool(f"Unknown tool {name!r}; there are: {', '.join(TOOLS)}.") from None
        try:
            decoded = msgspec.convert(arguments, expected)
            async with _heartbeat(call):
                return await self._run(name, decoded, await self._runtime())
        except msgspec.ValidationError as error:
            return failed(f"Wrong arguments for {name}: {error}.")
        except RunSuspended as error:
            return failed(f"{error} Continue it with: retinue resume {error.run_id}")
        except RetinueError as error:
            return failed(str(error))

    async def _run(self, name: str, arguments: ToolArguments, rt: Runtime) -> ToolResult:
        match arguments:
            case tool_list.Child() if name == "delegate":
                task = self._task(rt, arguments)
                return await self._report(rt, (await rt.fan_out([task]))[0])
            case tool_list.Child():
                return await self._start(rt, self._task(rt, arguments))
            case tool_list.FanOut():
                return await self._fan_out(rt, arguments)
            case tool_list.Agents():
                return await self._status(arguments)
            case tool_list.ResultOf():
                return await self._result(rt, arguments)
            case tool_list.Message():
                rt.tell(arguments.agent, arguments.text)
                return ToolResult(f"{arguments.agent} reads it before its next turn.", {})
            case tool_list.Agent():
                return await self._cancel(rt, arguments.agent)
            case tool_list.Goal():
                return _plan(await rt.plan(arguments.goal))
            case tool_list.PlanToRun():
                return plan_result(await rt.execute(arguments.plan))
            case tool_list.Changes():
                return await self._changes(rt, name, arguments)
        raise AssertionError(f"{name} has no handler")

    def _task(self, rt: Runtime, child: tool_list.Child) -> Task:
        given = {name: getattr(child, name) for name in child.__struct_fields__}
        options = {name: value for name, value in given.items() if value is not UNSET}
        if (schema := options.pop("schema", None)) is not None:
            options["output"] = schema
        role = options.pop("role", next(iter(self._roles), GENERAL))
        if self._roles and role in rt.roles and "tools" in options:
            # With all roles, the caller could take one that has these tools.
            options["tools"] = _tools_of(rt.roles[role], options["tools"])
        return make_task(role, options.pop("task"), options)

    async def _fan_out(self, rt: Runtime, arguments: tool_list.FanOut) -> ToolResult:
        tasks = [self._task(rt, child) for child in arguments.tasks]
        if not tasks:
            raise UsageError("There are no tasks.")
        limit = arguments.max_concurrent
        results = await rt.fan_out(tasks, max_concurrent=None if limit is UNSET else limit)
        share = max(MIN_REPORT_TOKENS, min(REPORT_TOKENS, FAN_OUT_TOKENS // len(results)))
        return fan_out_result([await self._report(rt, result, share) for result in results])

    async def _start(self, rt: Runtime, task: Task) -> ToolResult:
        fields = {name: getattr(task, name) for name in task.__struct_fields__}
        job = await rt.start(fields.pop("role"), fields.pop("task"), **fields)
        self._jobs[job.id] = job
        return ToolResult(
            f'{job.id} is running; result {{"agent": "{job.id}"}} waits for it.',
            {"agent": job.id, "run": job.run_id},
        )

    async def _status(self, arguments: tool_list.Agents) -> ToolResult:
        wanted = self._jobs if arguments.agents is UNSET else arguments.agents
        rows = []
        for agent_id in wanted:
            if agent_id not in self._jobs:
                rows.append({"agent": agent_id, "status": "not found"})
                continue
            job = self._jobs[agent_id]
            status = str((await job.result()).status) if job.done else "running"
            activity = task_summary(self._runs[job.run_id].agents[agent_id], time.time())
            rows.append({"agent": agent_id, "status": status, "activity": activity})
        lines = [" ".join(row.values()) for row in rows]
        return ToolResult("\n".join(lines) or "There are no background agents.", {"agents": rows})

    async def _result(self, rt: Runtime, arguments: tool_list.ResultOf) -> ToolResult:
        agent_id, start = arguments.agent, arguments.start
        job = self._jobs.get(agent_id)
        result = await job.result() if job is not None else self._results.get(agent_id)
        if result is None:
            known = ", ".join({**self._jobs, **self._results}) or "none yet"
            raise UsageError(f"Unknown agent {agent_id!r}; agents of this connection: {known}.")
        if not start:
            return await self._report(rt, result)
        text, cut = cap(result.response[start:], REPORT_TOKENS)
        end = start + len(text)
        note = f"\n[{end:,} of {len(result.response):,} characters]" if cut else ""
        return ToolResult(text + note, {"agent": agent_id, "start": start, "end": end})

    async def _cancel(self, rt: Runtime, agent_id: str) -> ToolResult:
        job = self._jobs.get(agent_id)
        if job is None:
            rt.cancel(agent_id)
            return ToolResult(f"{agent_id} is being stopped.", {"agent": agent_id})
        job.cancel("cancelled by the MCP client")
        result = await job.result()
        return ToolResult(f"{agent_id}: {result.status}", {"agent": agent_id})

    async def _changes(self, rt: Runtime, name: str, arguments: tool_list.Changes) -> ToolResult:
        agent = None if arguments.agent is UNSET else arguments.agent
        run_id = self._run_of(agent) if arguments.run is UNSET else arguments.run
        if name == "changes":
            return changes_result(await rt.diff(run_id, agent), run_id)
        self._check_undo(rt.mode, run_id)
        return undo_result(await rt.undo(run_id, agent), run_id)

    def _check_undo(self, mode: Mode, run_id: str) -> None:
        """Raise UsageError if the user's mode does not allow this undo without asking."""
        if mode is Mode.PLAN or not (mode.autonomous or run_id in self._runs):
            raise UsageError(
                f"An MCP client may not undo {run_id} in mode {mode}; the user can, with: retinue"
                f" undo {run_id}"
            )

    def _run_of(self, agent_id: str | None) -> str:
        """The run of an agent of this client; without an agent, the latest run."""
        found = [id for id, run in self._runs.items() if agent_id is None or agent_id in run.agents]
        if not found:
            what = "No agent has" if agent_id is None else f"No agent {agent_id!r} has"
            raise UsageError(f"{what} run for this client; name a run.")
        return found[-1]

    async def _report(
        self, rt: Runtime, result: Result, cap_tokens: int = REPORT_TOKENS
    ) -> ToolResult:
        self._results[result.agent_id] = result
        changed = result.files_modified and result.agent_id
        patches = await rt.diff(result.run_id, result.agent_id) if changed else []
        return child_result(result, patches, cap_tokens)


def _tools_of(role: Role, wanted: list[str]) -> list[str]:
    """The tools of `role` that are wanted. Raises UsageError for one that it does not have."""
    if role.tools is None:
        return wanted
    found: set[str] = set()
    for name in wanted:
        these = {name} if any(matches(own, name) for own in role.tools) else set()
        these = these or select_names([name], role.tools)[0]
        if not these:
            raise UsageError(
                f"The role {role.name!r} has no tool {name!r}; it has: {', '.join(role.tools)}."
            )
        found |= these
    return sorted(found)


def _plan(plan: Plan) -> ToolResult:
    data = msgspec.to_builtins(plan)
    return ToolResult(msgspec.json.encode(plan).decode(), {"plan": data})


@asynccontextmanager
async def _heartbeat(call: RunningCall) -> AsyncIterator[None]:
    """Repeat the last line of progress while nothing happens."""

    async def repeat() -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            call.report(call.message or "starting")

    repeating = asyncio.ensure_future(repeat())
    try:
        yield
    finally:
        repeating.cancel()
