"""Journals, reports and memories that outlive a process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from retinue.domain.events import Event
from retinue.domain.lifecycle import State
from retinue.domain.plan.forecast import Used


class NewAgent(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The row of an agent at its birth."""

    run_id: str
    agent_id: str
    parent_agent_id: str | None
    step_idx: int
    path: str
    role: str
    context_json: str
    """Its contract, in the one way there is to write it."""
    cache_key: str | None = None
    """What it was asked, as one key: agents with the same one can stand in for each other."""


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
    epoch: int
    """How often it was begun or resumed."""
    session: str | None
    """The id of the first run of its session; None for a run that a program leads."""
    pruned: bool = False
    """Whether only its outcome is left of its journal."""


class AgentRow(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    run_id: str
    id: str
    parent_agent_id: str | None
    path: str
    role: str
    state: State
    context_json: str


class MemoryEntry(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One thing remembered. `kind` says whose it is: children's are `sub_agent_result`."""

    id: int
    kind: str
    text: str
    time: float
    run_id: str
    agent_id: str


class MemoryStore(Protocol):
    """What is remembered across runs."""

    async def remember(self, *, kind: str, text: str, run_id: str, agent_id: str) -> int:
        """Keep `text`; answers its id. UsageError for a kind or a text that cannot be kept.

        A kind is 1 to 40 characters of a-z and _, and a text has something in it.
        """
        ...

    async def recall(
        self, query: str, *, kind: str | None = None, limit: int = 5
    ) -> list[MemoryEntry]:
        """The memories that fit `query` best; the latest for an empty one."""
        ...


class Reports(Protocol):
    """Where the reports of steps are written for people to read."""

    def keep(self, path: str, text: str) -> None:
        """Write `text` soon, to `path` in the project."""
        ...

    async def drained(self) -> None:
        """Return when everything kept is written."""
        ...


class Store(Protocol):
    """Where journals live.

    `append` returns at once and never fails; `flush` waits until everything appended before it is
    durable, and raises the StoreError that has happened, if one has. Other processes may read.

    `run.pruned` takes the place of all events of its run before it, and of its agents.
    """

    def append(self, event: Event, new_agent: NewAgent | None = None) -> None:
        """Add an event to its journal and, at its birth, the agent; both are written or none."""
        ...

    async def flush(self) -> None: ...

    async def events(
        self, run_id: str, *, after: int = 0, limit: int = 10_000
    ) -> Sequence[Event]: ...

    async def agent_events(self, run_id: str, agent_id: str) -> Sequence[Event]:
        """The events of one agent, in order."""
        ...

    async def runs(self, *, limit: int = 50) -> Sequence[RunRow]: ...

    async def run(self, run_id: str) -> RunRow:
        """The run of that id, or of that unique beginning of an id; else UnknownRun."""
        ...

    async def session(self, run_id: str | None = None) -> Sequence[RunRow]:
        """The runs of the session that a run is part of, oldest first; of the latest session.

        As in `run`, a beginning of the id is enough. UnknownRun if there is no such session.
        """
        ...

    async def agents(self, run_id: str) -> Sequence[AgentRow]: ...

    async def cached(self, cache_key: str, *, limit: int = 3) -> Sequence[tuple[str, str]]:
        """(run id, agent id) of closed agents of that key, latest first; how is in their events."""
        ...

    async def history(self, role: str, *, limit: int = 12) -> Sequence[Used]:
        """What the latest closed agents of a role have used."""
        ...

    async def cache_keys(self) -> frozenset[str]:
        """The keys there are: those that are worth a `cached`."""
        ...

    async def aclose(self) -> None:
        """Make everything durable and let go of the file."""
        ...
