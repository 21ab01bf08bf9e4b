"""A disk that fails at one call, whichever it is: a clear error or the result, and a whole journal.

What was acknowledged is there afterwards, the chain holds, and the file can be written again.
"""

from __future__ import annotations

import asyncio
import re
import sqlite3
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import pytest

from retinue.errors import StoreError, UnknownRun
from retinue.runtime.history.audit import audit
from retinue.runtime.history.pruning import prune_journal
from retinue.store.cleanup import compact_database, delete_unused_blobs
from retinue.store.memory import SqliteMemoryStore
from retinue.store.sqlite import SqliteStore
from retinue.testing.clock import FakeClock
from tests.store.failing_disk import Disk, faulty, reachable
from tests.store.journal_writer import JournalWriter

pytestmark = pytest.mark.skipif(not reachable(), reason="sqlite3 is linked in a way of its own")

LARGE = "The heron stands in the water and waits.\n" * 100
MESSAGES = [
    r"The disk of PATH fails or is full \(disk I/O error\)\.",
    r"No room left on the disk of PATH; free some and resume the run\.",
    r"PATH cannot be opened; check that its folder can be written\.",
]
SAMPLED = 31  # A prime, so that it meets all ways to fail.
PARTS = 12


class Seen(NamedTuple):
    """What somebody was told: the numbers of events that are safe, and the errors."""

    acknowledged: dict[str, int]
    errors: list[str]


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path)
    try:
        yield store
    finally:
        await store.aclose()


async def work(path: Path, seen: Seen) -> None:
    """Make a database, write to it, read from it, come back to it, and clean it."""

    async def note(writer: JournalWriter, store: SqliteStore, text: str) -> None:
        event = writer.note(text)
        await store.flush()
        seen.acknowledged[writer.run_id] = event.seq

    async with opened(path) as store:
        one, two = JournalWriter(store, "one"), JournalWriter(store, "two")
        for writer in (one, two):
            writer.begin()
            writer.create_agent()
        for text in ("short", LARGE, "short again"):
            await note(one, store, text)
            await note(two, store, text * 3)
        assert len(await store.events("one")) == 5
    async with opened(path) as store:
        assert [len(await store.events(run_id)) for run_id in ("one", "two")] == [5, 5]
        await prune_journal(store, FakeClock(), "one")
        seen.acknowledged["one"] = 6
    delete_unused_blobs(path)
    compact_database(path)
    memory_store = SqliteMemoryStore(path, FakeClock(), seal=str)
    try:
        await memory_store.remember(kind="note", text="heron", run_id="one", agent_id="a0")
    finally:
        await memory_store.aclose()


async def looked(path: Path, seen: Seen) -> None:
    """On a disk that is well again."""
    store = SqliteStore(path)
    for run_id, acknowledged in seen.acknowledged.items():
        found, row = await audit(store, run_id), await store.run(run_id)
        assert row.head_seq >= acknowledged, run_id
        assert found.events == (1 if row.pruned else row.head_seq)
    for run_id in {"one", "two"} - seen.acknowledged.keys():
        with suppress(UnknownRun):
            await audit(store, run_id)
    JournalWriter(store, "after").begin()
    await store.aclose()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def attempt(directory: Path, disk: Disk) -> Seen:
    """Work on that disk, and then look on one that is well. Any error but a StoreError is a bug."""
    seen = Seen({}, [])
    with tempfile.TemporaryDirectory(dir=directory) as folder:
        path = Path(folder, "retinue.db")
        with faulty(disk):
            try:
                asyncio.run(work(path, seen))
            except StoreError as error:
                seen.errors.append(str(error).replace(str(path), "PATH"))
        asyncio.run(looked(path, seen))
    return seen


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The calls of a disk on which all goes well."""
    disk = Disk(None, "error")
    seen = attempt(tmp_path_factory.mktemp("well"), disk)
    assert seen == ({"one": 6, "two": 5}, [])
    return disk.calls


def test_it_is_all_calls_that_can_fail(calls: list[str]) -> None:
    assert set(calls) == {"open", "read", "write", "sync", "truncate", "delete", "index"}
    assert calls.count("write") > 100


def positions(calls: list[str]) -> Iterator[tuple[int, str, bool]]:
    """Each call with each way to fail that it has, the last of which is for good."""
    for number, call in enumerate(calls):
        kinds = ("error", "full", "short") if call == "write" else ("error",)
        yield from ((number, kind, False) for kind in kinds)
        yield number, "error", True


def sweep(directory: Path, calls: list[str], *, first: int, step: int) -> None:
    told: set[str] = set()
    for number, kind, dies in islice(positions(calls), first, None, step):
        disk = Disk(number, kind, dies=dies)
        seen = attempt(directory, disk)
        # Where it is told, it is told in words; where not, everything is there.
        for error in seen.errors:
            assert any(re.fullmatch(message, error) for message in MESSAGES), (number, kind, error)
            told.add(error)
        if not seen.errors:
            assert seen.acknowledged == {"one": 6, "two": 5}, (number, kind, disk.failed)
    assert len(told) >= 2


def test_a_disk_that_fails_somewhere(tmp_path: Path, calls: list[str]) -> None:
    sweep(tmp_path, calls, first=0, step=SAMPLED)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(PARTS))
def test_a_disk_that_fails_anywhere(tmp_path: Path, calls: list[str], first: int) -> None:
    sweep(tmp_path, calls, first=first, step=PARTS)
