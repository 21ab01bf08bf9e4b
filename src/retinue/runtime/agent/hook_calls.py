"""Calls the hooks of an agent, with input in the fields and the order of Claude Code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from retinue.domain.account import UNLIMITED
from retinue.domain.events import Fact
from retinue.domain.hook import FEW_CALLS, FROM_HOOK, HookAnswer, HookEvent
from retinue.domain.hook_tools import hook_input, hook_names, hook_response
from retinue.domain.messages import Message, ToolCall
from retinue.domain.result import FileChange, Result
from retinue.domain.thinking import EFFORTS
from retinue.errors import ToolFailure, WorkspaceError
from retinue.ports.hooks import HookCall
from retinue.ports.tool import ToolOutcome
from retinue.ports.workspace import Workspace
from retinue.runtime.agent.agent import Agent
from retinue.runtime.agent.agent_services import AgentServices
from retinue.runtime.agent.conversation import CallAnswer
from retinue.runtime.agent.run_hooks import common_input, transcripts
from retinue.threads import in_thread, in_thread_shielded

_WITH_EFFORT = (
    HookEvent.PRE_TOOL_USE,
    HookEvent.POST_TOOL_USE,
    HookEvent.POST_TOOL_BATCH,
    HookEvent.STOP,
    HookEvent.SUBAGENT_STOP,
)
MAX_FORMATTED_BYTES = 8 * 1024 * 1024


class HookCalls:
    """Calls the hooks of one agent."""

    def __init__(self, agent: Agent, services: AgentServices) -> None:
        self._agent = agent
        self._services = services
        self.root = services.ctx.access.root
        _, _, effort = agent.contract.execution.model.partition("+effort=")
        word = effort.partition("@")[0].partition("+")[0]
        self._effort = word if word in EFFORTS else ""
        self._warned = False

    async def start(self) -> HookAnswer:
        """Run the hooks for a new root or a new child. Their text goes to the agent's inbox."""
        if self._agent.parent is not None:
            role = self._agent.role
            return self._with_context(await self._run(HookEvent.SUBAGENT_START, names=(role,)))
        answer = await self.start_session(
            "resume" if self._services.earlier_messages else "startup"
        )
        if answer.stop:
            return answer
        prompt = self._agent.contract.step.description
        submitted = await self._run(HookEvent.USER_PROMPT_SUBMIT, {"prompt": prompt})
        return self._with_context(submitted)

    async def start_session(self, source: str) -> HookAnswer:
        """Run the hooks for the start of a session, once per session in this process."""
        hooks = self._services.hooks
        end = {"reason": "other"}
        if not hooks.begin_session(self._call(HookEvent.SESSION_END, end, ("other",))):
            return HookAnswer()
        started = await self._run(HookEvent.SESSION_START, {"source": source}, names=(source,))
        return self._with_context(started)

    async def before_tool(self, call: ToolCall, arguments: Mapping[str, Any]) -> HookAnswer:
        names = hook_names(call.name)
        given = {
            "tool_name": names[0],
            "tool_input": hook_input(call.name, arguments, self.root),
            "tool_use_id": call.id,
        }
        return await self._run(HookEvent.PRE_TOOL_USE, given, names=names)

    async def after_tool(
        self,
        call: ToolCall,
        arguments: Mapping[str, Any],
        outcome: ToolOutcome,
        duration_s: float,
        child: Agent | None,
    ) -> HookAnswer:
        names = hook_names(call.name)
        tool_input = hook_input(call.name, arguments, self.root)
        response = hook_response(
            call.name,
            tool_input,
            outcome.content,
            created=outcome.before_sha256 is None,
            interrupted=outcome.exit_code is None,
        )
        if child is not None and child.result is not None:
            response = _child_response(child, child.result)
        given = {
            "tool_name": names[0],
            "tool_input": tool_input,
            "tool_response": response,
            "tool_use_id": call.id,
            "duration_ms": round(duration_s * 1_000),
        }
        hooked = HookEvent.POST_TOOL_USE in self._services.hooks.events
        if self._agent.files.recorder is None or not hooked:
            return await self._run(HookEvent.POST_TOOL_USE, given, names=names)
        # What a formatter does to the file is undone with the call: without a record of it, undo
        # would refuse to touch a file that has changed since.
        workspace = self._services.ctx.workspace
        written = await in_thread(partial(_contents, workspace, outcome.changed))
        try:
            return await self._run(HookEvent.POST_TOOL_USE, given, names=names)
        finally:
            await in_thread_shielded(partial(_record_later_changes, workspace, written))

    async def after_failure(
        self, call: ToolCall, arguments: Mapping[str, Any], error: str, duration_s: float
    ) -> HookAnswer:
        names = hook_names(call.name)
        given = {
            "tool_name": names[0],
            "tool_input": hook_input(call.name, arguments, self.root),
            "tool_use_id": call.id,
            "error": error,
            "is_interrupt": False,
            "duration_ms": round(duration_s * 1_000),
        }
        return await self._run(HookEvent.POST_TOOL_USE_FAILURE, given, names=names)

    async def after_batch(
        self, calls: Sequence[ToolCall], arguments: Mapping[str, Any], answers: Sequence[CallAnswer]
    ) -> HookAnswer:
        """Run the hooks after all calls of a reply; `arguments` are those that ran, by call id."""
        told = [
            {
                "tool_name": hook_names(call.name)[0],
                "tool_input": hook_input(call.name, arguments.get(call.id, {}), self.root),
                "tool_use_id": call.id,
                "tool_response": answer.content,
            }
            for call, answer in zip(calls, answers, strict=True)
        ]
        return await self._run(HookEvent.POST_TOOL_BATCH, {"tool_calls": told})

    async def stop(self, text: str, messages: Sequence[Message], *, again: bool) -> HookAnswer:
        """Run the hooks for a final answer. `again`: a hook has already made the agent continue."""
        more: dict[str, Any] = {
            "stop_hook_active": again,
            "last_assistant_message": text,
            "background_tasks": [],
            "session_crons": [],
        }
        if self._agent.parent is None:
            return await self._run(HookEvent.STOP, more, messages=messages)
        given = {"stop_hook_active": again, "agent_transcript_path": self._child_transcript, **more}
        return await self._run(
            HookEvent.SUBAGENT_STOP, given, names=(self._agent.role,), messages=messages
        )

    async def before_compact(self, trigger: str, messages: Sequence[Message]) -> HookAnswer:
        given = {"trigger": trigger, "custom_instructions": ""}
        if self._agent.parent is not None:  # Others may be summed up at the same time.
            given["transcript_path"] = self._child_transcript
        return await self._run(HookEvent.PRE_COMPACT, given, names=(trigger,), messages=messages)

    async def budget_warning(self) -> None:
        """Run the hooks once, when little of the agent's budget is left."""
        agent, left = self._agent, self._agent.account.remaining()
        limit = agent.account.limit
        few = left.tool_calls <= FEW_CALLS or left.tokens < limit.tokens // 4
        if few and not self._warned:
            self._warned = True
            given = {"tool_calls_left": left.tool_calls}
            if limit.tokens < UNLIMITED:
                given |= {"tokens_left": left.tokens, "max_tokens": limit.tokens}
            await self._run(HookEvent.BUDGET_WARNING, given, names=(agent.role,))

    @property
    def _child_transcript(self) -> str:
        folder = f"{transcripts(self._services.directory)}/{self._run_id}/subagents"
        return f"{folder}/agent-{self._agent.id}.jsonl"

    @property
    def _run_id(self) -> str:
        return self._agent.contract.parent.run_id

    async def _run(
        self,
        event: HookEvent,
        given: Mapping[str, Any] | None = None,
        names: tuple[str, ...] = (),
        messages: Sequence[Message] = (),
    ) -> HookAnswer:
        services, agent = self._services, self._agent
        if event not in services.hooks.events:
            return HookAnswer()
        # A hook has its own time limit.
        with agent.waiting():
            answer = await services.hooks.run(self._call(event, given or {}, names, messages))
        if answer.stop:
            agent.stop(f"stopped by a hook: {answer.stop}")
        return answer

    def _call(
        self,
        event: HookEvent,
        given: Mapping[str, Any],
        names: tuple[str, ...],
        messages: Sequence[Message] = (),
    ) -> HookCall:
        agent, services = self._agent, self._services
        effort = self._effort if event in _WITH_EFFORT else ""
        about = common_input(
            agent, event, services.session, services.directory, self.root, effort=effort
        )
        return HookCall(
            event=event,
            names=names,
            input={**about, **given},
            session=services.session,
            effort=effort,
            messages=tuple(messages),
            access=services.ctx.access,
            record=_ignore if event is HookEvent.SESSION_END else agent.record,
        )

    def _with_context(self, answer: HookAnswer) -> HookAnswer:
        self._agent.inbox += [(FROM_HOOK, text) for text in answer.context]
        return answer


def _child_response(child: Agent, result: Result) -> dict[str, Any]:
    usage = child.state.usage
    tools = Counter(receipt.tool for receipt in result.receipts)
    counts = {
        "readCount": tools.pop("read_file", 0),
        "searchCount": tools.pop("search_files", 0) + tools.pop("find_files", 0),
        "bashCount": tools.pop("run_command", 0),
        "editFileCount": tools.pop("edit_file", 0) + tools.pop("write_file", 0),
        "linesAdded": 0,
        "linesRemoved": 0,
        "otherToolCount": tools.total(),
    }
    return {
        "status": result.status.value,
        "prompt": result.task,
        "agentId": child.id,
        "agentType": child.role,
        "content": [{"type": "text", "text": result.response}],
        "resolvedModel": child.contract.execution.model,
        "totalDurationMs": round(result.usage.duration_s * 1_000),
        "totalTokens": usage.tokens,
        "totalToolUseCount": len(result.receipts),
        "usage": {
            "input_tokens": usage.tokens_in,
            "cache_creation_input_tokens": usage.tokens_written,
            "cache_read_input_tokens": usage.tokens_cached,
            "output_tokens": usage.tokens_out,
        },
        "toolStats": counts,
    }


def _contents(workspace: Workspace, changed: Sequence[FileChange]) -> dict[str, bytes]:
    found = {}
    for change in changed:
        with suppress(ToolFailure):  # The file may be gone, or too large.
            found[change.path] = workspace.read(change.path, max_bytes=MAX_FORMATTED_BYTES)
    return found


def _record_later_changes(workspace: Workspace, written: Mapping[str, bytes]) -> None:
    for path, before in written.items():
        with suppress(ToolFailure, WorkspaceError):
            workspace.record_later_change(path, before)


def _ignore(fact: Fact) -> None:
    """Record nothing: when the session ends, the journal of the run is closed."""
