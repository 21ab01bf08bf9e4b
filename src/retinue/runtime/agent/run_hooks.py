"""Calls hooks about a run: contracts of children, merges, questions to the user, its end.

The fields that every event has are here too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from retinue.domain.approval import ApprovalReason, ApprovalRequest, Refusal, Rule, agent_label
from retinue.domain.contract import Contract
from retinue.domain.events import Fact
from retinue.domain.grant import Mode
from retinue.domain.hook import HookAnswer, HookEvent
from retinue.domain.hook_tools import hook_input, hook_names
from retinue.domain.result import FileChange, Status
from retinue.ports.hooks import HookCall, Hooks
from retinue.ports.person import Approve, Ask, refuse_unattended
from retinue.runtime.agent.agent import Agent

MODES = {
    Mode.PLAN: "plan",
    Mode.NORMAL: "default",
    Mode.AUTO: "acceptEdits",
    Mode.DANGEROUS: "bypassPermissions",
}

_WANTED = {ApprovalReason.CALLS: "continue", ApprovalReason.MERGE: "merge its changes"}


class RunHooks:
    """The hooks of one run. `session` is the id of its session, `directory` the project's."""

    def __init__(self, hooks: Hooks, session: str, directory: str) -> None:
        self._hooks = hooks
        self._session = session
        self._directory = directory

    async def contract_drafted(self, parent: Agent, contract: Contract) -> str:
        """Why a child must not be made, or ""."""
        if HookEvent.CONTRACT_DRAFTED not in self._hooks.events:
            return ""
        given = {"contract": msgspec.json.decode(contract.encode().canonical)}
        answer = await self._run(HookEvent.CONTRACT_DRAFTED, parent, given, contract.execution.role)
        return answer.blocked

    async def before_merge(self, agent: Agent, files: Sequence[FileChange]) -> str:
        """Why the work of a child must not be merged, or ""."""
        given = {"files": _files(files)}
        return (await self._run(HookEvent.PRE_MERGE, agent, given, agent.role)).blocked

    async def after_merge(self, agent: Agent, files: Sequence[FileChange]) -> None:
        if HookEvent.POST_MERGE not in self._hooks.events:
            return
        # A hook may tell others of the merge, so a killed process must not forget it.
        await agent.durable()
        await self._run(HookEvent.POST_MERGE, agent, {"files": _files(files)}, agent.role)

    def notifying(self, agent: Agent, approve: Approve) -> Approve:
        """`approve`, with the hooks that may refuse before the user is asked, and those that notify
        while the user is asked."""
        hooked = {HookEvent.NOTIFICATION, HookEvent.PERMISSION_REQUEST}.intersection(
            self._hooks.events
        )
        if approve is refuse_unattended or not hooked:
            return approve

        async def notify_and_approve(request: ApprovalRequest) -> bool | Rule | Refusal:
            if refused := await self._refused(agent, request):
                return Refusal(refused)
            wanted = _WANTED.get(request.why, f"use {hook_names(request.tool)[0]}")
            message = f"{agent_label(request.path)} needs your permission to {wanted}"
            async with self._notification(agent, message, "permission_prompt"):
                return await approve(request)

        return notify_and_approve

    async def _refused(self, agent: Agent, request: ApprovalRequest) -> str:
        """Why a hook refuses a call in place of the user, or ""."""
        if request.children or request.why is ApprovalReason.CALLS:
            return ""
        names = hook_names(request.tool)
        arguments = msgspec.json.decode(request.arguments or "{}")
        tool_input = hook_input(request.tool, arguments, self._directory)
        given = {"tool_name": names[0], "tool_input": tool_input, "permission_suggestions": []}
        answer = await self._run(HookEvent.PERMISSION_REQUEST, agent, given, *names)
        return answer.blocked or answer.stop

    async def ask(self, agent: Agent, question: str, ask: Ask) -> str:
        """The user's answer to a question of the tool `ask_user`, with the same hooks."""
        message = f"{agent_label(agent.path)} asks: {question}"
        async with self._notification(agent, message, "elicitation_dialog"):
            return await ask(agent.path, question)

    @asynccontextmanager
    async def _notification(self, agent: Agent, message: str, kind: str) -> AsyncIterator[None]:
        """Run the hooks beside the block: a slow one must not delay the question."""
        given = {"message": message, "notification_type": kind}
        notified = asyncio.ensure_future(self._run(HookEvent.NOTIFICATION, agent, given, kind))
        try:
            yield
            if (answer := await notified).stop:
                agent.stop(f"stopped by a hook: {answer.stop}")
        finally:
            notified.cancel()
            await asyncio.wait([notified])

    async def run_finished(
        self, root: Agent, status: Status, reason: str, record: Callable[[Fact], object]
    ) -> None:
        result = root.result
        given = {
            "status": status.value,
            "reason": reason,
            "last_assistant_message": "" if result is None else result.response,
        }
        await self._run(HookEvent.RUN_FINISHED, root, given, status.value, record=record)

    async def _run(
        self,
        event: HookEvent,
        agent: Agent,
        given: Mapping[str, Any],
        *names: str,
        record: Callable[[Fact], object] | None = None,
    ) -> HookAnswer:
        if event not in self._hooks.events:
            return HookAnswer()
        about = common_input(agent, event, self._session, self._directory, self._directory)
        call = HookCall(
            event=event,
            names=names,
            input={**about, **given},
            session=self._session,
            record=record or agent.record,
        )
        with agent.waiting():  # A hook has its own time limit.
            return await self._hooks.run(call)


def transcripts(directory: str) -> str:
    return f"{directory}/.retinue/transcripts"


def common_input(
    agent: Agent, event: HookEvent, session: str, directory: str, cwd: str, *, effort: str = ""
) -> dict[str, Any]:
    """The fields of every event, in the order of Claude Code."""
    input: dict[str, Any] = {
        "session_id": session,
        "transcript_path": f"{transcripts(directory)}/{session}.jsonl",
        "cwd": cwd,
    }
    if event is not HookEvent.SESSION_START:
        input["prompt_id"] = agent.contract.parent.run_id
    if event not in _WITHOUT_MODE:
        input["permission_mode"] = MODES[agent.contract.permissions.mode]
    if effort:
        input["effort"] = {"level": effort}
    if agent.parent is not None:
        input |= {"agent_id": agent.id, "agent_type": agent.role}
    return input | {"hook_event_name": event.value}


# The input of these events has no mode, as in Claude Code.
_WITHOUT_MODE = (HookEvent.SESSION_START, HookEvent.SESSION_END, HookEvent.SUBAGENT_START)


def _files(files: Sequence[FileChange]) -> list[dict[str, Any]]:
    return [
        {"path": file.path, "added": file.added, "removed": file.removed, "deleted": file.gone}
        for file in files
    ]
