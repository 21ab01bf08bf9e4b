"""Titles, deletion of runs, and the space that a project takes in Postgres."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg

from retinue.store.export import export_rows
from retinue.store.postgres.address import Database
from retinue.store.postgres.database import connect, sql, store_error
from retinue.store.postgres.rows import PostgresRows


class PostgresMaintenance:
    """Work on a project's schema besides its journals. Each call has a connection of its own."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def size_bytes(self) -> int:
        async with self._connection() as connection:
            return int(await connection.fetchval(sql("database_size")))

    async def facts(self) -> tuple[str, int, int]:
        """The server and its version, the version of the tables, and the number of runs."""
        async with self._connection() as connection:
            row = await connection.fetchrow(sql("store_facts"))
            return f"PostgreSQL {row[0]}", row[1], row[2]

    async def run_shares(self) -> dict[str, float]:
        """Approximate share of the journals for each run."""
        async with self._connection() as connection:
            rows = await connection.fetch(sql("run_sizes"))
        total = sum(size for _, size in rows) or 1
        return {run_id: size / total for run_id, size in rows}

    async def delete_unused_blobs(self) -> None:
        async with self._connection("blobs.blobs_stay") as connection:
            await connection.execute(sql("delete_unused_blobs"))

    async def delete_runs(self, session: str, run_ids: Sequence[str]) -> None:
        """Delete these runs of a session, their journals, and the title. Their memories stay.

        No process may use the runs.
        """
        guards = ("events.events_append_only_delete", "events.events_pruned_stay")
        others = ("sub_agents.sub_agents_stay", "runs.runs_stay")
        async with self._connection(*guards, *others) as connection:
            for run_id in run_ids:
                for query in ("delete_events", "prune_agents", "delete_run"):
                    await connection.execute(sql(query), run_id)
            await connection.execute(sql("delete_title"), session)

    async def set_title(self, session: str, title: str, *, replace: bool = True) -> bool:
        """Set the title of a session; without `replace`, only if it has none. Unlike the journal,
        it can change. Return whether it is set.
        """
        query = sql("set_title" if replace else "set_missing_title")
        async with self._connection() as connection:
            return await connection.fetchval(query, session, title) is not None

    async def compact(self) -> None:
        """Do nothing: the server's autovacuum reuses the space."""

    async def export_run(self, run_id: str, target: Path) -> None:
        """Write a run to a new SQLite file. Rows are copied unchanged, tampered ones included."""
        rows = await PostgresRows(self._database).run_rows(run_id)
        await asyncio.to_thread(export_rows, rows, target)

    @asynccontextmanager
    async def _connection(self, *guards: str) -> AsyncIterator[asyncpg.Connection]:
        """A connection in a transaction, without these triggers (TABLE.TRIGGER) until its end."""
        connection = await connect(self._database, write=True)
        try:
            async with connection.transaction():
                for guard in guards:
                    table, _, name = guard.partition(".")
                    await connection.execute(f"ALTER TABLE {table} DISABLE TRIGGER {name}")
                yield connection
                for guard in guards:
                    table, _, name = guard.partition(".")
                    await connection.execute(f"ALTER TABLE {table} ENABLE TRIGGER {name}")
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            raise store_error(error, self._database) from error
        finally:
            connection.terminate()
