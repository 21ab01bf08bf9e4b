"""The tables of a Postgres schema, for copies of runs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import asyncpg

from retinue.domain.chain import GENESIS
from retinue.errors import StoreError
from retinue.ports.store import RunRow
from retinue.store.memory import storable
from retinue.store.postgres.address import Database
from retinue.store.postgres.database import connect, sql, store_error
from retinue.store.postgres.texts import escape, unescape_column
from retinue.store.run_rows import AGENT_COLUMNS, EVENT_COLUMNS, Row, RunRows, agent_moves, missing

_TASK, _PATH, _SUMMARY = 2, 4, 8  # columns that may have NUL bytes
_MEMORY_COLUMNS = ("kind", "text", "time", "run_id", "agent_id")


class PostgresRows:
    """A `RowStore` in the schema of one project, with a connection for each call."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def run_rows(self, run_id: str, *, after: int = 0) -> RunRows:
        async with self._connection(isolation="repeatable_read") as it:
            (run,) = await it.fetch(sql("run_row"), run_id)
            return RunRows(
                run=unescape_column(run, _TASK),
                agents=[
                    unescape_column(row, _PATH) for row in await it.fetch(sql("agent_rows"), run_id)
                ],
                events=[
                    unescape_column(row, _SUMMARY)
                    for row in await it.fetch(sql("event_rows"), run_id, after)
                ],
                blobs=[tuple(row) for row in await it.fetch(sql("blob_rows"), run_id, after)],
            )

    async def add_run(self, rows: RunRows, known: RunRow | None) -> None:
        async with self._connection() as it:
            await self._add_run(it, rows, known)

    async def _add_run(self, it: asyncpg.Connection, rows: RunRows, known: RunRow | None) -> None:
        run_id, (epoch, head_seq, head_hash) = rows.run_id, rows.head
        _, kind, task, _, started_at, *_ = rows.run
        head = 0 if known is None else known.head_seq
        if known is None:
            values = (run_id, kind, escape(task), started_at, epoch, GENESIS)
            await it.execute(sql("insert_run"), *values)
        elif epoch != known.epoch:
            _check(run_id, await it.execute(sql("take_over"), epoch, run_id, known.epoch, head))
        states = dict(map(tuple, await it.fetch(sql("agent_states"), run_id)))
        agents = [_escaped(row[:-1], _PATH) for row in rows.agents if row[1] not in states]
        await it.copy_records_to_table("sub_agents", records=agents, columns=AGENT_COLUMNS)
        # A cleanup must not delete blobs that are here already before the events need them.
        await it.execute("LOCK TABLE blobs IN ROW EXCLUSIVE MODE")
        digests, data = [row[0] for row in rows.blobs], [row[1] for row in rows.blobs]
        await it.execute(sql("insert_blobs"), digests, data)
        events = [_escaped(row, _SUMMARY) for row in rows.events]
        await it.copy_records_to_table("events", records=events, columns=(*EVENT_COLUMNS, "blobs"))
        moved = agent_moves(rows.agents, states)
        ids, to = [id for id, _ in moved], [state for _, state in moved]
        await it.execute(sql("move_agents"), [run_id] * len(moved), ids, to)
        if rows.outcome is not None and (known is None or known.status is None):
            await it.execute(sql("finish_run"), *rows.outcome, run_id)
        end = (head_seq, head_hash, run_id, epoch, head)
        _check(run_id, await it.execute(sql("advance_head"), *end))

    async def memory_rows(self) -> list[Row]:
        async with self._connection() as it:
            return await _fetch(it, "memory_rows")

    async def add_memories(self, rows: Sequence[Row]) -> int:
        async with self._connection() as it:
            found = missing(rows, await _fetch(it, "memory_rows"))
            await it.copy_records_to_table("memories", records=found, columns=_MEMORY_COLUMNS)
            return len(found)

    async def title_rows(self) -> list[Row]:
        async with self._connection() as it:
            return await _fetch(it, "title_rows")

    async def add_titles(self, rows: Sequence[Row]) -> int:
        async with self._connection() as it:
            added = [
                await it.fetchval(sql("set_missing_title"), session, storable(title))
                for session, title in rows
            ]
            return sum(title is not None for title in added)

    @asynccontextmanager
    async def _connection(
        self, isolation: str = "read_committed"
    ) -> AsyncIterator[asyncpg.Connection]:
        """A connection in a transaction."""
        connection = await connect(self._database, write=True)
        try:
            async with connection.transaction(isolation=isolation):
                yield connection
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            raise store_error(error, self._database) from error
        finally:
            connection.terminate()


async def _fetch(connection: asyncpg.Connection, query: str) -> list[Row]:
    return [tuple(row) for row in await connection.fetch(sql(query))]


def _escaped(row: Row, column: int) -> Row:
    return (*row[:column], escape(str(row[column])), *row[column + 1 :])


def _check(run_id: str, changed: str) -> None:
    if changed != "UPDATE 1":
        raise StoreError(f"Run {run_id} was changed while it was copied; copy again.")
