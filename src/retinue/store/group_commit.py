"""Group commit: the event loop collects events in a `Batch`, which is written as one transaction.

A batch is written when a caller waits in `flush`, or after 50 ms.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping

from retinue.domain.events import Event
from retinue.errors import StoreError, TakenOver
from retinue.ports.store import NewAgent
from retinue.store.batch import Batch
from retinue.store.blobs import LARGE_BYTES, Extracted, compress, extract

# How long an event waits when no caller waits for it; and how long every caller waits after a large
# transaction. Each transaction passes the interpreter lock to and fro some ten times while the
# event loop has work to do: with half of this, a fan-out takes a fifteenth more CPU.
GROUP_COMMIT_S = 0.05
LARGE_BATCH = 32
# A request that is being sent may be billed from now on, so a killed process must not forget it.
_COMMIT_SOON = "turn.started"
_RECENT_BLOBS = 1024  # hashes of blobs, so that what siblings share is compressed once


def taken_over(run_id: str) -> TakenOver:
    """The error of a process that writes a run which another one owns now."""
    return TakenOver(f"Another process has taken over run {run_id}; this one must stop.")


class GroupCommit(ABC):
    """Collects events in the event loop. A subclass writes one batch at a time."""

    def __init__(self, place: object) -> None:
        self._place = place
        self._batch = Batch()
        self._recent: dict[str, None] = {}
        self._writing = False
        self._resubmit = False
        self._closing = False
        self._appended = 0
        self._committed = 0
        self._earliest_commit = 0.0
        self._error: StoreError | None = None
        self._heads: dict[str, int] = {}
        self._epochs: dict[str, int] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._flush_scheduled = False
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()

    @abstractmethod
    def _write(self, batch: Batch) -> None:
        """Begin to write a batch. `_on_committed` is called in the event loop at its end.

        After an error nothing more is written: a chain with a gap is worse than a chain that ends.
        """

    @abstractmethod
    async def _end(self) -> None:
        """Wait for the batch that is being written, and close the connection."""

    def append(self, event: Event, new_agent: NewAgent | None) -> None:
        """Take an event for the next batch. A closed store writes none, and `flush` says so."""
        if self._closing:
            self._appended += 1
            return
        if self._timer is None:
            self._loop = asyncio.get_running_loop()
            self._timer = self._loop.call_later(GROUP_COMMIT_S, self._submit)
        large = len(event.payload) >= LARGE_BYTES
        self._batch.add(event, new_agent, self._extract(event) if large else None)
        self._appended += 1
        if event.type == _COMMIT_SOON:
            self._submit_soon()

    def _extract(self, event: Event) -> Extracted | None:
        """Take large strings out of the payload, and compress those that may be new.

        Done here because the thread would wait for the interpreter lock after each of them.
        """
        found = extract(bytes(event.payload))
        for digest, string in found.strings.items():
            if self._recent.pop(digest, self) is self:
                self._batch.compressed[digest] = compress(string)
                if len(self._recent) >= _RECENT_BLOBS:
                    del self._recent[next(iter(self._recent))]
            self._recent[digest] = None
        return found if found.refs else None

    async def flush(self) -> None:
        if self._error is not None:
            raise self._error
        if self._committed == self._appended:
            return
        if self._closing:
            raise StoreError(f"{self._place} is closed.")
        assert self._loop is not None
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append((self._appended, waiter))
        self._submit_soon()
        await waiter

    async def aclose(self) -> None:
        if self._closing:
            return
        try:
            await self.flush()
        finally:
            self._closing = True
            if self._timer is not None:
                self._timer.cancel()
            self._submit_now()
            await self._end()

    def _submit_soon(self) -> None:
        """Submit the batch at the end of this iteration of the event loop.

        Not at once, so that all tasks that are ready to run get into the same transaction; and not
        right after a large one, so that a busy loop does not pay for more transactions than it
        needs.
        """
        if not self._flush_scheduled:
            assert self._loop is not None
            self._flush_scheduled = True
            self._loop.call_at(self._earliest_commit, self._submit)

    def _submit(self) -> None:
        """Submit the batch once the thread is idle, so that waiting events form one batch."""
        self._flush_scheduled = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._resubmit = self._writing
        if not self._resubmit:
            self._submit_now()

    def _submit_now(self) -> None:
        if not self._batch.count:
            return
        self._writing = True
        batch, self._batch = self._batch, Batch()
        self._write(batch)

    def _on_committed(self, count: int, error: StoreError | None) -> None:
        assert self._loop is not None
        if count >= LARGE_BATCH:
            self._earliest_commit = self._loop.time() + GROUP_COMMIT_S
        self._committed += count
        self._error = self._error or error
        while self._waiters and (self._error or self._waiters[0][0] <= self._committed):
            _, waiter = self._waiters.popleft()
            if waiter.done():
                continue
            if self._error is not None:
                waiter.set_exception(self._error)
            else:
                waiter.set_result(None)
        self._writing = False
        if self._resubmit:
            self._submit()

    def _taken_over(self, batch: Batch, owners: Mapping[str, tuple[int, int]]) -> TakenOver | None:
        """The error of a refused batch, if another process has written one of its runs meanwhile.

        `owners` has the epoch and the last sequence number of its runs.
        """
        for run_id, event in batch.heads.items():
            ours = (event.epoch, self._heads.get(run_id, 0))
            if run_id in self._epochs and owners.get(run_id, ours) > ours:
                return taken_over(run_id)
        return None

    def _committed_batch(self, batch: Batch) -> None:
        for run_id, event in batch.heads.items():
            self._heads[run_id], self._epochs[run_id] = event.seq, event.epoch
