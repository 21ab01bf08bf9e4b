"""Services that one agent's loop uses: its model, its tools, its children, the user."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple, Protocol

import msgspec

from retinue.domain.approval import Rules
from retinue.domain.grant import Grant
from retinue.domain.messages import Effect, Message, ToolSpec
from retinue.domain.price import PoolPrice, Price
from retinue.domain.result import ChildFailure, Result
from retinue.domain.resume_point import ResumePoint
from retinue.ports.clock import Clock
from retinue.ports.hooks import Hooks, NoHooks
from retinue.ports.model import Model
from retinue.ports.person import Approve
from retinue.ports.telemetry import NoTelemetry, Telemetry
from retinue.ports.tool import Tool, ToolContext
from retinue.runtime.agent.agent import Agent
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


class RunningChild(NamedTuple):
    """A background child that still runs."""

    id: str
    title: str


class ChildJobs(Protocol):
    """The children of one agent: `Children`, in the package `delegation` above this one."""

    def attempt(
        self, resume_point: ResumePoint | None, *, continued: bool = False
    ) -> AbstractAsyncContextManager[None]:
        """Context of one attempt of the agent: no child outlives it.

        A `continued` attempt keeps the ended children of the attempt before it. With
        `resume_point`, children that an earlier process created in the attempt are restored.
        """
        ...

    def rejoin(self, resume_point: ResumePoint) -> None:
        """Continue an attempt under way on another host, which has recorded `resume_point`."""
        ...

    async def has_news(self) -> bool:
        """Whether a background child has ended and its result was not delivered yet."""
        ...

    def child_for(self, origin_key: str) -> Agent | None:
        """The child that was spawned for `origin_key`."""
        ...

    async def take_ended(self) -> Sequence[Result]:
        """Results of background children that have ended, each once. Call it once per turn."""
        ...

    def take_failed(self) -> Sequence[ChildFailure]:
        """Failed children that are not settled; empty when called again in the same attempt."""
        ...

    async def take_running(self) -> Sequence[RunningChild]:
        """Background children that still run; empty when called again in the same attempt."""
        ...


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
    max_output: int | None = None
    """Tokens of the longest reply, if that is known."""
    price: Price | PoolPrice | None = None
    breaker: Breaker | None = None
    on_text: OnText | None = None
    earlier_messages: tuple[Message, ...] = ()
    """Conversation that the agent continues: of its session, or of an agent that has ended."""
    changes_since: str = ""
    """For an agent that continues an ended one: what changed since then, for the model."""
    check_work: Callable[[], Awaitable[str]] | None = None
    """Checks the agent's work before it is proposed. Returns what failed, for the model, or ""."""
    only_summarize: bool = False
    """Whether the agent only summarizes the session."""
    hooks: Hooks = NoHooks()
    telemetry: Telemetry = NoTelemetry()
    session: str = ""
    """The id of the session that the run belongs to, for hooks."""
    directory: str = ""
    """The project's directory, for hooks."""
