"""The thread that writes to the SQLite store.

`group_commit` collects the events of a batch in the event loop.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue

import msgspec

from retinue.domain.chain import GENESIS
from retinue.domain.events import Event, RunFinished, RunStarted
from retinue.errors import StoreError
from retinue.store.batch import Batch
from retinue.store.blobs import compress
from retinue.store.database import connect, run_script, store_error, transaction
from retinue.store.group_commit import GroupCommit, taken_over
from retinue.store.queries import queries, script, with_rows
from retinue.store.seals import Seal, insert_seal

_MAX_ROWS = 1024  # 13 columns each; SQLite takes 32,766 placeholders


class Writer(GroupCommit):
    """Commits batches in one thread.

    A batch is a handful of multi-row INSERTs. Each call into SQLite releases the interpreter lock
    and waits for it again, up to 5 ms while the event loop is busy: next to a busy loop,
    executemany took 3,300 µs an event and this takes 90 (idle: 4 and 4).
    """

    def __init__(self, path: Path, busy_timeout_s: float, seal: Seal) -> None:
        super().__init__(path)
        self._path = path
        self._busy_timeout_s = busy_timeout_s
        self._seal = seal
        self._batches: SimpleQueue[Batch | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._file: os.stat_result | None = None
        """The database file that the thread writes to."""

    def _write(self, batch: Batch) -> None:
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="retinue-store", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                # Raised in a callback of the loop, it would leave every caller of `flush` waiting.
                why = f"{self._path} cannot be written: {error} (see `ulimit -u`, `ulimit -v`)."
                self._on_committed(0, StoreError(why))
                return
            self._thread = thread
        self._batches.put(batch)

    async def _end(self) -> None:
        self._batches.put(None)
        if self._thread is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._thread.join)

    # In the thread

    def _run(self) -> None:
        assert self._loop is not None
        connection: sqlite3.Connection | None = None
        broken: StoreError | None = None
        while (batch := self._batches.get()) is not None:
            # After an error nothing more is written: a chain with a gap is worse than a chain
            # that ends.
            if broken is None:
                try:
                    if connection is None:
                        connection = self._connect()
                    self._commit(connection, batch)
                    self._check_present()
                except sqlite3.IntegrityError as error:
                    assert connection is not None, "it has refused the batch"
                    owners = _owners(connection, batch)
                    broken = self._taken_over(batch, owners) or store_error(error, self._path)
                except sqlite3.Error as error:
                    broken = store_error(error, self._path, self._busy_timeout_s)
                except StoreError as error:
                    broken = error
                except Exception as error:
                    # A value that SQLite cannot store. Without this the thread would end, and
                    # every caller of `flush` would wait for ever.
                    broken = StoreError(f"The journal refused a write: {error}.")
            try:
                self._loop.call_soon_threadsafe(self._on_committed, batch.count, broken)
            except RuntimeError:
                # The event loop is closed, so no caller can be waiting.
                break
        if connection is not None:
            connection.close()

    def _check_present(self) -> None:
        """StoreError if the database was deleted. SQLite would write to the deleted file."""
        with suppress(OSError):
            if self._file is not None and os.path.samestat(os.stat(self._path), self._file):
                return
        raise StoreError(
            f"{self._path} was deleted or replaced while a run was recorded in it. The work that"
            " was applied to your files stays; what was recorded is lost."
        )

    def _connect(self) -> sqlite3.Connection:
        connection = connect(self._path, write=True, busy_timeout_s=self._busy_timeout_s)
        # The statement journal of a multi-row INSERT goes to a file otherwise, which caused a third
        # of all writes of a fan-out.
        connection.execute("PRAGMA temp_store = MEMORY")
        run_script(connection, script("agent_moves.sql"))
        self._file = os.stat(self._path)
        return connection

    def _commit(self, connection: sqlite3.Connection, batch: Batch) -> None:
        with transaction(connection):
            for event in batch.claims:
                if event.seq == 1:
                    _insert_run(connection, event)
                    insert_seal(connection, event.run_id, self._seal)
                elif event.epoch != self._epochs.get(event.run_id):
                    owner = (event.run_id, event.epoch - 1, event.seq - 1)
                    _update_owned_run(connection, "take_over", (event.epoch,), owner)
                    self._heads[event.run_id] = event.seq - 1
            _insert(connection, "insert_agents", 8, batch.agents)
            if batch.strings:
                _insert_blobs(connection, batch)
            _insert(connection, "insert_events", 12, batch.events)
            _insert(connection, "insert_events_with_blobs", 13, batch.events_with_blobs)
            _insert(connection, "move_agents", 3, batch.moves)
            for run_id, event in batch.heads.items():
                if event.type == "run.finished":
                    _finish_run(connection, event)
                owner = (run_id, event.epoch, self._heads.get(run_id, 0))
                _update_owned_run(connection, "advance_head", (event.seq, event.hash), owner)
                if event.type == "run.pruned":
                    connection.execute(queries()["prune_events"], (run_id, event.seq))
                    connection.execute(queries()["prune_agents"], (run_id,))
        self._committed_batch(batch)


def _update_owned_run(
    connection: sqlite3.Connection,
    query: str,
    values: tuple[object, ...],
    owner: tuple[str, int, int],
) -> None:
    """Update a run if it still has this owner: run id, epoch, and the last sequence number."""
    if connection.execute(queries()[query], (*values, *owner)).rowcount != 1:
        raise taken_over(owner[0])


def _owners(connection: sqlite3.Connection, batch: Batch) -> dict[str, tuple[int, int]]:
    """The last writers of the runs in a refused batch. Empty if they cannot be read."""
    wanted = msgspec.json.encode(list(batch.heads)).decode()
    try:
        rows = connection.execute(queries()["owners"], (wanted,)).fetchall()
    except sqlite3.Error:
        return {}
    return {run_id: (epoch, head_seq) for run_id, epoch, head_seq in rows}


def _insert(
    connection: sqlite3.Connection, query: str, columns: int, values: Sequence[object]
) -> None:
    """Insert rows, given as one flat list of values, in as few statements as possible."""
    count, start = len(values) // columns, 0
    while count:
        # Two sizes per power of two, so that a few prepared statements serve every batch size.
        chunk = min(_MAX_ROWS, count & (3 << (count.bit_length() - 2)) if count > 1 else 1)
        end = start + chunk * columns
        connection.execute(with_rows(query, columns, chunk), values[start:end])
        count, start = count - chunk, end


def _insert_blobs(connection: sqlite3.Connection, batch: Batch) -> None:
    wanted = msgspec.json.encode(list(batch.strings)).decode()
    existing = {digest for (digest,) in connection.execute(queries()["existing_blobs"], (wanted,))}
    rows: list[object] = []
    for digest, string in batch.strings.items():
        if digest not in existing:
            # Another process may have cleaned up a blob that this one wrote recently.
            rows += (digest, batch.compressed.get(digest) or compress(string))
    _insert(connection, "insert_blobs", 2, rows)


def _finish_run(connection: sqlite3.Connection, event: Event) -> None:
    fact = event.fact
    assert isinstance(fact, RunFinished), "the tag says so"
    connection.execute(queries()["finish_run"], (fact.status, event.time, event.run_id))


def _insert_run(connection: sqlite3.Connection, event: Event) -> None:
    fact = event.fact
    assert isinstance(fact, RunStarted), "a journal begins with run.started"
    connection.execute(
        queries()["insert_run"],
        (event.run_id, fact.kind, fact.task, event.time, event.epoch, GENESIS),
    )
