"""The part that stores in SQL databases share: queries by name, and their rows as values."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Coroutine, Sequence
from typing import Any

from retinue.domain.events import Event
from retinue.domain.messages import Usage
from retinue.domain.plan.forecast import Used
from retinue.errors import StoreError, UnknownRun
from retinue.ports.store import AgentRow, NewAgent, RunRow
from retinue.store.group_commit import GroupCommit
from retinue.store.rows import agent_of, run_of, session_ids


class SqlStore(ABC):
    """A `Store`: the queries are here; the connections, and how batches are written, are not."""

    _place: object
    """The database, as messages name it."""
    _writer: GroupCommit | None
    """None if the database was opened for reading only."""

    def append(self, event: Event, new_agent: NewAgent | None = None) -> None:
        if self._writer is None:
            raise self._opened_for_reading()
        self._writer.append(event, new_agent)

    # Returns the writer's coroutine instead of awaiting it: every turn of every child waits here.
    def flush(self) -> Coroutine[Any, Any, None]:
        if self._writer is None:
            raise self._opened_for_reading()
        return self._writer.flush()

    def _opened_for_reading(self) -> StoreError:
        return StoreError(f"{self._place} was opened for reading only.")

    @abstractmethod
    async def aclose(self) -> None: ...

    @abstractmethod
    async def _fetch(self, query: str, parameters: tuple[object, ...]) -> list[Any]:
        """The rows of a named query. Raises StoreError."""

    @abstractmethod
    async def _events(self, query: str, parameters: tuple[object, ...]) -> list[Event]:
        """The events of a named query with their blobs, read in one snapshot."""

    async def events(self, run_id: str, *, after: int = 0, limit: int = 10_000) -> Sequence[Event]:
        return await self._events("events_after", (run_id, after, limit))

    async def agent_events(self, run_id: str, agent_id: str) -> Sequence[Event]:
        return await self._events("events_of_agent", (run_id, agent_id))

    async def runs(self, *, limit: int = 50) -> Sequence[RunRow]:
        return [run_of(row) for row in await self._fetch("runs_latest", (limit,))]

    async def run(self, run_id: str) -> RunRow:
        # Ids are ASCII, and databases refuse NUL bytes and what is not valid Unicode.
        possible = run_id.isascii() and run_id.isprintable() and run_id
        rows = (
            [run_of(row) for row in await self._fetch("runs_like", (run_id,))] if possible else []
        )
        if not rows:
            raise UnknownRun(f"No run {run_id!r} in {self._place}; `retinue runs` lists them.")
        if len(rows) > 1 and rows[0].id != run_id:
            raise UnknownRun(f"{run_id!r} is the beginning of several run ids; type more of it.")
        return rows[0]

    async def session(self, run_id: str | None = None) -> Sequence[RunRow]:
        if run_id is None:
            row = next(map(run_of, await self._fetch("latest_session", ())), None)
            if row is None:
                raise UnknownRun("There is no session to continue yet; `retinue run` starts one.")
        else:
            row = await self.run(run_id)
        if row.session is None:
            raise UnknownRun(
                f"Run {row.id} does not belong to a session: a program led it (spawn, fan-out), not"
                " a model; `retinue runs` lists the runs that do."
            )
        found = await self._fetch("runs_of_session", (row.session,))
        rows = {columns[0]: run_of(columns) for columns in found}
        # The longest chain: a session that was continued twice has two.
        last = found[-1]
        return [rows[name] for name in (*session_ids(last), last[0]) if name in rows]

    async def agents(self, run_id: str) -> Sequence[AgentRow]:
        return [agent_of(row) for row in await self._fetch("agents_of", (run_id,))]

    async def usage(self, run_id: str) -> Usage:
        ((tokens_in, repeated, tokens_out, cost),) = await self._fetch("run_usage", (run_id,))
        return Usage(
            tokens_in=int(tokens_in),
            tokens_repeated=int(repeated),
            tokens_out=int(tokens_out),
            cost_microusd=int(cost),
        )

    async def cached(self, cache_key: str, *, limit: int = 3) -> Sequence[tuple[str, str]]:
        rows = await self._fetch("agents_cached", (cache_key, limit))
        return [(run_id, agent_id) for run_id, agent_id in rows]

    async def cache_keys(self) -> frozenset[str]:
        return frozenset(key for (key,) in await self._fetch("cache_keys", ()))

    async def history(self, role: str, *, limit: int = 12) -> Sequence[Used]:
        rows = await self._fetch("role_history", (role, limit))
        return [
            Used(
                tokens_in=int(tokens_in),
                tokens_repeated=int(tokens_repeated),
                tokens_out=int(tokens_out),
                duration_s=float(duration_s),
                generating_s=float(generating_s),
            )
            for tokens_in, tokens_repeated, tokens_out, duration_s, generating_s in rows
        ]
