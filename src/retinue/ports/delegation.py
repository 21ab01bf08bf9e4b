"""Delegation: what a model asks for when it works with children, and who answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from retinue.domain.budget import Limits
from retinue.ports.tool_outcome import ToolOutcome


class Subtask(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    # One step of `delegate_task`; `depends_on` has indices of earlier steps, from 0. Not a
    # docstring: it would become part of the tool's schema and cost tokens.
    task: str
    role: str | None = None
    scope: str | list[str] | None = None
    depends_on: int | list[int] | None = None


class SpawnRequest(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Arguments of `spawn_agent`, as the model wrote them."""

    task: str
    role: str | None = None
    profile: str | None = None
    scope: str | list[str] | None = None
    context: str | None = None
    context_files: list[str] | str | None = None
    tools: list[str] | str | None = None
    mode: str | None = None
    model: str | None = None
    endpoint: str | None = None
    system_prompt: str | None = None
    output_schema: dict[str, Any] | str | None = None
    limits: Limits = Limits()
    background: bool = False


class CallInfo(msgspec.Struct, frozen=True):
    """The tool call that is being answered."""

    name: str = ""
    """Unique within the agent."""
    room_tokens: int = 2_000
    """Room for the answer, beside the answers to the other calls of the turn."""


class Delegation(Protocol):
    """What an agent can do with children. Mistakes are answered in text; nothing raises."""

    async def spawn(self, request: SpawnRequest, call: CallInfo) -> ToolOutcome:
        """Spawn a child; after a resume, continue with the child that `call` spawned before."""
        ...

    async def wait(self, job_ids: str, call: CallInfo) -> ToolOutcome: ...

    async def delegate(
        self, plan: str, subtasks: Sequence[Subtask], call: CallInfo
    ) -> ToolOutcome: ...

    async def message(self, id: str, text: str) -> ToolOutcome: ...

    async def cancel(self, id: str, call: CallInfo) -> ToolOutcome: ...

    async def result(self, id: str, start: int) -> ToolOutcome: ...
