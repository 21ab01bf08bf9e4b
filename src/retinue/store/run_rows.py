"""The rows of a run as they are stored, for copies in other databases.

SQLite and Postgres have the same columns. A row is copied as it is, so its event keeps its hash.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from retinue.domain.lifecycle import State, moves
from retinue.ports.store import RunRow

Row = tuple[Any, ...]

RUN_COLUMNS = (
    "id", "kind", "task", "status", "started_at", "finished_at", "epoch", "head_seq", "head_hash",
)  # fmt: skip
AGENT_COLUMNS = (
    "run_id", "id", "parent_agent_id", "step_idx", "path", "role", "context_json", "cache_key",
)  # fmt: skip
"""Columns that an agent is created with; the query `agent_rows` has its state behind them."""
EVENT_COLUMNS = (
    "seq", "run_id", "agent_id", "parent_agent_id", "attempt", "epoch", "time", "type", "summary",
    "payload", "hash", "version",
)  # fmt: skip
"""The query `event_rows` has the column `blobs` behind them."""


class RunRows(msgspec.Struct, frozen=True, kw_only=True):
    """The row of a run, and the rows of its agents, events and blobs."""

    run: Row
    agents: Sequence[Row]
    events: Sequence[Row]
    blobs: Sequence[Row]

    @property
    def run_id(self) -> str:
        return str(self.run[0])

    @property
    def outcome(self) -> tuple[str, float] | None:
        """Status and time of its end."""
        status, finished_at = self.run[3], self.run[5]
        return None if status is None else (status, finished_at)

    @property
    def head(self) -> tuple[int, int, str]:
        """Epoch, number of the last event, and its hash."""
        _, _, _, _, _, _, epoch, seq, digest = self.run
        return epoch, seq, digest


def agent_moves(agents: Sequence[Row], there: dict[str, str]) -> list[tuple[str, str]]:
    """The moves of the agents, as (id, state): from where they are `there` to where they are now.

    An agent is created first, and moved then, because the database refuses everything else.
    """
    return [
        (agent[1], str(state))
        for agent in agents
        for state in moves(State(there.get(agent[1], State.CREATED)), State(agent[-1]))
    ]


class RowStore(Protocol):
    """The tables of a store, for copies of runs. Every call is one transaction."""

    async def run_rows(self, run_id: str, *, after: int = 0) -> RunRows:
        """The rows of a run, with the events after a number."""
        ...

    async def add_run(self, rows: RunRows, known: RunRow | None) -> None:
        """Add a run, or what follows on the run as it is `known` here.

        Raises StoreError if the run has changed meanwhile.
        """
        ...

    async def memory_rows(self) -> list[Row]: ...

    async def add_memories(self, rows: Sequence[Row]) -> int:
        """Add the memories that are missing. Return how many."""
        ...

    async def title_rows(self) -> list[Row]: ...

    async def add_titles(self, rows: Sequence[Row]) -> int:
        """Give titles to the sessions that have none. Return how many."""
        ...


def missing(rows: Sequence[Row], there: Sequence[Row]) -> list[Row]:
    """The rows that are not there yet, each once."""
    known = set(map(tuple, there))
    return [row for row in dict.fromkeys(map(tuple, rows)) if row not in known]
