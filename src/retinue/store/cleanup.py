"""Disk usage of a journal database, the space that pruned runs leave, and deletion of sessions."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeVar

from retinue.store.database import connect, store_error, transaction
from retinue.store.queries import queries

T = TypeVar("T")


def database_bytes(path: Path) -> int:
    """Size of a database with its write-ahead log."""
    files = (path, path.with_name(path.name + "-wal"))
    return sum(file.stat().st_size for file in files if file.exists())


def run_shares(path: Path) -> dict[str, float]:
    """Approximate share of the database for each run. Shared blobs count for every run."""
    rows = _with_connection(
        path, lambda it: it.execute(queries()["run_sizes"]).fetchall(), write=False
    )
    total = sum(size for _, size in rows) or 1
    return {run_id: size / total for run_id, size in rows}


def delete_unused_blobs(path: Path) -> int:
    """Delete the blobs that no event refers to. Return their number."""

    def work(connection: sqlite3.Connection) -> int:
        with transaction(connection), _without_triggers(connection, "blobs_stay"):
            return connection.execute(queries()["delete_unused_blobs"]).rowcount

    return _with_connection(path, work, write=True)


def delete_runs(path: Path, session: str, run_ids: Sequence[str]) -> None:
    """Delete these runs of a session, their journals, and the title. Their memories stay.

    No process may use the runs.
    """

    def work(connection: sqlite3.Connection) -> None:
        triggers = ("events_append_only_delete", "sub_agents_stay", "runs_stay")
        with transaction(connection), _without_triggers(connection, *triggers):
            for run_id in run_ids:
                for query in ("delete_events", "prune_agents", "delete_run", "delete_seal"):
                    connection.execute(queries()[query], (run_id,))
            connection.execute(queries()["delete_title"], (session,))

    _with_connection(path, work, write=True)


def set_title(path: Path, session: str, title: str, *, replace: bool = True) -> bool:
    """Set the title of a session; without `replace`, only if it has none. Unlike the journal, it
    can change. Return whether it is set.
    """
    query = queries()["set_title" if replace else "set_missing_title"]

    def work(connection: sqlite3.Connection) -> bool:
        return connection.execute(query, (session, title)).rowcount > 0

    return _with_connection(path, work, write=True)


def compact_database(path: Path) -> None:
    """Return free pages to the file system. Writers wait meanwhile."""

    def work(connection: sqlite3.Connection) -> None:
        connection.execute("VACUUM")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    _with_connection(path, work, write=True)


@contextmanager
def _without_triggers(connection: sqlite3.Connection, *names: str) -> Iterator[None]:
    """Drop triggers that refuse a deletion, for this block inside a transaction."""
    found = [connection.execute(queries()["trigger_sql"], (name,)).fetchone()[0] for name in names]
    for name in names:
        connection.execute(f"DROP TRIGGER {name}")
    yield
    for sql in found:
        connection.execute(sql)


def _with_connection(path: Path, work: Callable[[sqlite3.Connection], T], *, write: bool) -> T:
    with closing(connect(path, write=write)) as connection:
        try:
            return work(connection)
        except sqlite3.Error as error:
            raise store_error(error, path) from error


class SqliteMaintenance:
    """The functions above for one file, in threads: `PostgresMaintenance` has the same methods."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def size_bytes(self) -> int:
        return database_bytes(self._path)

    async def facts(self) -> tuple[str, int, int]:
        """The database and its version, the version of the tables, and the number of runs."""

        def work(connection: sqlite3.Connection) -> tuple[str, int, int]:
            version, schema, runs = connection.execute(queries()["store_facts"]).fetchone()
            return f"SQLite {version}", schema, runs

        return await asyncio.to_thread(_with_connection, self._path, work, write=False)

    async def run_shares(self) -> dict[str, float]:
        return await asyncio.to_thread(run_shares, self._path)

    async def delete_unused_blobs(self) -> None:
        await asyncio.to_thread(delete_unused_blobs, self._path)

    async def delete_runs(self, session: str, run_ids: Sequence[str]) -> None:
        await asyncio.to_thread(delete_runs, self._path, session, run_ids)

    async def set_title(self, session: str, title: str, *, replace: bool = True) -> bool:
        return await asyncio.to_thread(set_title, self._path, session, title, replace=replace)

    async def compact(self) -> None:
        await asyncio.to_thread(compact_database, self._path)
