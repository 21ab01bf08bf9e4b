from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from retinue.runtime.history.audit import audit
from retinue.runtime.history.pruning import prune_journal
from retinue.store.cleanup import compact_database, database_bytes, delete_unused_blobs, run_shares
from retinue.store.sqlite import SqliteStore
from retinue.testing.clock import FakeClock
from tests.store.journal_writer import JournalWriter

SHARED = "The heron stands in the water and waits.\n" * 100


def count(path: Path, table: str) -> int:
    with closing(sqlite3.connect(path)) as connection:
        ((number,),) = connection.execute(f"SELECT count(*) FROM {table}").fetchall()
        return int(number)


async def test_blobs_of_other_runs_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "retinue.db"
    store = SqliteStore(path)
    for run_id, own in (("k3f9", "mine "), ("x2", "theirs ")):
        writer = JournalWriter(store, run_id)
        writer.begin()
        writer.create_agent()
        writer.note(SHARED)
        writer.note(own * 300)
    await store.flush()
    assert count(path, "blobs") == 3
    shares = run_shares(path)
    assert shares.keys() == {"k3f9", "x2"}
    assert sum(shares.values()) == pytest.approx(1)
    await prune_journal(store, FakeClock(), "k3f9")
    assert delete_unused_blobs(path) == 1
    assert count(path, "blobs") == 2
    assert (await audit(store, "x2")).pruned == 0
    await store.aclose()
    # The trigger is in place again.
    with (
        closing(sqlite3.connect(path)) as connection,
        pytest.raises(sqlite3.IntegrityError, match="a blob goes when no event needs it"),
    ):
        connection.execute("DELETE FROM blobs")


async def test_compaction_shrinks_the_file(tmp_path: Path) -> None:
    path = tmp_path / "retinue.db"
    store = SqliteStore(path)
    writer = JournalWriter(store, "k3f9")
    writer.begin()
    writer.create_agent()
    for number in range(2_000):
        writer.note(f"{number} " * 100)
    await store.flush()
    await prune_journal(store, FakeClock(), "k3f9")
    await store.aclose()
    before = database_bytes(path)
    compact_database(path)
    assert database_bytes(path) < before / 4
    store = SqliteStore(path, write=False)
    assert (await audit(store, "k3f9")).pruned == 2_002
    await store.aclose()
