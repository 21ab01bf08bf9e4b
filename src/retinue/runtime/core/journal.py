"""The journal of one run: numbers each event, chains its hash, stores it, tells the listener."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import msgspec

from retinue.domain.agent_state import ROOT_ID
from retinue.domain.chain import GENESIS, link
from retinue.domain.events import TYPES, Event, Fact, encode_fact
from retinue.ports.clock import Clock
from retinue.ports.store import NewAgent, RunRow, Store

Listener = Callable[[Event], None]


class JournalHead(NamedTuple):
    """Last event of a journal, and the epoch of the process that wrote it."""

    epoch: int
    seq: int
    hash: str

    @classmethod
    def of(cls, row: RunRow) -> JournalHead:
        return cls(row.epoch, row.head_seq, row.head_hash)


EMPTY = JournalHead(0, 0, GENESIS)


class AgentJournal(Protocol):
    """The part of a journal that an agent uses."""

    def record(
        self, fact: Fact, agent_id: str, parent_agent_id: str | None, attempt: int = 0
    ) -> Event: ...

    async def durable(self) -> None:
        """Wait until everything recorded so far is written. Raises StoreError."""
        ...


class Journal:
    """Records the events of one run, in the order in which `record` is called.

    `record` is synchronous, so a task that is being cancelled can still record. An event gets its
    number when it is recorded, not when it is written. If the listener raises, it is not called
    again, and the next `durable` raises its error: an event on record has happened, whatever the
    listener does.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        run_id: str,
        *,
        head: JournalHead = EMPTY,
        listener: Listener | None,
    ) -> None:
        self.run_id = run_id
        self._store = store
        self._clock = clock
        self._epoch = head.epoch + 1
        self._listener = listener
        self._listener_error: Exception | None = None
        self._seq = head.seq
        self._head = head.hash

    def record(
        self,
        fact: Fact,
        agent_id: str,
        parent_agent_id: str | None,
        attempt: int = 0,
        new_agent: NewAgent | None = None,
    ) -> Event:
        unlinked = Event(
            seq=self._seq + 1,
            run_id=self.run_id,
            agent_id=agent_id,
            parent_agent_id=parent_agent_id,
            attempt=attempt,
            epoch=self._epoch,
            time=self._clock.now(),
            type=TYPES[type(fact)],
            summary=str(fact),
            payload=msgspec.Raw(encode_fact(fact)),
            hash="",
        )
        event = msgspec.structs.replace(unlinked, hash=link(self._head, unlinked))
        self._store.append(event, new_agent)
        self._seq, self._head = event.seq, event.hash
        if self._listener is not None:
            try:
                self._listener(event)
            except Exception as error:
                self._listener, self._listener_error = None, error
        return event

    async def durable(self) -> None:
        """Wait until everything recorded so far is written. Raises StoreError."""
        await self._store.flush()
        if self._listener_error is not None:
            error, self._listener_error = self._listener_error, None
            raise error


async def record_in_stopped_run(store: Store, clock: Clock, run_id: str, fact: Fact) -> None:
    """Add a fact of the root to the journal of a run that no process works on."""
    head = JournalHead.of(await store.run(run_id))
    journal = Journal(store, clock, run_id, head=head, listener=None)
    journal.record(fact, agent_id=ROOT_ID, parent_agent_id=None)
    await journal.durable()
