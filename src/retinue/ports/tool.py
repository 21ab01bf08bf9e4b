"""Tools, and the context that they act in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import msgspec

from retinue.domain.grant import Grant
from retinue.domain.messages import Effect, ToolSpec
from retinue.domain.reach import Reach
from retinue.ports.delegation import CallInfo, Delegation
from retinue.ports.person import Ask
from retinue.ports.sandbox import Sandbox
from retinue.ports.store import MemoryStore
from retinue.ports.tool_outcome import ToolOutcome
from retinue.ports.workspace import Workspace


class ToolContext(msgspec.Struct, frozen=True, kw_only=True):
    """What a tool is given to act with."""

    workspace: Workspace
    sandbox: Sandbox | None
    reach: Reach
    agent_id: str
    path: str = ""
    """Where the agent is in the tree, such as `root/tester.2`."""
    directory: str = ""
    """Where it is told that it works: where its commands find the files."""
    delegation: Delegation | None = None
    ask: Ask | None = None
    memory_store: MemoryStore | None = None
    run_id: str = ""
    call: CallInfo = CallInfo()
    """The call that is made, for who has children."""
    depth: int = 0
    """How far below the root; a child has more than 0."""
    remembered: bool = False
    """Whether the result may be used again, so that it must be known what was looked at."""
    waiting: Callable[[], AbstractContextManager[None]] = nullcontext
    """To be inside of while silence is no sign of anything, since something else limits it."""


class Tool(Protocol):
    @property
    def spec(self) -> ToolSpec: ...

    def spec_for(self, grant: Grant) -> ToolSpec:
        """The spec as an agent with that grant sees it; mostly just `spec`."""
        ...

    @property
    def effect(self) -> Effect: ...

    async def run(self, arguments: Mapping[str, Any], ctx: ToolContext) -> ToolOutcome:
        """Act. ToolFailure is for the model; any other exception is turned into one."""
        ...
