"""What journals take on the disk, and giving back what nobody needs."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from retinue.store.database import connect, store_error
from retinue.store.queries import queries

T = TypeVar("T")


def size_of(path: Path) -> int:
    """The bytes of a database, with what is still to be moved into it."""
    files = (path, path.with_name(path.name + "-wal"))
    return sum(file.stat().st_size for file in files if file.exists())


def shares(path: Path) -> dict[str, float]:
    """Which part of a database each run takes, roughly; of what runs share, each takes all."""
    rows = _with(path, lambda it: it.execute(queries()["run_sizes"]).fetchall(), write=False)
    total = sum(size for _, size in rows) or 1
    return {run_id: size / total for run_id, size in rows}


def sweep_blobs(path: Path) -> int:
    """Delete the blobs that no event needs; how many there were."""

    def work(connection: sqlite3.Connection) -> int:
        connection.execute("BEGIN IMMEDIATE")
        try:
            ((trigger,),) = connection.execute(queries()["blobs_stay_trigger"]).fetchall()
            connection.execute("DROP TRIGGER blobs_stay")
            gone = connection.execute(queries()["delete_unused_blobs"]).rowcount
            connection.execute(trigger)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        return gone

    return _with(path, work, write=True)


def shrink(path: Path) -> None:
    """Give the room that was freed back to the disk. Whoever wants to write waits meanwhile."""

    def work(connection: sqlite3.Connection) -> None:
        connection.execute("VACUUM")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    _with(path, work, write=True)


def _with(path: Path, work: Callable[[sqlite3.Connection], T], *, write: bool) -> T:
    with closing(connect(path, write=write)) as connection:
        try:
            return work(connection)
        except sqlite3.Error as error:
            raise store_error(error, path) from error
