"""Disk usage of a journal database, and the space that pruned runs leave."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
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
        with transaction(connection):
            ((trigger,),) = connection.execute(queries()["blobs_stay_trigger"]).fetchall()
            connection.execute("DROP TRIGGER blobs_stay")
            gone = connection.execute(queries()["delete_unused_blobs"]).rowcount
            connection.execute(trigger)
        return gone

    return _with_connection(path, work, write=True)


def compact_database(path: Path) -> None:
    """Return free pages to the file system. Writers wait meanwhile."""

    def work(connection: sqlite3.Connection) -> None:
        connection.execute("VACUUM")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    _with_connection(path, work, write=True)


def _with_connection(path: Path, work: Callable[[sqlite3.Connection], T], *, write: bool) -> T:
    with closing(connect(path, write=write)) as connection:
        try:
            return work(connection)
        except sqlite3.Error as error:
            raise store_error(error, path) from error
