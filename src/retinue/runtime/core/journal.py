"""The journal of one run: it numbers, chains and hands on every event."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from retinue.domain.chain import GENESIS, link
from retinue.domain.events import TYPES, VERSION, Event, Fact, encode_fact
from retinue.ports.clock import Clock
from retinue.ports.store import NewAgent, RunRow, Store

Listener = Callable[[Event], None]


class End(NamedTuple):
    """Where an earlier owner has left a journal."""

    epoch: int
    seq: int
    hash: str

    @classmethod
    def of(cls, row: RunRow) -> End:
        return cls(row.epoch, row.head_seq, row.head_hash)


NOTHING_YET = End(0, 0, GENESIS)


class Journal:
    """Numbers are taken when an event is recorded, not when it is written: order is never in doubt.

    `record` is synchronous: a task that is being cancelled can still say so. `durable` waits until
    everything recorded so far is safe. A listener that raises is told no more; what it raised comes
    out of the next `durable`, since what is on record has happened whoever was told.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        run_id: str,
        *,
        end: End = NOTHING_YET,
        listener: Listener | None,
    ) -> None:
        self.run_id = run_id
        self._store = store
        self._clock = clock
        self._epoch = end.epoch + 1
        self._listener = listener
        self._unsaid: Exception | None = None
        self._seq = end.seq
        self._head = end.hash

    def record(
        self,
        fact: Fact,
        agent_id: str,
        parent_agent_id: str | None,
        attempt: int = 0,
        new_agent: NewAgent | None = None,
    ) -> Event:
        seq, time = self._seq + 1, self._clock.now()
        kind, summary, payload = TYPES[type(fact)], fact.summary, encode_fact(fact)
        digest = link(
            self._head, seq, self.run_id, agent_id, parent_agent_id, attempt, self._epoch, time,
            kind, VERSION, summary, payload,
        )  # fmt: skip
        event = Event(
            seq=seq,
            run_id=self.run_id,
            agent_id=agent_id,
            parent_agent_id=parent_agent_id,
            attempt=attempt,
            epoch=self._epoch,
            time=time,
            type=kind,
            summary=summary,
            payload=msgspec.Raw(payload),
            hash=digest,
        )
        self._store.append(event, new_agent)
        self._seq, self._head = seq, digest
        if self._listener is not None:
            try:
                self._listener(event)
            except Exception as error:
                self._listener, self._unsaid = None, error
        return event

    async def durable(self) -> None:
        """Return when everything recorded so far is safe. Raises StoreError if it cannot be."""
        await self._store.flush()
        if self._unsaid is not None:
            error, self._unsaid = self._unsaid, None
            raise error
