"""A database that an earlier version has written, opened by this one."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from retinue.domain.chain import verify
from retinue.domain.events import AgentStarted
from retinue.domain.lifecycle import State
from retinue.store.database import APPLICATION_ID, statements
from retinue.store.memory import SqliteMemoryStore
from retinue.store.queries import migrations, script
from retinue.store.seals import seal_all
from retinue.store.sqlite import SqliteStore
from retinue.testing.clock import FakeClock
from tests.store.journal_writer import JournalWriter

# The columns that every version has.
RUN = "id, kind, task, started_at, epoch, head_hash"
AGENT = "run_id, id, parent_agent_id, step_idx, path, role, context_json"
EVENT = (
    "run_id, seq, agent_id, parent_agent_id, attempt, epoch, time, type, version, summary,"
    " payload, hash"
)


def make(path: Path, version: int, source: Path) -> None:
    """A file as that version would have written it, with the journals that are in `source`."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for script in migrations()[:version]:
            for statement in statements(script):
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {version}")
        connection.execute("ATTACH ? AS source", (str(source),))
        for table, columns in (("runs", RUN), ("sub_agents", AGENT), ("events", EVENT)):
            connection.execute(
                f"INSERT INTO {table} ({columns}) SELECT {columns} FROM source.{table}"
            )
        connection.execute("UPDATE sub_agents SET state = 'running'")
        connection.execute(
            "UPDATE runs SET (head_seq, head_hash) ="
            " (SELECT head_seq, head_hash FROM source.runs AS old WHERE old.id = runs.id)"
        )


def schema(path: Path) -> list[tuple[str, str]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall()


@pytest.fixture
async def newest(tmp_path: Path) -> Path:
    path = tmp_path / "newest.db"
    store = SqliteStore(path)
    writer = JournalWriter(store, "k3f9")
    writer.begin()
    writer.create_agent()
    writer.record(AgentStarted(sub_agent_id="a0"))
    writer.note()
    await store.aclose()
    return path


@pytest.mark.parametrize("version", range(1, len(migrations())))
async def test_an_older_file_is_brought_up_to_date_with_all_that_is_in_it(
    tmp_path: Path, newest: Path, version: int
) -> None:
    path = tmp_path / "older.db"
    make(path, version, newest)
    store, memory_store = SqliteStore(path), SqliteMemoryStore(path, FakeClock(), seal=str)
    assert schema(path) == schema(newest)
    events, row = await store.events("k3f9"), await store.run("k3f9")
    assert verify(events, head_seq=row.head_seq, head_hash=row.head_hash) == 4
    (agent,) = await store.agents("k3f9")
    assert agent.state is State.RUNNING
    # And what is new works on it.
    assert await store.cache_keys() == frozenset()
    await memory_store.remember(kind="note", text="heron", run_id="k3f9", agent_id="a0")
    assert [memory.text for memory in await memory_store.recall("heron")] == ["heron"]
    writer = JournalWriter(store, "x2")
    writer.begin()
    writer.create_agent()
    await memory_store.aclose()
    await store.aclose()


@pytest.mark.parametrize("version", range(1, len(migrations())))
async def test_an_older_file_can_be_read_as_it_is(
    tmp_path: Path, newest: Path, version: int
) -> None:
    path = tmp_path / "older.db"
    make(path, version, newest)
    before = schema(path)
    store = SqliteStore(path, write=False)
    assert len(await store.events("k3f9")) == 4
    assert [row.id for row in await store.runs()] == ["k3f9"]
    assert len(await store.agents("k3f9")) == 1
    await store.aclose()
    assert schema(path) == before


async def test_memories_are_kept_by_a_migration(tmp_path: Path, newest: Path) -> None:
    """Those of version 2, which had an index over them."""
    path = tmp_path / "older.db"
    make(path, 2, newest)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements(script("full_text.sql")):
            connection.execute(statement)
        connection.execute(
            "INSERT INTO memories (kind, text, time, run_id, agent_id)"
            " VALUES ('note', 'heron', 0, 'k3f9', 'a0')"
        )
    memory_store = SqliteMemoryStore(path, FakeClock(), seal=str)
    # No earlier version has sealed them, so the user has to accept them first.
    assert await memory_store.recall("heron") == []
    assert seal_all(path, str) == 1
    assert [memory.text for memory in await memory_store.recall("heron")] == ["heron"]
    await memory_store.aclose()
