"""The seams: what the runtime needs from the world, as plain protocols.

Adapters implement these without importing each other; `app` puts them together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from retinue.domain.contract import Contract
from retinue.domain.events import Event
from retinue.domain.lifecycle import State
from retinue.domain.messages import Effect, Reply, Request, ToolSpec
from retinue.domain.result import FileChange


class Clock(Protocol):
    def now(self) -> float:
        """Seconds since the epoch, for the journal."""
        ...

    def monotonic(self) -> float:
        """Seconds that only go forward, for durations and deadlines."""
        ...

    async def sleep(self, seconds: float) -> None: ...

    def timeout(self, seconds: float) -> asyncio.Timeout:
        """A context manager that raises TimeoutError when `seconds` have passed inside it."""
        ...


class Model(Protocol):
    """Something that answers. One instance serves any number of agents at once."""

    @property
    def name(self) -> str:
        """What the user calls it, such as `openai:qwen3@http://127.0.0.1:8080/v1`. No secrets."""
        ...

    async def reply(self, request: Request, on_text: Callable[[str], None] | None = None) -> Reply:
        """Answer, or raise a ModelError. Text is given to `on_text` as it arrives."""
        ...

    async def aclose(self) -> None: ...


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One name in a folder. `kind` is file, dir, link or other."""

    name: str
    kind: str
    size_bytes: int = 0


class Match(msgspec.Struct, frozen=True, gc=False):
    path: str
    line: int
    text: str


class Written(msgspec.Struct, frozen=True, gc=False):
    change: FileChange
    before_sha256: str | None
    after_sha256: str


class Workspace(Protocol):
    """The files an agent acts on. Paths are relative and never leave the root.

    What cannot be done raises ToolFailure with a text for the model. Methods block; callers that
    must not wait run them in a thread.
    """

    @property
    def root(self) -> str: ...

    def read(self, path: str, *, max_bytes: int) -> bytes: ...

    def read_now(self, path: str, *, max_bytes: int) -> bytes | None:
        """The file if it can be had without waiting for a disk or a network, else None."""
        ...

    def list(self, path: str) -> Sequence[Entry]: ...

    def find(self, pattern: str, *, under: str, limit: int) -> tuple[Sequence[str], bool]:
        """Files whose path matches a glob, sorted; and whether there were more."""
        ...

    def search(
        self, pattern: str, *, under: str, glob: str | None, limit: int
    ) -> tuple[Sequence[Match], bool]:
        """Lines that match a regular expression; and whether there were more."""
        ...

    def write(self, path: str, data: bytes) -> Written: ...


class Completed(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """How a command ended. A non-zero exit is a result."""

    exit_code: int
    output: str
    truncated_bytes: int = 0
    timed_out: bool = False


class Sandbox(Protocol):
    @property
    def tier(self) -> str:
        """full, reduced or none."""
        ...

    async def run(
        self, command: str, *, directory: str, timeout_s: float, max_output_bytes: int
    ) -> Completed:
        """Run a shell command. A non-zero exit is a result, never an exception."""
        ...


class Hands(msgspec.Struct, frozen=True, kw_only=True):
    """What a tool is given to act with."""

    workspace: Workspace
    sandbox: Sandbox | None
    may_write: Callable[[str], bool]
    agent_id: str


class Outcome(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What a tool did: the text for the model, and the facts for the receipt."""

    content: str
    ok: bool = True
    read: tuple[str, ...] = ()
    changed: tuple[FileChange, ...] = ()
    before_sha256: str | None = None
    after_sha256: str | None = None
    command: str | None = None
    exit_code: int | None = None


class Tool(Protocol):
    @property
    def spec(self) -> ToolSpec: ...

    @property
    def effect(self) -> Effect: ...

    async def run(self, arguments: Mapping[str, Any], hands: Hands) -> Outcome:
        """Act. ToolFailure is for the model; any other exception is turned into one."""
        ...


class NewAgent(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The row of an agent at its birth."""

    run_id: str
    agent_id: str
    parent_agent_id: str | None
    path: str
    role: str
    contract: Contract


class Change(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One step of the journal: an event and, at its birth, the agent; both are written or none."""

    event: Event
    agent: NewAgent | None = None


class RunRow(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    id: str
    kind: str
    task: str
    status: str | None
    started_at: float
    finished_at: float | None
    agents: int
    head_seq: int
    head_hash: str


class AgentRow(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    run_id: str
    id: str
    parent_agent_id: str | None
    path: str
    role: str
    state: State
    context_json: str


class Memory(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One thing remembered. `kind` says whose it is: children's are `sub_agent_result`."""

    id: int
    kind: str
    text: str
    time: float
    run_id: str
    agent_id: str


class Vault(Protocol):
    """What is remembered across runs."""

    async def remember(self, *, kind: str, text: str, run_id: str, agent_id: str) -> int:
        """Keep `text`; answers its id."""
        ...

    async def recall(self, query: str, *, kind: str | None = None, limit: int = 5) -> list[Memory]:
        """The memories that fit `query` best; the latest for an empty one."""
        ...


class Store(Protocol):
    """Where journals live.

    `append` returns at once and never fails; `flush` waits until everything appended before it is
    durable, and raises the StoreError that has happened, if one has. Other processes may read.
    """

    def append(self, change: Change) -> None: ...

    async def flush(self) -> None: ...

    async def events(
        self, run_id: str, *, after: int = 0, limit: int = 10_000
    ) -> Sequence[Event]: ...

    async def runs(self, *, limit: int = 50) -> Sequence[RunRow]: ...

    async def run(self, run_id: str) -> RunRow:
        """The run of that id, or of that unique beginning of an id; else UnknownRun."""
        ...

    async def agents(self, run_id: str) -> Sequence[AgentRow]: ...

    async def aclose(self) -> None:
        """Make everything durable and let go of the file."""
        ...


Approve = Callable[[str, str, str], Awaitable[bool]]
"""Ask a person: (path, tool, arguments) -> may it run? ApprovalNeeded if nobody is there."""
