from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import msgspec
import pytest

import retinue
from retinue.config.environment import Environment
from retinue.domain.contract import decode_contract
from retinue.domain.events import TurnStarted
from retinue.domain.messages import Request
from retinue.errors import StoreError
from retinue.models.scripted.model import Step, say
from retinue.ports.store import Store
from retinue.runtime.core.clock import SystemClock
from retinue.runtime.history.follow import follow
from retinue.store import group_commit
from retinue.store.cleanup import delete_unused_blobs
from retinue.store.database import connect
from retinue.store.queries import migrations
from retinue.store.sqlite import SqliteStore
from tests.store.journal_writer import JournalWriter
from tests.store.store_contract import StoreContract


class TestSqliteStore(StoreContract):
    @asynccontextmanager
    async def opened(self, place: Path) -> AsyncIterator[Store]:
        store = SqliteStore(place / "retinue.db", seal=str)
        try:
            yield store
        finally:
            await store.aclose()

    async def delete_unused_blobs(self, place: Path) -> None:
        await asyncio.to_thread(delete_unused_blobs, place / "retinue.db")


def test_a_store_for_reading_writes_nothing(database: Path) -> None:
    before = database.read_bytes()
    asyncio.run(try_to_write(database))
    assert database.read_bytes() == before


async def try_to_write(database: Path) -> None:
    store = SqliteStore(database, write=False)
    with pytest.raises(StoreError) as caught:
        JournalWriter(store, "x2").begin()
    assert str(caught.value) == f"{database} was opened for reading only."
    with pytest.raises(StoreError):
        await store.flush()
    assert (await store.run("k3f9")).head_seq == 3
    await store.aclose()


async def test_events_are_written_without_a_flush(tmp_path: Path) -> None:
    path = tmp_path / "retinue.db"
    store = SqliteStore(path, seal=str)
    journal = JournalWriter(store, "k3f9")
    journal.begin()
    await store.flush()
    reader = SqliteStore(path, write=False)
    journal.note()
    journal.finish()
    # Ends when another connection has seen the end of the run, which nobody has flushed.
    seen = [
        event.seq async for event in follow(reader, SystemClock(), "k3f9", is_active=lambda _: True)
    ]
    assert seen == [1, 2, 3]
    await reader.aclose()
    await store.aclose()


async def test_refused_event_does_not_fail_the_next_flush(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "retinue.db")
    writer = JournalWriter(store, "k3f9")
    begun = writer.begin()
    broken = msgspec.structs.replace(begun, seq=2, payload=msgspec.Raw(b'"\xff"'))
    with pytest.raises(UnicodeDecodeError):
        store.append(broken)
    for seq in (2, 3):
        writer.note()
        await store.flush()
        assert [event.seq for event in await store.events("k3f9")][-1] == seq
    await store.aclose()


async def test_a_contract_is_on_disk_before_its_agent_does_anything(tmp_path: Path) -> None:
    seen: list[tuple[str, str]] = []

    def look(request: Request) -> Step:
        connection = sqlite3.connect(tmp_path / ".retinue" / "retinue.db")
        seen.extend(connection.execute("SELECT id, context_json FROM sub_agents ORDER BY id"))
        seen.extend(connection.execute("SELECT seq, type FROM events ORDER BY seq"))
        connection.close()
        return say("done")

    environment = Environment(variables={"HOME": f"{tmp_path}-home"})
    model = retinue.ScriptedModel([look])
    async with retinue.open(tmp_path, model=model, environment=environment, shell=False) as rt:
        await rt.spawn("researcher", "Count the herons.")
    (_, root), (agent_id, child), *events = seen
    assert agent_id == "a1"
    assert decode_contract(child).step.description == "Count the herons."
    assert decode_contract(root).parent.agent_id is None
    assert [kind for _, kind in events].count("agent.subagent_created") == 2


def test_a_commit_survives_a_power_cut(database: Path) -> None:
    with closing(connect(database, write=True)) as connection:
        assert connection.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL
        assert connection.execute("PRAGMA foreign_keys").fetchone() == (1,)


def test_it_is_a_wal_database_of_our_own(database: Path) -> None:
    connection = sqlite3.connect(database)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert connection.execute("PRAGMA application_id").fetchone() == (0x52455449,)
    assert connection.execute("PRAGMA user_version").fetchone() == (len(migrations()),)
    connection.close()


async def test_start_of_a_turn_is_written_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed process must not forget a request that may be billed."""
    monkeypatch.setattr(group_commit, "GROUP_COMMIT_S", 3600.0)
    path = tmp_path / "retinue.db"
    store = SqliteStore(path, seal=str)
    journal = JournalWriter(store, "k3f9")
    journal.begin()
    await store.flush()
    journal.record(TurnStarted(turn=1, of=2))
    reader = SqliteStore(path, write=False)
    async for event in follow(reader, SystemClock(), "k3f9", is_active=lambda _: True):
        if event.type == "turn.started":
            break
    await reader.aclose()
    await store.aclose()
