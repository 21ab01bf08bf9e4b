"""The SQLite store: WAL, one writer thread with group commit, and a connection for reading."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from retinue.domain.events import Event
from retinue.domain.messages import Usage
from retinue.domain.plan.forecast import Used
from retinue.errors import StoreError, UnknownRun
from retinue.ports.store import AgentRow, NewAgent, RunRow
from retinue.store.blobs import decompress
from retinue.store.database import BUSY_TIMEOUT_S, connect, store_error
from retinue.store.queries import queries
from retinue.store.rows import agent_of, blob_refs, decode_text, event_of, run_of, session_ids
from retinue.store.seals import Seal, define_own_runs, no_seal
from retinue.store.writer import Writer

T = TypeVar("T")


class SqliteStore:
    """A `Store` in one database file. Create and use it in one event loop."""

    def __init__(
        self,
        path: Path,
        *,
        write: bool = True,
        seal: Seal = no_seal,
        busy_timeout_s: float = BUSY_TIMEOUT_S,
    ) -> None:
        """Open the file; with `write`, create and migrate it where needed. Raises StoreError.

        `seal` seals new runs, and tells the user's own runs from others. `busy_timeout_s` is how
        long another process may hold the lock.
        """
        self._path = path
        self._busy_timeout_s = busy_timeout_s
        self._reader = connect(path, write=write, busy_timeout_s=busy_timeout_s)
        define_own_runs(self._reader, seal)
        self._reading = threading.Lock()
        self._writer = Writer(path, busy_timeout_s, seal) if write else None

    # Writing

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
        return StoreError(f"{self._path} was opened for reading only.")

    async def aclose(self) -> None:
        try:
            if self._writer is not None:
                await self._writer.aclose()
        finally:
            # The thread of a cancelled read may still be using the connection.
            with self._reading:
                self._reader.close()

    # Reading

    async def events(self, run_id: str, *, after: int = 0, limit: int = 10_000) -> Sequence[Event]:
        return await self._events("events_after", (run_id, after, limit))

    async def agent_events(self, run_id: str, agent_id: str) -> Sequence[Event]:
        return await self._events("events_of_agent", (run_id, agent_id))

    async def runs(self, *, limit: int = 50) -> Sequence[RunRow]:
        return [run_of(row) for row in await self._fetch("runs_latest", (limit,))]

    async def run(self, run_id: str) -> RunRow:
        # Ids are ASCII and not empty, and SQLite refuses strings that are not valid Unicode.
        possible = run_id.isascii() and run_id
        rows = (
            [run_of(row) for row in await self._fetch("runs_like", (run_id,))] if possible else []
        )
        if not rows:
            raise UnknownRun(f"No run {run_id!r} in {self._path}; `retinue runs` lists them.")
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

    async def _fetch(self, query: str, parameters: tuple[object, ...]) -> list[Any]:
        return await self._in_thread(lambda: self._rows(query, parameters))

    async def _events(self, query: str, parameters: tuple[object, ...]) -> list[Event]:
        return await self._in_thread(lambda: self._restore_blobs(query, parameters))

    def _restore_blobs(self, query: str, parameters: tuple[object, ...]) -> list[Event]:
        # One transaction: a cleanup must not remove blobs between the two queries.
        self._reader.execute("BEGIN")
        try:
            rows = self._rows(query, parameters)
            refs = (blob_refs(row[-1]) for row in rows if row[-1] is not None)
            digests = list({digest for found in refs for _, digest in found})
            stored = (
                self._rows("blobs_of", (msgspec.json.encode(digests).decode(),)) if digests else ()
            )
        finally:
            # After a disk error SQLite has already ended the transaction.
            if self._reader.in_transaction:
                self._reader.execute("COMMIT")
        blobs = dict.fromkeys(digests) | {
            digest: decompress(digest, data) for digest, data in stored
        }
        return [event_of(row, blobs) for row in rows]

    async def _in_thread(self, read: Callable[[], list[T]]) -> list[T]:
        return await asyncio.get_running_loop().run_in_executor(None, self._locked, read)

    def _locked(self, read: Callable[[], list[T]]) -> list[T]:
        with self._reading:
            try:
                return read()
            except (sqlite3.Error, UnicodeDecodeError) as error:
                raise store_error(error, self._path, self._busy_timeout_s) from error

    def _rows(self, query: str, parameters: tuple[object, ...]) -> list[Any]:
        try:
            return self._reader.execute(queries()[query], parameters).fetchall()
        except sqlite3.OperationalError as error:
            if "decode to UTF-8" not in str(error):
                raise
        # A text was tampered with. An audit must read on and report which.
        self._reader.text_factory = decode_text
        return self._reader.execute(queries()[query], parameters).fetchall()
