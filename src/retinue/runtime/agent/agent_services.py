"""Services that one agent's loop uses: its model, its tools, its children, the user."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from retinue.domain.approval import Rules
from retinue.domain.grant import Grant
from retinue.domain.messages import Effect, Message, ToolSpec
from retinue.domain.price import PoolPrice, Price
from retinue.ports.clock import Clock
from retinue.ports.model import Model
from retinue.ports.person import Approve
from retinue.ports.tool import Tool, ToolContext
from retinue.runtime.agent.child_jobs import ChildJobs
from retinue.runtime.core.reservations import Reservations
from retinue.runtime.policy import Breaker

OnText = Callable[[str], None]


class Tools(Protocol):
    """Registry of tools by name."""

    def get(self, name: str) -> Tool | None: ...

    def specs(self, grant: Grant, *, window: int) -> tuple[ToolSpec, ...]: ...

    def omitted_tool_notes(self, grant: Grant, *, window: int) -> tuple[str, ...]: ...

    @property
    def effects(self) -> Mapping[str, Effect]: ...


class AgentServices(msgspec.Struct, frozen=True, kw_only=True):
    model: Model
    tools: Tools
    ctx: ToolContext
    children: ChildJobs | None
    """None if the agent may not spawn."""
    approve: Approve
    rules: Rules
    reservations: Reservations
    clock: Clock
    max_parallel_calls: int
    """How many tool calls of one reply may run at the same time."""
    window: int | None = None
    """Tokens that fit into one request, if the server says."""
    price: Price | PoolPrice | None = None
    breaker: Breaker | None = None
    on_text: OnText | None = None
    earlier_messages: tuple[Message, ...] = ()
    """Conversation of the earlier runs of the session."""
    only_summarize: bool = False
    """Whether the agent only summarizes the session."""
