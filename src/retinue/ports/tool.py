"""Tools: what they act on, what they return, and how they have children work."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, runtime_checkable

import msgspec

from retinue.domain.account import Resources
from retinue.domain.budget import Limits
from retinue.domain.grant import Access, Grant
from retinue.domain.images import Image
from retinue.domain.messages import Effect, ToolCall, ToolSpec
from retinue.domain.result import FileChange
from retinue.domain.sampling import NO_SAMPLING, Sampling
from retinue.ports.person import Ask, ReadBuffer
from retinue.ports.sandbox import CommandResult, Sandbox
from retinue.ports.store import MemoryStore
from retinue.ports.workspace import Workspace


class ToolOutcome(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What a tool did: the text for the model, and the facts for the receipt."""

    content: str
    shown: str = ""
    """What people are shown of an error, if `content` also advises the model."""
    images: tuple[Image, ...] = ()
    """For models that can see; others are told that there are images."""
    ok: bool = True
    acted: bool = False
    """Whether the tool did act although `ok` is False, so that the same call again makes sense."""
    read: tuple[str, ...] = ()
    changed: tuple[FileChange, ...] = ()
    before_sha256: str | None = None
    after_sha256: str | None = None
    command: str | None = None
    exit_code: int | None = None
    about: tuple[str, ...] = ()
    """Background children whose results the text delivers."""
    only_tools: tuple[str, ...] = ()
    """Rules for tools: the agent may make no other calls from now on."""
    untrusted: bool = False
    """Whether the text comes from the network or from a tool that the user has not vouched for."""


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
    network: str | None = None
    web_hosts: list[str] | str | None = None
    model: str | None = None
    endpoint: str | None = None
    system_prompt: str | None = None
    output_schema: dict[str, Any] | str | None = None
    replaces: str | None = None
    continues: str | None = None
    limits: Limits = Limits()
    sampling: Sampling = NO_SAMPLING
    background: bool = False


class RaceRequest(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Arguments of `race_agents`, as the model wrote them."""

    task: str
    candidates: list[str] | str
    role: str | None = None
    scope: str | list[str] | None = None
    first: bool = False
    limits: Limits = Limits()


class CallInfo(msgspec.Struct, frozen=True):
    """The tool call that is being answered."""

    name: str = ""
    """Unique within the agent."""
    room_tokens: int = 2_000
    """Room for the answer, beside the answers to the other calls of the turn."""
    turn: Sequence[ToolCall] = ()
    """All calls of the turn: a fan-out is approved as a whole."""
    traceparent: str = ""
    """The trace and span of the call, for processes and servers that it uses."""


class Delegation(Protocol):
    """Requests about children. A mistake is answered with text for the model; nothing raises."""

    async def spawn(self, request: SpawnRequest, call: CallInfo) -> ToolOutcome:
        """Spawn a child; after a resume, continue with the child that `call` spawned before."""
        ...

    async def wait(self, job_ids: str, call: CallInfo) -> ToolOutcome: ...

    async def delegate(
        self, plan: str, subtasks: Sequence[Subtask], call: CallInfo
    ) -> ToolOutcome: ...

    async def race(self, request: RaceRequest, call: CallInfo) -> ToolOutcome: ...

    async def message(self, id: str, text: str) -> ToolOutcome: ...

    async def cancel(self, id: str, call: CallInfo) -> ToolOutcome: ...

    async def result(self, id: str, start: int) -> ToolOutcome: ...


def _ignore_progress(tool: str, text: str) -> None:
    """For agents that nobody watches."""


class SuiteRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the project's tests."""

    command: str
    result: CommandResult
    note: str = ""


class SuiteRunner(Protocol):
    async def run(self, selector: str) -> SuiteRun:
        """Run all tests, or those that `selector` names. ToolFailure if they cannot be run."""
        ...


class ToolContext(msgspec.Struct, frozen=True, kw_only=True):
    """The services that a tool may use, and the agent that calls it."""

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
    read_buffer: ReadBuffer | None = None
    """Reads files as the user's editor has them; only the root has it."""
    memory_store: MemoryStore | None = None
    tests: SuiteRunner | None = None
    """None if the project has no test command."""
    run_id: str = ""
    call: CallInfo = CallInfo()
    """The call. Only tools that delegate get it, and all tools if the run has a trace."""
    depth: int = 0
    """Generations below the root; 0 for the root."""
    remembered: bool = False
    """Whether the agent's result may be cached, so that receipts must list what was read."""
    web_hosts: tuple[str, ...] = ()
    """Hosts that the agent may fetch from."""
    may_load: Callable[[str], bool] = bool
    """Whether the agent may load the skill of that name."""
    waiting: Callable[[], AbstractContextManager[None]] = nullcontext
    """Context in which the watchdog is paused, for waits that have a limit of their own."""
    remaining: Callable[[], Resources] = Resources
    """What the agent may still spend."""
    on_progress: Callable[[str, str], None] = _ignore_progress
    """Called on the event loop with the name of the tool and its progress."""


@runtime_checkable
class PreviewsChange(Protocol):
    """A tool that can say which change of the files a call would make."""

    async def preview(self, arguments: Mapping[str, Any], ctx: ToolContext) -> str:
        """The change as a unified diff, or ""; nothing is changed. Raises like `Tool.run`."""
        ...


class Tool(Protocol):
    @property
    def spec(self) -> ToolSpec: ...

    def spec_for(self, grant: Grant) -> ToolSpec:
        """The spec as an agent with that grant sees it; mostly the same as `spec`."""
        ...

    @property
    def effect(self) -> Effect: ...

    async def run(self, arguments: Mapping[str, Any], ctx: ToolContext) -> ToolOutcome:
        """Run the tool. The model gets the message of a ToolFailure or of any other exception."""
        ...
