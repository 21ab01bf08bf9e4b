"""Copies of runs between stores: SQLite files, and schemas of a real Postgres server."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, closing
from pathlib import Path
from typing import Any

import pytest

from retinue.config.environment import Environment
from retinue.domain.events import AgentStarted, ResultProposed
from retinue.errors import ConfigError, RunError, StoreError, UsageError
from retinue.extras import is_installed
from retinue.ports.store import Store
from retinue.project import (
    database_path,
    open_memory_store,
    open_run_locks,
    open_store,
    rename_session,
)
from retinue.runtime.history.audit import audit
from retinue.runtime.history.pruning import prune_journal
from retinue.runtime.history.recovery import NOT_YOURS
from retinue.store.sqlite import SqliteStore
from retinue.store_copy import CopyReport, copy_store
from retinue.testing.clock import FakeClock
from tests.store.journal_writer import JournalWriter
from tests.store.postgres_server import PostgresServer, postgres_server, programs

NEEDS_SERVER = pytest.mark.skipif(
    programs() is None or not is_installed("postgres"),
    reason="Postgres or asyncpg is not installed: script/services",
)


class Place:
    """A store: `argument` names it for `copy_store`, `environment` for what opens it."""

    def __init__(self, argument: str, root: Path, environment: Environment) -> None:
        self.argument, self.root, self.environment = argument, root, environment

    def opened(self) -> AbstractAsyncContextManager[Store]:
        return open_store(self.root, self.environment)


class Stores:
    """A home, with a project of that has its journal in a file, and other stores."""

    def __init__(self, folder: Path, url: str | None) -> None:
        self._folder, self._url = folder, url
        self._home = Environment(variables={"HOME": str(folder)})
        self.source = self.file("project")
        self.target = self.file("other") if url is None else self.schema(str(folder.name))

    def file(self, name: str) -> Place:
        root = self._folder / name
        root.mkdir()
        return Place(str(root), root, self._home)

    def schema(self, name: str) -> Place:
        name = "".join(letter if letter.isalnum() else "_" for letter in name.lower())
        url = f"{self._url}?schema=t_{name}"
        variables = {**self._home.variables, "RETINUE_STORE": url}
        return Place(url, self._folder / "project", Environment(variables=variables))

    async def copy(self, source: Place | None = None, target: Place | None = None) -> CopyReport:
        source, target = source or self.source, target or self.target
        return await copy_store(source.argument, target.argument, self.source.root, self._home)


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with postgres_server() as found:
        yield found


@pytest.fixture(
    params=["sqlite", pytest.param("postgres", marks=[pytest.mark.services, NEEDS_SERVER])]
)
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Stores:
    in_file = request.param == "sqlite"
    return Stores(tmp_path, None if in_file else request.getfixturevalue("server").url)


async def write_runs(store: Store) -> None:
    """A run of each kind that a journal can have."""
    done = JournalWriter(store, "done")
    done.begin("Count \0 herons, \\u0000 and \uf8ff0.")
    for agent_id in ("a0", "a1", "a2"):
        done.create_agent(agent_id, cache_key="key")
        done.note("large " * 1000)
        done.run_agent(agent_id, failed=agent_id == "a1")
    done.finish()
    left = JournalWriter(store, "left", clock=FakeClock(2e9))
    left.begin("Go on.", earlier=("done",))
    for agent_id in ("a0", "a1", "a2"):
        left.create_agent(agent_id)
    left.record(AgentStarted(sub_agent_id="a1"), "a1")
    left.record(AgentStarted(sub_agent_id="a2"), "a2")
    left.record(ResultProposed(sub_agent_id="a2", response="large " * 1000), "a2")
    pruned = JournalWriter(store, "pruned")
    pruned.begin()
    pruned.create_agent()
    pruned.run_agent("a0")
    pruned.finish()
    await store.flush()
    await prune_journal(store, FakeClock(), "pruned")


async def contents(place: Place) -> dict[str, Any]:
    async with place.opened() as store:
        found = {
            row.id: (row, list(await store.events(row.id)), list(await store.agents(row.id)))
            for row in await store.runs()
        }
        for run_id in found:
            await audit(store, run_id)
        return found | {"cached": list(await store.cached("key", limit=9))}


async def test_runs_are_the_same_there_and_back(stores: Stores) -> None:
    async with stores.source.opened() as store:
        await write_runs(store)
    await rename_session(
        stores.source.root, "done", "Herons", environment=stores.source.environment
    )
    written = await contents(stores.source)
    done = await stores.copy()
    assert (done.runs, done.present, done.titles, done.skipped) == (3, 0, 1, ())
    assert done.events == sum(len(events) for _, events, _ in list(written.values())[:3])
    assert await contents(stores.target) == written
    again = await stores.copy()
    assert (again.runs, again.events, again.present, again.titles) == (0, 0, 3, 0)
    back = stores.file("back")
    await stores.copy(stores.target, back)
    # The runs are sealed there: they are this user's.
    assert await contents(back) == written


async def test_memories_are_recalled_there(stores: Stores) -> None:
    async with stores.source.opened() as store:
        JournalWriter(store, "k3f9").begin()
    texts = ["Herons nest in March.", "Owls hoot at 3:00."]
    clock = FakeClock()

    def memories(place: Place) -> Any:
        return open_memory_store(place.root, clock, place.environment)

    async with memories(stores.source) as memory_store:
        for run_id, text in zip(("k3f9", "gone"), texts, strict=True):
            await memory_store.remember(kind="note", text=text, run_id=run_id, agent_id="a0")
    assert (await stores.copy()).memories == 2
    assert (await stores.copy()).memories == 0
    async with memories(stores.target) as memory_store:
        assert [found.text for found in await memory_store.recall("")] == texts[::-1]
        (found,) = await memory_store.recall("heron")
        assert (found.run_id, found.text, found.time) == ("k3f9", texts[0], clock.now())


async def test_run_that_has_gone_on_is_continued(stores: Stores) -> None:
    async with stores.source.opened() as store:
        writer = begin_run(store, "k3f9")
        writer.record(AgentStarted(sub_agent_id="a0"))
        await store.flush()
        await stores.copy()
        writer.note("large " * 1000)
        writer.create_agent("a1")
        writer.run_agent("a1")
        await store.flush()
        # The next owner of the run.
        other = JournalWriter(store, "k3f9", row=await store.run("k3f9"))
        other.take_over()
        other.end("a0", failed=True)
        other.finish()
    done = await stores.copy()
    assert (done.runs, done.events) == (1, 10)
    assert await contents(stores.target) == await contents(stores.source)


async def test_other_content_is_refused_before_anything_is_copied(stores: Stores) -> None:
    async with stores.source.opened() as store:
        begin_run(store, "k3f9")
        await store.flush()
        await stores.copy()
        JournalWriter(store, "k3f9", row=await store.run("k3f9")).take_over()
        begin_run(store, "new")
    async with stores.target.opened() as store:
        later = FakeClock(2e9)
        JournalWriter(store, "k3f9", row=await store.run("k3f9"), clock=later).take_over()
    before = await contents(stores.target)
    for source, target in ((stores.source, stores.target), (stores.target, stores.source)):
        with pytest.raises(RunError) as caught:
            await stores.copy(source, target)
        assert str(caught.value).startswith("Nothing was copied: run k3f9 is in ")
        assert "too, with other content. It continued in both stores" in str(caught.value)
    assert await contents(stores.target) == before


async def test_run_that_went_on_at_the_target_stays(stores: Stores) -> None:
    async with stores.source.opened() as store:
        begin_run(store, "k3f9")
    await stores.copy()
    async with stores.target.opened() as store:
        JournalWriter(store, "k3f9", row=await store.run("k3f9")).take_over()
    before = await contents(stores.target)
    done = await stores.copy()
    assert (done.runs, done.skipped) == (
        0,
        (f"Run k3f9 has continued in {done.target}; it stays as it is there.",),
    )
    assert await contents(stores.target) == before


async def test_run_that_was_cleaned_away_since_stays(stores: Stores) -> None:
    async with stores.source.opened() as store:
        writer = begin_run(store, "k3f9")
        writer.run_agent("a0")
        writer.finish()
        await store.flush()
        await stores.copy()
        before = await contents(stores.target)
        await prune_journal(store, FakeClock(), "k3f9")
    done = await stores.copy()
    assert done.skipped == (
        f"Run k3f9 was cleaned away in {done.source} after it was copied; both stay as they are.",
    )
    assert await contents(stores.target) == before


async def test_run_at_work_is_skipped(stores: Stores) -> None:
    async with stores.source.opened() as store:
        begin_run(store, "k3f9")
        begin_run(store, "x2")
    lock = open_run_locks(stores.source.root, stores.source.environment).acquire("k3f9")
    done = await stores.copy()
    assert (done.runs, done.skipped) == (1, ("Run k3f9 is at work; copy again when it is over.",))
    lock.release()
    assert (await stores.copy()).runs == 1
    # It goes on here, while a process works on the copy.
    async with stores.source.opened() as store:
        JournalWriter(store, "k3f9", row=await store.run("k3f9")).take_over()
    lock = open_run_locks(stores.target.root, stores.target.environment).acquire("k3f9")
    done = await stores.copy()
    assert done.skipped == (f"Run k3f9 is at work in {done.target}; copy again when it is over.",)
    lock.release()


async def test_runs_of_strangers_and_their_memories_stay(stores: Stores) -> None:
    async with stores.source.opened() as store:
        begin_run(store, "mine")
    foreign = SqliteStore(database_path(stores.source.root))
    begin_run(foreign, "theirs")
    await foreign.aclose()
    with closing(sqlite3.connect(database_path(stores.source.root))) as connection:
        connection.execute(
            "INSERT INTO memories (kind, text, time, run_id, agent_id)"
            " VALUES ('note', 'Obey.', 1, 'theirs', 'a0')"
        )
        connection.commit()
    done = await stores.copy()
    assert (done.runs, done.memories) == (1, 0)
    assert done.skipped == (NOT_YOURS.format(run_id="theirs"),)


async def test_changed_run_stays(stores: Stores) -> None:
    async with stores.source.opened() as store:
        begin_run(store, "k3f9")
        begin_run(store, "x2")
    with closing(sqlite3.connect(database_path(stores.source.root))) as connection:
        connection.execute("DROP TRIGGER events_append_only_update")
        connection.execute("UPDATE events SET summary = 'Other.' WHERE run_id = 'k3f9'")
        connection.execute(
            "CREATE TRIGGER events_append_only_update BEFORE UPDATE ON events\nBEGIN\n"
            "    SELECT RAISE(ABORT, 'the journal is append-only: events are never changed');\nEND"
        )
        connection.commit()
    done = await stores.copy()
    assert done.runs == 1
    (told,) = done.skipped
    assert told.startswith("Run k3f9 is not as it was written, so it stays: Event 1 ")


@NEEDS_SERVER
async def test_a_password_is_not_told(tmp_path: Path) -> None:
    server, home = "postgresql://ada:secret@h/d", Environment(variables={"HOME": str(tmp_path)})
    with pytest.raises(UsageError) as caught:
        await copy_store(server, server, str(tmp_path), environment=home)
    assert str(caught.value) == "FROM and TO are the same store: postgresql://h/d."


async def test_stores_that_cannot_be_copied_are_told(tmp_path: Path) -> None:
    home = Environment(variables={"HOME": str(tmp_path)})
    (tmp_path / "empty").mkdir()
    empty, here = str(tmp_path / "empty"), str(tmp_path)
    database = str(tmp_path / ".retinue" / "retinue.db")
    with pytest.raises(StoreError, match=r"There is no run in .*/empty/\.retinue/retinue\.db\."):
        await copy_store(empty, here, environment=home)
    with pytest.raises(UsageError, match="There is no directory 'nowhere'"):
        await copy_store("nowhere", here, environment=home)
    with pytest.raises(UsageError, match="are the same store"):
        await copy_store(here, database, environment=home)
    with pytest.raises(ConfigError, match="must be a postgresql:// address"):
        await copy_store(here, "mysql://h/d", environment=home)


def begin_run(store: Store, run_id: str) -> JournalWriter:
    writer = JournalWriter(store, run_id)
    writer.begin()
    writer.create_agent()
    return writer
