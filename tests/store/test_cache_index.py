from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from retinue.domain.events import (
    AgentClosed,
    AgentCompleted,
    AgentCreated,
    AgentStarted,
    ResultProposed,
)
from retinue.errors import StoreError
from retinue.ports.store import NewAgent
from retinue.store.queries import queries
from retinue.store.seals import define_own_runs
from retinue.store.sqlite import SqliteStore
from tests.store.journal_writer import JournalWriter, contract


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "retinue.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path, seal=str)
    yield store
    await store.aclose()


def create_agent(writer: JournalWriter, agent_id: str, cache_key: str | None) -> None:
    new_agent = NewAgent(
        run_id=writer.run_id,
        agent_id=agent_id,
        parent_agent_id=None,
        step_idx=0,
        path=agent_id,
        role="researcher",
        context_json=contract(writer.run_id).encode().canonical.decode(),
        cache_key=cache_key,
    )
    fact = AgentCreated(
        sub_agent_id=agent_id,
        step_idx=0,
        path=agent_id,
        depth=1,
        role="researcher",
        title="A task",
        contract_sha256=hashlib.sha256(new_agent.context_json.encode()).hexdigest(),
    )
    writer.journal.record(fact, agent_id=agent_id, parent_agent_id=None, new_agent=new_agent)


def complete(writer: JournalWriter, agent_id: str) -> None:
    writer.record(AgentStarted(sub_agent_id=agent_id), agent_id)
    writer.record(ResultProposed(sub_agent_id=agent_id, response=""), agent_id)
    writer.record(AgentCompleted(sub_agent_id=agent_id), agent_id)


def close(writer: JournalWriter, agent_id: str) -> None:
    fact = AgentClosed(sub_agent_id=agent_id, step_idx=0, final_status="x", close_reason="x")
    writer.record(fact, agent_id)


def life(writer: JournalWriter, agent_id: str, cache_key: str | None) -> None:
    create_agent(writer, agent_id, cache_key)
    complete(writer, agent_id)
    close(writer, agent_id)


async def test_agents_that_were_closed_are_found(store: SqliteStore) -> None:
    writer = JournalWriter(store, "k3f9")
    writer.begin()
    life(writer, "a0", "key")
    life(writer, "a1", "other")
    life(writer, "a2", None)
    await store.flush()
    assert list(await store.cached("key")) == [("k3f9", "a0")]
    assert list(await store.cached("other")) == [("k3f9", "a1")]
    assert list(await store.cached("none")) == []
    assert await store.cache_keys() == {"key", "other"}


async def test_only_closed_agents_count(store: SqliteStore) -> None:
    writer = JournalWriter(store, "k3f9")
    writer.begin()
    create_agent(writer, "a0", "key")
    complete(writer, "a0")
    await store.flush()
    assert list(await store.cached("key")) == []
    close(writer, "a0")
    await store.flush()
    assert await store.cache_keys() == {"key"}
    assert list(await store.cached("key")) == [("k3f9", "a0")]


async def test_the_latest_come_first(store: SqliteStore) -> None:
    for number in range(4):
        writer = JournalWriter(store, f"run{number}")
        writer.begin()
        life(writer, "a0", "key")
        life(writer, "a1", "key")
    await store.flush()
    assert list(await store.cached("key")) == [("run3", "a1"), ("run3", "a0"), ("run2", "a1")]
    assert list(await store.cached("key", limit=1)) == [("run3", "a1")]
    assert len(await store.cached("key", limit=99)) == 8


async def test_an_empty_key_is_refused(path: Path) -> None:
    store = SqliteStore(path, seal=str)
    writer = JournalWriter(store, "k3f9")
    writer.begin()
    create_agent(writer, "a0", "")
    with pytest.raises(StoreError, match="cache_key"):
        await store.flush()
    with pytest.raises(StoreError):
        await store.aclose()


@pytest.mark.parametrize("change", ["'another'", "NULL", "cache_key"])
@pytest.mark.parametrize("how", ["UPDATE", "UPDATE OR IGNORE", "UPDATE OR REPLACE"])
async def test_a_key_is_never_changed(
    path: Path, store: SqliteStore, how: str, change: str
) -> None:
    writer = JournalWriter(store, "k3f9")
    writer.begin()
    life(writer, "a0", "key")
    await store.flush()
    with (
        closing(sqlite3.connect(path, isolation_level=None)) as connection,
        pytest.raises(sqlite3.IntegrityError) as caught,
    ):
        connection.execute(f"{how} sub_agents SET cache_key = {change}")
    assert str(caught.value) == "a cache key is given at birth and never changed"
    assert await store.cache_keys() == {"key"}


def test_it_is_found_by_the_indexes_alone(database: Path) -> None:
    def plan(query: str) -> list[str]:
        arguments = [None] * queries()[query].count("?")
        rows = connection.execute(f"EXPLAIN QUERY PLAN {queries()[query]}", arguments)
        return [row[3] for row in rows]

    with closing(sqlite3.connect(database)) as connection:
        define_own_runs(connection, str)
        (keys,) = plan("cache_keys")
        assert "COVERING INDEX sub_agents_by_cache_key" in keys
        agents, _, seals = plan("agents_cached")
        assert agents.endswith("INDEX sub_agents_by_cache_key (cache_key=?)")
        assert seals.endswith("PRIMARY KEY (run_id=?)")
