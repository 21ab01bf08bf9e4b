"""Tools, and the context that they act in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import msgspec

from retinue.domain.access import Access
from retinue.domain.grant import Grant
from retinue.domain.messages import Effect, ToolSpec
from retinue.ports.delegation import CallInfo, Delegation
from retinue.ports.person import Ask
from retinue.ports.sandbox import Sandbox
from retinue.ports.store import MemoryStore
from retinue.ports.tool_outcome import ToolOutcome
from retinue.ports.workspace import Workspace


class ToolContext(msgspec.Struct, frozen=True, kw_only=True):
    """What a tool may use, and who calls it."""

    workspace: Workspace
    sandbox: Sandbox | None
    access: Access
    agent_id: str
    path: str = ""
    """The agent's place in the tree, such as `root/tester.2`."""
    directory: str = ""
    """Working directory that the agent is told: where its commands find the files."""
    delegation: Delegation | None = None
    ask: Ask | None = None
    memory_store: MemoryStore | None = None
    run_id: str = ""
    call: CallInfo = CallInfo()
    """The call, for tools that have children."""
    depth: int = 0
    """Generations below the root; 0 for the root."""
    remembered: bool = False
    """Whether the agent's result may be cached, so that receipts must list what was read."""
    waiting: Callable[[], AbstractContextManager[None]] = nullcontext
    """Context in which the watchdog is paused, for waits that have a limit of their own."""


class Tool(Protocol):
    @property
    def spec(self) -> ToolSpec: ...

    def spec_for(self, grant: Grant) -> ToolSpec:
        """The spec as an agent with that grant sees it; mostly the same as `spec`."""
        ...

    @property
    def effect(self) -> Effect: ...

    async def run(self, arguments: Mapping[str, Any], ctx: ToolContext) -> ToolOutcome:
        """Do it. ToolFailure tells the model what went wrong, and so does any other exception."""
        ...
