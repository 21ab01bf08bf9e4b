"""Journals, reports and memories that outlive a process, and locks on the runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from retinue.domain.events import Event
from retinue.domain.lifecycle import State
from retinue.domain.messages import Usage
from retinue.domain.plan.forecast import Used


class NewAgent(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The row of a new agent."""

    run_id: str
    agent_id: str
    parent_agent_id: str | None
    step_idx: int
    path: str
    role: str
    context_json: str
    """The agent's contract, as canonical JSON."""
    cache_key: str | None = None
    """Hash of the task: an agent may use the result of an earlier one with the same key."""


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
    """How often the run was started or resumed."""
    session: str | None
    """Id of the first run of its session; None for a run that a program leads."""
    pruned: bool = False
    """Whether only the outcome is left of the journal."""
    sealed: bool = False
    """Whether this user has started the run in this project. Others are shown, and nothing else."""
    last_child: int = 0
    """The highest number of a child."""
    title: str = ""
    """Title of its session; "" before anyone has given one."""


class AgentRow(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    run_id: str
    id: str
    parent_agent_id: str | None
    path: str
    role: str
    state: State
    context_json: str


class MemoryEntry(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One memory. `kind` says who wrote it: children's are `sub_agent_result`."""

    id: int
    kind: str
    text: str
    time: float
    run_id: str
    agent_id: str


class MemoryStore(Protocol):
    """Memories that last across runs."""

    async def remember(self, *, kind: str, text: str, run_id: str, agent_id: str) -> int:
        """Keep `text` and return its id.

        Raises UsageError if the text is blank, or the kind is not 1 to 40 characters of a-z and _.
        """
        ...

    async def recall(
        self, query: str, *, kind: str | None = None, limit: int = 5
    ) -> list[MemoryEntry]:
        """The memories that match `query` best; the latest if the query is empty.

        Memories of runs that are not sealed are left out.
        """
        ...


class Reports(Protocol):
    """Report files, which people read."""

    def keep(self, path: str, text: str) -> None:
        """Write `text` to `path` in the project, in the background."""
        ...


class Store(Protocol):
    """Journals of runs.

    `append` returns at once and never fails. `flush` waits until everything appended before is
    durable, and raises a StoreError that occurred meanwhile. Other processes may read.

    A `run.pruned` event replaces all earlier events of its run, and its agents.
    """

    def append(self, event: Event, new_agent: NewAgent | None = None) -> None:
        """Add an event to its journal, and with it the row of a new agent: both or neither."""
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
        """The run of that id, or of that unique prefix of an id. Raises UnknownRun."""
        ...

    async def session(self, run_id: str | None = None) -> Sequence[RunRow]:
        """The runs of the session of a run, oldest first; without an id, of the latest session.

        The latest session is one whose last run is sealed, if there is any. As in `run`, a prefix
        of the id is enough. Raises UnknownRun if there is no such session.
        """
        ...

    async def agents(self, run_id: str) -> Sequence[AgentRow]: ...

    async def usage(self, run_id: str) -> Usage:
        """Tokens and cost of all agents of a run together."""
        ...

    async def cached(self, cache_key: str, *, limit: int = 3) -> Sequence[tuple[str, str]]:
        """(run id, agent id) of closed agents with that key, latest first, failed ones too.

        Agents of runs that are not sealed are left out.
        """
        ...

    async def history(self, role: str, *, limit: int = 12) -> Sequence[Used]:
        """Usage of the latest closed agents of a role, in runs that are sealed."""
        ...

    async def cache_keys(self) -> frozenset[str]:
        """All keys for which `cached` finds something."""
        ...

    async def aclose(self) -> None:
        """Make everything durable and close the file."""
        ...


class RunLock(Protocol):
    """Held by the process that works on a run. Other processes send messages to it."""

    def received(self) -> Sequence[str]:
        """The messages that arrived since the last call."""
        ...

    def release(self) -> None: ...


class RunLocks(Protocol):
    """The locks on runs, shared by all processes that use one journal."""

    def acquire(self, run_id: str) -> RunLock:
        """Lock a run until the lock is released or this process ends.

        RunError if a living process holds the lock. Where the file system has no locks, the result
        receives no messages, and the journal alone keeps a second process out.
        """
        ...

    def is_held(self, run_id: str) -> bool:
        """Does a living process hold the lock?"""
        ...

    def send(self, run_id: str, message: str) -> bool:
        """Send a line to the process that holds the lock; False if there is none."""
        ...
