"""The tables of a SQLite file, for copies of runs."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from retinue.domain.chain import GENESIS
from retinue.errors import StoreError
from retinue.ports.store import RunRow
from retinue.store.database import connect, store_error, transaction
from retinue.store.queries import queries, with_rows
from retinue.store.run_rows import AGENT_COLUMNS, EVENT_COLUMNS, Row, RunRows, agent_moves, missing
from retinue.store.seals import Seal, define_own_runs, insert_seal

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]


class SqliteRows:
    """A `RowStore` in one file, with a connection and a thread for each call.

    `seal` seals the runs that are added, and those of the memories that are.
    """

    def __init__(self, path: Path, seal: Seal) -> None:
        self._path = path
        self._seal = seal

    async def run_rows(self, run_id: str, *, after: int = 0) -> RunRows:
        def work(connection: sqlite3.Connection) -> RunRows:
            def rows(query: str, *parameters: object) -> list[Row]:
                return connection.execute(queries()[query], parameters).fetchall()

            (run,) = rows("run_row", run_id)
            return RunRows(
                run=run,
                agents=rows("agent_rows", run_id),
                events=rows("event_rows", run_id, after),
                blobs=rows("blob_rows", run_id, after),
            )

        return await self._in_transaction(work)

    async def add_run(self, rows: RunRows, known: RunRow | None) -> None:
        await self._in_transaction(lambda it: self._add_run(it, rows, known))

    def _add_run(self, connection: sqlite3.Connection, rows: RunRows, known: RunRow | None) -> None:
        run_id, (epoch, head_seq, head_hash) = rows.run_id, rows.head

        def change(query: str, *values: object) -> int:
            return connection.execute(queries()[query], values).rowcount

        _, kind, task, _, started_at, *_ = rows.run
        head = 0 if known is None else known.head_seq
        if known is None:
            change("insert_run", run_id, kind, task, started_at, epoch, GENESIS)
            insert_seal(connection, run_id, self._seal)
        elif epoch != known.epoch:
            _check(run_id, change("take_over", epoch, run_id, known.epoch, head))
        states = dict(connection.execute(queries()["agent_states"], (run_id,)).fetchall())
        new = [agent[:-1] for agent in rows.agents if agent[1] not in states]
        connection.executemany(with_rows("insert_agents", len(AGENT_COLUMNS), 1), new)
        _insert_blobs(connection, rows.blobs)
        columns = len(EVENT_COLUMNS) + 1
        connection.executemany(with_rows("insert_events_with_blobs", columns, 1), rows.events)
        moved = [(state, run_id, id) for id, state in agent_moves(rows.agents, states)]
        connection.executemany(queries()["move_agent"], moved)
        if rows.outcome is not None and (known is None or known.status is None):
            change("finish_run", *rows.outcome, run_id)
        _check(run_id, change("advance_head", head_seq, head_hash, run_id, epoch, head))

    async def memory_rows(self) -> list[Row]:
        return await self._in_transaction(_memories)

    async def add_memories(self, rows: Sequence[Row]) -> int:
        def work(connection: sqlite3.Connection) -> int:
            found = missing(rows, _memories(connection))
            connection.executemany(queries()["insert_memory"], found)
            # The run of a memory may be gone. One that is here and not sealed stays as it is.
            for run_id in {row[3] for row in found}:
                if not connection.execute(queries()["run_row"], (run_id,)).fetchall():
                    insert_seal(connection, run_id, self._seal)
            return len(found)

        return await self._in_transaction(work)

    async def title_rows(self) -> list[Row]:
        return await self._in_transaction(lambda it: it.execute(queries()["title_rows"]).fetchall())

    async def add_titles(self, rows: Sequence[Row]) -> int:
        return await self._in_transaction(
            lambda it: it.executemany(queries()["set_missing_title"], rows).rowcount
        )

    async def _in_transaction(self, work: Work[T]) -> T:
        return await asyncio.to_thread(self._call, work)

    def _call(self, work: Work[T]) -> T:
        with closing(connect(self._path, write=True)) as connection:
            try:
                define_own_runs(connection, self._seal)
                with transaction(connection):
                    return work(connection)
            except sqlite3.Error as error:
                raise store_error(error, self._path) from error


def _memories(connection: sqlite3.Connection) -> list[Any]:
    return connection.execute(queries()["memory_rows"]).fetchall()


def _insert_blobs(connection: sqlite3.Connection, rows: Sequence[Row]) -> None:
    wanted = msgspec.json.encode([digest for digest, _ in rows]).decode()
    there = {digest for (digest,) in connection.execute(queries()["existing_blobs"], (wanted,))}
    new = [row for row in rows if row[0] not in there]
    connection.executemany(with_rows("insert_blobs", 2, 1), new)


def _check(run_id: str, changed: int) -> None:
    if changed != 1:
        raise StoreError(f"Run {run_id} was changed while it was copied; copy again.")
