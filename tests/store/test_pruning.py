"""Cleaning journals away: what is left, what is guarded, and what stays."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from retinue.domain.chain import verify
from retinue.domain.events import RunPruned, StepsUndone
from retinue.domain.result import Status
from retinue.domain.run_state import fold
from retinue.errors import ChainBroken, RunError, StoreError
from retinue.runtime.core.journal import Journal, JournalHead
from retinue.runtime.history.audit import audit, read_all
from retinue.runtime.history.pruning import prune
from retinue.runtime.history.recovery import recover
from retinue.store.cleanup import shares, shrink, size_of, sweep_blobs
from retinue.store.export import export_run
from retinue.store.sqlite import SqliteStore
from retinue.testing.clock import EPOCH, FakeClock
from retinue.testing.store_contract import Scribe

SHARED = "The heron stands in the water and waits.\n" * 100


def change(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


def count(path: Path, table: str) -> int:
    with closing(sqlite3.connect(path)) as connection:
        ((number,),) = connection.execute(f"SELECT count(*) FROM {table}").fetchall()
        return int(number)


async def write(store: SqliteStore, run_id: str, own: str, *, finish: bool = True) -> str:
    """A run with two agents; gives the hash of its end."""
    scribe = Scribe(store, run_id, clock=FakeClock())
    scribe.begin("Count the herons.")
    scribe.birth()
    scribe.birth("a1", cache_key=run_id)
    scribe.live("a1", failed=True)
    scribe.note(SHARED)
    last = scribe.note(own * 300)
    if finish:
        scribe.live("a0")
        last = scribe.finish(Status.ERROR)
    await store.flush()
    return last.hash


async def test_the_outcome_is_left_and_the_chain_holds(tmp_path: Path) -> None:
    path = tmp_path / "retinue.db"
    store = SqliteStore(path)
    head = await write(store, "k3f9", "mine ")
    before, row = fold(await read_all(store, "k3f9")), await store.run("k3f9")
    await prune(store, FakeClock(EPOCH + 9), "k3f9")

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
    # Nobody is given what is not there any more.
    assert await store.cache_keys() == frozenset()
    with pytest.raises(RunError, match="k3f9 was cleaned away; there is nothing left to resume"):
        await recover(store, "k3f9")
    await store.aclose()

    target = tmp_path / "k3f9.retinue"
    export_run(path, "k3f9", target)
    alone = SqliteStore(target, write=False)
    assert (await audit(alone, "k3f9")).head_hash == left.hash
    await alone.aclose()


async def test_what_is_done_afterwards_follows_on_it(tmp_path: Path) -> None:
    """The user may undo what a run did whose journal is gone."""
    store = SqliteStore(tmp_path / "retinue.db")
    await write(store, "k3f9", "mine ")
    await prune(store, FakeClock(), "k3f9")
    row = await store.run("k3f9")
    end = JournalHead(row.epoch, row.head_seq, row.head_hash)
    journal = Journal(store, FakeClock(), "k3f9", head=end, listener=None)
    journal.record(StepsUndone(files=()), agent_id="a0", parent_agent_id=None)
    await journal.durable()
    found = await audit(store, "k3f9")
    assert (found.events, found.pruned) == (2, row.head_seq - 1)
    assert (await store.run("k3f9")).pruned
    assert len(fold(await store.events("k3f9")).rewritten) == 1
    await store.aclose()


async def test_what_others_need_stays(tmp_path: Path) -> None:
    path = tmp_path / "retinue.db"
    store = SqliteStore(path)
    for run_id, own in (("k3f9", "mine "), ("x2", "theirs ")):
        await write(store, run_id, own)
    assert count(path, "blobs") == 3
    parts = shares(path)
    assert parts.keys() == {"k3f9", "x2"}
    assert sum(parts.values()) == pytest.approx(1)
    await prune(store, FakeClock(), "k3f9")
    assert sweep_blobs(path) == 1
    assert count(path, "blobs") == 2
    assert (await audit(store, "x2")).pruned == 0
    await store.aclose()
    # The guard is in its place again.
    with pytest.raises(sqlite3.IntegrityError, match="a blob goes when no event needs it"):
        change(path, "DELETE FROM blobs")


async def test_the_room_is_given_back(tmp_path: Path) -> None:
    path = tmp_path / "retinue.db"
    store = SqliteStore(path)
    scribe = Scribe(store, "k3f9")
    scribe.begin()
    scribe.birth()
    for number in range(2_000):
        scribe.note(f"{number} " * 100)
    await store.flush()
    await prune(store, FakeClock(), "k3f9")
    await store.aclose()
    before = size_of(path)
    shrink(path)
    assert size_of(path) < before / 4
    store = SqliteStore(path, write=False)
    assert (await audit(store, "k3f9")).pruned == 2_002
    await store.aclose()


async def test_a_journal_that_is_not_what_was_written_stays(tmp_path: Path) -> None:
    path = tmp_path / "retinue.db"
    store = SqliteStore(path)
    await write(store, "k3f9", "mine ")
    change(
        path,
        "DROP TRIGGER events_append_only_update",
        "UPDATE events SET summary = 'x' WHERE seq = 3",
    )
    with pytest.raises(ChainBroken, match="Event 3 "):
        await prune(store, FakeClock(), "k3f9")
    assert len(await store.events("k3f9")) == (await store.run("k3f9")).head_seq
    await store.aclose()


async def test_one_who_still_works_on_it_is_stopped(tmp_path: Path) -> None:
    path = tmp_path / "retinue.db"
    mine, other = SqliteStore(path), SqliteStore(path)
    scribe = Scribe(mine, "k3f9")
    scribe.begin()
    scribe.birth()
    await mine.flush()
    await prune(other, FakeClock(), "k3f9")
    scribe.note()
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
async def test_nothing_else_is_deleted(tmp_path: Path, statement: str) -> None:
    path = tmp_path / "retinue.db"
    store = SqliteStore(path)
    for run_id in ("k3f9", "x2"):
        await write(store, run_id, "own ")
    await prune(store, FakeClock(), "k3f9")
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
async def test_changes_of_what_is_left_are_found(tmp_path: Path, what: str) -> None:
    path = tmp_path / "retinue.db"
    store = SqliteStore(path)
    await write(store, "k3f9", "mine ")
    await prune(store, FakeClock(), "k3f9")
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        query = "SELECT name FROM sqlite_master WHERE type = 'trigger'"
        for (trigger,) in connection.execute(query).fetchall():
            connection.execute(f"DROP TRIGGER {trigger}")
        assert connection.execute(CHANGES[what]).rowcount == 1
    with pytest.raises(ChainBroken):
        await audit(store, "k3f9")
    await store.aclose()


async def test_a_run_that_was_not_over_can_go_too(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "retinue.db")
    await write(store, "k3f9", "mine ", finish=False)
    await prune(store, FakeClock(), "k3f9")
    row, events = await store.run("k3f9"), await store.events("k3f9")
    assert (row.status, row.pruned) == (None, True)
    assert verify(events, head_seq=row.head_seq, head_hash=row.head_hash) == 1
    await store.aclose()
