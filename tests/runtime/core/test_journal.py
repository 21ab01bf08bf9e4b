from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from retinue.domain.chain import GENESIS, verify
from retinue.domain.events import AgentStarted, Event, LimitReached, TurnStarted
from retinue.errors import StoreError
from retinue.ports.store import NewAgent, Store
from retinue.runtime.core.journal import Journal, JournalHead
from retinue.store.sqlite import SqliteStore
from retinue.testing.clock import EPOCH, FakeClock
from tests.store.journal_writer import JournalWriter


class WatchedStore(SqliteStore):
    """A store that tells what it was given, and fails to be durable if it is told to."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.given: list[tuple[Event, NewAgent | None]] = []
        self.flushes = 0
        self.error: StoreError | None = None

    def append(self, event: Event, new_agent: NewAgent | None = None) -> None:
        self.given.append((event, new_agent))
        super().append(event, new_agent)

    async def flush(self) -> None:
        self.flushes += 1
        if self.error is not None:
            raise self.error
        await super().flush()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[WatchedStore]:
    store = WatchedStore(tmp_path / "retinue.db")
    yield store
    # These journals begin anywhere, which the file refuses; nothing here is about that.
    with suppress(StoreError):
        await store.aclose()


def journal_on(store: Store, clock: FakeClock | None = None, *, epoch: int = 1) -> Journal:
    return Journal(
        store, clock or FakeClock(), "k3f9", head=JournalHead(epoch - 1, 0, GENESIS), listener=None
    )


async def test_events_are_numbered_chained_and_stored_at_once(store: WatchedStore) -> None:
    journal = journal_on(store)
    written = [
        journal.record(LimitReached(limit="max_turns", detail=str(n)), agent_id="a0",
                       parent_agent_id=None)
        for n in range(5)
    ]  # fmt: skip
    assert [event.seq for event in written] == [1, 2, 3, 4, 5]
    assert [event for event, _ in store.given] == written
    assert store.flushes == 0
    assert verify(written, head_seq=5, head_hash=written[-1].hash) == 5


async def test_event_has_agent_attempt_and_time(store: WatchedStore) -> None:
    clock = FakeClock()
    journal = journal_on(store, clock, epoch=3)
    clock.advance(1.5)
    fact = TurnStarted(turn=2, of=9)
    event = journal.record(fact, agent_id="a7", parent_agent_id="a2", attempt=4)
    assert (event.run_id, event.agent_id, event.parent_agent_id) == ("k3f9", "a7", "a2")
    assert (event.attempt, event.epoch, event.time) == (4, 3, EPOCH + 1.5)
    assert (event.type, event.summary) == ("turn.started", "turn 2/9")
    assert event.fact == fact


async def test_new_agent_row_is_stored_with_its_event(store: WatchedStore) -> None:
    writer = JournalWriter(store, "k3f9")
    writer.begin()
    new_agent = writer.create_agent()
    writer.note()
    assert [new_agent for _, new_agent in store.given] == [None, new_agent, None]


async def test_durable_waits_for_the_store(store: WatchedStore) -> None:
    writer = JournalWriter(store, "k3f9")
    event = writer.begin()
    await writer.journal.durable()
    assert store.flushes == 1
    assert list(await store.events("k3f9")) == [event]


async def test_durable_raises_what_the_store_does(store: WatchedStore) -> None:
    store.error = StoreError("full")
    with pytest.raises(StoreError, match="full"):
        await journal_on(store).durable()


async def test_listener_gets_each_event_after_the_store(store: WatchedStore) -> None:
    heard: list[tuple[int, int]] = []
    journal = Journal(
        store,
        FakeClock(),
        "k3f9",
        listener=lambda event: heard.append((event.seq, len(store.given))),
    )
    for _ in range(3):
        journal.record(AgentStarted(sub_agent_id="a0"), agent_id="a0", parent_agent_id=None)
    assert heard == [(1, 1), (2, 2), (3, 3)]


async def test_a_fact_that_cannot_be_encoded_leaves_no_gap(store: WatchedStore) -> None:
    journal = journal_on(store)
    for detail in ("fine", "\udcff", "fine again"):
        fact = LimitReached(limit="max_turns", detail=detail)
        if detail.isascii():
            journal.record(fact, agent_id="a0", parent_agent_id=None)
        else:
            with pytest.raises(UnicodeEncodeError):
                journal.record(fact, agent_id="a0", parent_agent_id=None)
    events = [event for event, _ in store.given]
    assert verify(events, head_seq=2, head_hash=events[-1].hash) == 2
