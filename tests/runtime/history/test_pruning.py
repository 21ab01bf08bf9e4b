"""A pruned journal keeps its outcome, and nothing else of the store is deleted."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from retinue.domain.chain import verify
from retinue.domain.events import ChangesUndone, RunPruned
from retinue.domain.result import Status
from retinue.domain.run_state import fold
from retinue.errors import ChainBroken, RunError, StoreError
from retinue.runtime.core.journal import Journal, JournalHead
from retinue.runtime.history.audit import audit, read_all
from retinue.runtime.history.pruning import prune_journal
from retinue.runtime.history.recovery import recover
from retinue.store.export import export_run
from retinue.store.sqlite import SqliteStore
from retinue.testing.clock import EPOCH, FakeClock
from tests.store.journal_writer import JournalWriter

SHARED = "The heron stands in the water and waits.\n" * 100


def change(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


async def write(store: SqliteStore, run_id: str, own: str, *, finish: bool = True) -> str:
    """Write a run with two agents. Return the hash of its last event."""
    writer = JournalWriter(store, run_id, clock=FakeClock())
    writer.begin("Count the herons.")
    writer.create_agent()
    writer.create_agent("a1", cache_key=run_id)
    writer.run_agent("a1", failed=True)
    writer.note(SHARED)
    last = writer.note(own * 300)
    if finish:
        writer.run_agent("a0")
        last = writer.finish(Status.ERROR)
    await store.flush()
    return last.hash


async def test_pruning_keeps_the_outcome_and_the_hash_chain(tmp_path: Path) -> None:
    path = tmp_path / "retinue.db"
    store = SqliteStore(path, seal=str)
    head = await write(store, "k3f9", "mine ")
    before, row = fold(await read_all(store, "k3f9")), await store.run("k3f9")
    await prune_journal(store, FakeClock(EPOCH + 9), "k3f9")

    (left,) = await store.events("k3f9")
    fact, now = left.fact, await store.run("k3f9")
    assert isinstance(fact, RunPruned)
    assert (fact.events, fact.head_hash) == (row.head_seq, head)
    assert (left.seq, left.time) == (row.head_seq + 1, EPOCH + 9)
    assert (now.status, now.task, now.agents, now.pruned) == ("error", "Count the herons.", 2, True)
    assert (now.finished_at, now.session) == (row.finished_at, row.session)
    found = await audit(store, "k3f9")
    assert (found.events, found.agents, found.pruned) == (1, 2, row.head_seq)
    after = fold([left])
    assert [
        (agent.id, agent.path, agent.state, agent.status, agent.contract_sha256)
        for agent in after.agents.values()
    ] == [
        (agent.id, agent.path, agent.state, agent.status, agent.contract_sha256)
        for agent in before.agents.values()
    ]
    assert list(await store.agents("k3f9")) == []
    # A pruned run is no longer in the result cache.
    assert await store.cache_keys() == frozenset()
    with pytest.raises(RunError, match="k3f9 was cleaned away; there is nothing left to resume"):
        await recover(store, "k3f9")
    await store.aclose()

    target = tmp_path / "k3f9.retinue"
    export_run(path, "k3f9", target)
    alone = SqliteStore(target, write=False)
    assert (await audit(alone, "k3f9")).head_hash == left.hash
    await alone.aclose()


async def test_events_can_follow_a_pruned_journal(tmp_path: Path) -> None:
    """The user may undo the changes of a run whose journal is pruned."""
    store = SqliteStore(tmp_path / "retinue.db")
    await write(store, "k3f9", "mine ")
    await prune_journal(store, FakeClock(), "k3f9")
    row = await store.run("k3f9")
    end = JournalHead(row.epoch, row.head_seq, row.head_hash)
    journal = Journal(store, FakeClock(), "k3f9", head=end, listener=None)
    journal.record(ChangesUndone(files=()), agent_id="a0", parent_agent_id=None)
    await journal.durable()
    found = await audit(store, "k3f9")
    assert (found.events, found.pruned) == (2, row.head_seq - 1)
    assert (await store.run("k3f9")).pruned
    assert len(fold(await store.events("k3f9")).undo_history) == 1
    await store.aclose()


async def test_altered_journal_is_not_pruned(tmp_path: Path) -> None:
    path = tmp_path / "retinue.db"
    store = SqliteStore(path)
    await write(store, "k3f9", "mine ")
    change(
        path,
        "DROP TRIGGER events_append_only_update",
        "UPDATE events SET summary = 'x' WHERE seq = 3",
    )
    with pytest.raises(ChainBroken, match="Event 3 "):
        await prune_journal(store, FakeClock(), "k3f9")
    assert len(await store.events("k3f9")) == (await store.run("k3f9")).head_seq
    await store.aclose()


async def test_process_that_still_writes_to_a_pruned_run_fails(tmp_path: Path) -> None:
    path = tmp_path / "retinue.db"
    mine, other = SqliteStore(path), SqliteStore(path)
    writer = JournalWriter(mine, "k3f9")
    writer.begin()
    writer.create_agent()
    await mine.flush()
    await prune_journal(other, FakeClock(), "k3f9")
    writer.note()
    with pytest.raises(StoreError):
        await mine.flush()
    assert (await audit(other, "k3f9")).pruned == 2
    with pytest.raises(StoreError):
        await mine.aclose()
    await other.aclose()


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM events WHERE run_id = 'x2'",
        "DELETE FROM sub_agents WHERE run_id = 'x2'",
        "DELETE FROM events WHERE run_id = 'k3f9'",
    ],
)
async def test_database_refuses_to_delete_anything_else(tmp_path: Path, statement: str) -> None:
    path = tmp_path / "retinue.db"
    store = SqliteStore(path)
    for run_id in ("k3f9", "x2"):
        await write(store, run_id, "own ")
    await prune_journal(store, FakeClock(), "k3f9")
    await store.aclose()
    with pytest.raises(sqlite3.IntegrityError, match="never deleted"):
        change(path, statement)


CHANGES = {
    "the outcome": "UPDATE runs SET status = 'completed'",
    "its words": "UPDATE events SET payload = replace(payload, 'error', 'timeout')",
    "the end of what went": "UPDATE events SET payload = replace(payload, 'head_hash\":\"', '$0')",
    "the number": "UPDATE events SET seq = seq + 1",
    "the event": "DELETE FROM events",
    "an agent more": "INSERT INTO sub_agents (run_id, id, step_idx, path, role, context_json)"
    " VALUES ('k3f9', 'a7', 0, 'root', 'researcher', '{}')",
}


@pytest.mark.parametrize("what", CHANGES)
async def test_audit_finds_changes_to_a_pruned_journal(tmp_path: Path, what: str) -> None:
    path = tmp_path / "retinue.db"
    store = SqliteStore(path)
    await write(store, "k3f9", "mine ")
    await prune_journal(store, FakeClock(), "k3f9")
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        query = "SELECT name FROM sqlite_master WHERE type = 'trigger'"
        for (trigger,) in connection.execute(query).fetchall():
            connection.execute(f"DROP TRIGGER {trigger}")
        assert connection.execute(CHANGES[what]).rowcount == 1
    with pytest.raises(ChainBroken):
        await audit(store, "k3f9")
    await store.aclose()


async def test_unfinished_run_can_be_pruned(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "retinue.db")
    await write(store, "k3f9", "mine ", finish=False)
    await prune_journal(store, FakeClock(), "k3f9")
    row, events = await store.run("k3f9"), await store.events("k3f9")
    assert (row.status, row.pruned) == (None, True)
    assert verify(events, head_seq=row.head_seq, head_hash=row.head_hash) == 1
    await store.aclose()
