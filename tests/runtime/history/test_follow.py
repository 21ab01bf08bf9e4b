from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest

from retinue.errors import UnknownRun
from retinue.runtime.history.follow import POLL_S, follow
from retinue.store.sqlite import SqliteStore
from retinue.testing.clock import FakeClock
from tests.store.journal_writer import JournalWriter


def always(run_id: str) -> bool:
    return True


@pytest.fixture
async def journal(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(tmp_path / "retinue.db")
    yield store
    await store.aclose()


async def test_follow_reads_to_the_end(journal: SqliteStore) -> None:
    writer, clock = JournalWriter(journal, "k3f9"), FakeClock()
    written = [writer.begin(), writer.note()]
    await journal.flush()
    assert [e async for e in follow(journal, clock, "k3")] == written
    assert clock.sleeps == []


async def test_unknown_run_is_an_error(journal: SqliteStore) -> None:
    with pytest.raises(UnknownRun):
        await anext(follow(journal, FakeClock(), "k3f9", is_active=always))


async def test_finished_run_ends_at_once(journal: SqliteStore) -> None:
    writer, clock = JournalWriter(journal, "k3f9"), FakeClock()
    written = [writer.begin(), writer.finish()]
    await journal.flush()
    assert [e async for e in follow(journal, clock, "k3f9", is_active=always)] == written
    assert clock.sleeps == []


async def test_follow_reads_several_pages(journal: SqliteStore) -> None:
    writer = JournalWriter(journal, "k3f9")
    writer.begin()
    for _ in range(10_001):
        writer.note()
    await journal.flush()
    seqs = [e.seq async for e in follow(journal, FakeClock(), "k3f9")]
    assert seqs == list(range(1, 10_003))


async def test_follow_waits_for_new_events(journal: SqliteStore) -> None:
    writer, clock = JournalWriter(journal, "k3f9"), FakeClock()
    written = [writer.begin()]
    await journal.flush()

    async def read() -> list[int]:
        return [e.seq async for e in follow(journal, clock, "k3f9", is_active=always)]

    async with asyncio.TaskGroup() as group:
        reading = group.create_task(read())
        for count in (1, 2, 3):
            await clock.slept(count)
            written += [writer.note(), writer.note()]
            await journal.flush()
            clock.advance(POLL_S)
        await clock.slept(4)
        written.append(writer.finish())
        await journal.flush()
        clock.advance(POLL_S)
    assert reading.result() == [event.seq for event in written]
    assert clock.sleeps == [POLL_S] * 4


async def test_a_reader_may_stop_early(journal: SqliteStore) -> None:
    writer = JournalWriter(journal, "k3f9")
    writer.begin()
    writer.note()
    await journal.flush()
    async with aclosing(follow(journal, FakeClock(), "k3f9", is_active=always)) as events:
        async for event in events:
            assert event.seq == 1
            break


async def test_follow_ends_when_no_process_writes(journal: SqliteStore) -> None:
    writer, clock, asked = JournalWriter(journal, "k3f9"), FakeClock(), []
    writer.begin()
    await journal.flush()

    def for_a_while(run_id: str) -> bool:
        asked.append(run_id)
        return len(asked) < 2

    async def read() -> list[int]:
        return [e.seq async for e in follow(journal, clock, "k3", is_active=for_a_while)]

    async with asyncio.TaskGroup() as group:
        reading = group.create_task(read())
        await clock.slept()
        writer.note()
        await journal.flush()
        clock.advance(POLL_S)
    assert asked == ["k3f9"] * 2
    assert reading.result() == [1, 2]
