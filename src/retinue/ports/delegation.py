"""What an agent asks for when it works with children."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from retinue.domain.budget import Limits
from retinue.ports.tool_outcome import ToolOutcome


class Subtask(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    # A comment and not a docstring, which would cost tokens in the schema that is made of this: one
    # step of a `delegate_task`; `depends_on` are indices of earlier steps, from 0.
    task: str
    role: str | None = None
    scope: str | list[str] | None = None
    depends_on: int | list[int] | None = None


class SpawnRequest(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What a model asks for when it spawns a child, as it asked for it."""

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
    """A tool call that is being made."""

    name: str = ""
    """No other of its agent's is called so."""
    room_tokens: int = 2_000
    """How long an answer there is room for, beside those to the other calls of the turn."""


class Delegation(Protocol):
    """What an agent can do with children. Everything is answered in words; nothing raises."""

    async def spawn(self, request: SpawnRequest, call: CallInfo) -> ToolOutcome:
        """`call` is the one that asks. Where its child is there already, that one is meant."""
        ...

    async def wait(self, job_ids: str, call: CallInfo) -> ToolOutcome: ...

    async def delegate(
        self, plan: str, subtasks: Sequence[Subtask], call: CallInfo
    ) -> ToolOutcome: ...

    async def message(self, id: str, text: str) -> ToolOutcome: ...

    async def cancel(self, id: str, call: CallInfo) -> ToolOutcome: ...

    async def result(self, id: str, start: int) -> ToolOutcome: ...
