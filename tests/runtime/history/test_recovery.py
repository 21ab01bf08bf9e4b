"""Which runs can be resumed, and the options that they were started with."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from retinue.domain.events import AgentStarted, FilesChanged
from retinue.domain.grant import Mode
from retinue.errors import ChainBroken, RecoveryError
from retinue.runtime.history.pruning import prune_journal
from retinue.runtime.history.recovery import NOT_YOURS, recorded_options, recover
from retinue.store.sqlite import SqliteStore
from retinue.testing.clock import FakeClock
from tests.store.journal_writer import JournalWriter

CLEANED = "The journal of run k3f9 was cleaned away; there is nothing left to resume."


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(tmp_path / "retinue.db", seal=str)
    yield store
    await store.aclose()


def begun(
    store: SqliteStore, *, kind: str = "run", web_hosts: tuple[str, ...] = ()
) -> JournalWriter:
    writer = JournalWriter(store, "k3f9")
    writer.begin(kind=kind)
    writer.create_agent(web_hosts=web_hosts)
    return writer


async def refusals(store: SqliteStore) -> list[str]:
    """What is said to whoever recovers the run, and to whoever asks for its options."""
    with pytest.raises(RecoveryError) as recovery:
        await recover(store, "k3f9")
    with pytest.raises(RecoveryError) as options:
        await recorded_options(store, await store.run("k3f9"))
    return [str(recovery.value), str(options.value)]


async def test_recorded_options_are_those_of_the_root(store: SqliteStore) -> None:
    writer = begun(store, web_hosts=("example.org",))
    writer.create_agent("a1", web_hosts=("example.com",))
    await store.flush()
    options = await recorded_options(store, await store.run("k3f9"))
    assert options == {"model": "scripted", "mode": "normal", "web_hosts": ("example.org",)}


async def test_model_and_mode_of_the_run_count_before_those_of_its_root(
    store: SqliteStore,
) -> None:
    """Children get the run's, whatever the contract of the root says."""
    writer = JournalWriter(store, "k3f9")
    writer.begin()
    writer.create_agent(model="another", mode=Mode.AUTO)
    await store.flush()
    options = await recorded_options(store, await store.run("k3f9"))
    assert (options["model"], options["mode"]) == ("scripted", "normal")


@pytest.mark.parametrize("name", ["a1", "root/a1"])
async def test_recorded_options_of_a_child_are_those_of_its_contract(
    store: SqliteStore, name: str
) -> None:
    """Whoever forks a child gets its model and mode, which need not be those of the run."""
    writer = begun(store, web_hosts=("example.org",))
    writer.create_agent("a1", model="another", mode=Mode.AUTO)
    await store.flush()
    options = await recorded_options(store, await store.run("k3f9"), name)
    assert options == {"model": "another", "mode": "auto", "web_hosts": None}


@pytest.mark.parametrize("has_root", [False, True])
async def test_run_without_hosts_has_none_on_record(store: SqliteStore, has_root: bool) -> None:
    writer = JournalWriter(store, "k3f9")
    writer.begin()
    if has_root:
        writer.create_agent()
    await store.flush()
    options = await recorded_options(store, await store.run("k3f9"))
    assert options["web_hosts"] is None


async def test_run_of_another_user_gives_nothing(store: SqliteStore, tmp_path: Path) -> None:
    begun(store)
    await store.flush()
    other = SqliteStore(tmp_path / "retinue.db", seal=lambda run_id: f"another {run_id}")
    assert await refusals(other) == [NOT_YOURS.format(run_id="k3f9")] * 2
    await other.aclose()


async def test_pruned_run_gives_nothing(store: SqliteStore) -> None:
    writer = begun(store)
    writer.run_agent("a0")
    writer.finish()
    await store.flush()
    await prune_journal(store, FakeClock(), "k3f9")
    assert await refusals(store) == [CLEANED] * 2


@pytest.mark.parametrize(
    ("kind", "hint"),
    [("run", ' To continue from it: retinue run -r k3f9 "…"'), ("program", "")],
)
async def test_only_a_session_can_be_continued_when_it_is_over(
    store: SqliteStore, kind: str, hint: str
) -> None:
    begun(store, kind=kind).finish()
    await store.flush()
    with pytest.raises(RecoveryError) as over:
        await recover(store, "k3f9")
    told = "Run k3f9 is over (completed); there is nothing to resume."
    assert str(over.value) == told + hint


async def test_run_without_its_root_had_not_begun(store: SqliteStore) -> None:
    writer = JournalWriter(store, "k3f9")
    writer.begin()
    await store.flush()
    with pytest.raises(RecoveryError) as early:
        await recover(store, "k3f9")
    assert str(early.value) == "Run k3f9 ended before it had begun; there is nothing to resume."
    writer.create_agent()
    await store.flush()
    found = await recover(store, "k3f9")
    assert (list(found.contracts), found.last_change) == (["a0"], 0)


async def test_changes_of_a_recovered_run_are_counted_from_the_highest_number(
    store: SqliteStore,
) -> None:
    """A resumed run records a change that a killed process had not recorded, after later ones."""
    writer = begun(store)
    writer.create_agent("a1")
    for number, agent in ((1, "a0"), (3, "a1"), (2, "a0")):
        writer.record(FilesChanged(number=number, commit="c" * 40, files=()), agent)
    await store.flush()
    assert (await recover(store, "k3f9")).last_change == 3


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            "UPDATE sub_agents SET context_json = '{}' WHERE id = 'a1'",
            "The contract of agent a1 is not the one that event 3 created.",
        ),
        (
            "UPDATE events SET time = time + 1 WHERE seq = 2",
            "Event 2 (agent.subagent_created) is not what was written.",
        ),
    ],
)
async def test_run_is_not_resumed_from_a_changed_journal(
    store: SqliteStore, tmp_path: Path, change: str, told: str
) -> None:
    writer = begun(store)
    writer.create_agent("a1")
    writer.record(AgentStarted(sub_agent_id="a1"), "a1")
    await store.flush()
    with closing(sqlite3.connect(tmp_path / "retinue.db")) as connection, connection:
        triggers = "SELECT name FROM sqlite_master WHERE type = 'trigger'"
        for (trigger,) in connection.execute(triggers).fetchall():
            connection.execute(f"DROP TRIGGER {trigger}")
        connection.execute(change)
    with pytest.raises(ChainBroken) as caught:
        await recover(store, "k3f9")
    assert str(caught.value) == told
