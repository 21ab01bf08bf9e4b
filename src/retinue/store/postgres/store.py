"""The Postgres store: one connection that writes batches with COPY, and one for reading."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, TypeVar

import asyncpg

from retinue.domain.chain import GENESIS
from retinue.domain.events import Event, RunFinished, RunStarted
from retinue.errors import StoreError
from retinue.store.batch import Batch
from retinue.store.blobs import compress, decompress
from retinue.store.group_commit import GroupCommit, taken_over
from retinue.store.postgres.address import Database
from retinue.store.postgres.database import connect, sql, store_error
from retinue.store.postgres.texts import escape, unescape_column
from retinue.store.rows import blob_refs, event_of
from retinue.store.run_rows import AGENT_COLUMNS, EVENT_COLUMNS
from retinue.store.sql_store import SqlStore

T = TypeVar("T")

_SUMMARY, _PATH = 8, 4
# A process that is frozen between two statements would keep the rows of a run locked.
_SESSION = {"idle_in_transaction_session_timeout": "20s"}
# The column that was escaped, in the rows of a query: the task of a run, the path of an agent.
_ESCAPED = {
    "runs_latest": 2, "latest_session": 2, "runs_like": 2, "runs_of_session": 2, "agents_of": 3,
}  # fmt: skip


class PostgresStore(SqlStore):
    """A `Store` in the schema of one project. Use it in the event loop that opened it.

    A run in it counts as the user's own: unlike a file, it cannot come with a cloned project.
    """

    def __init__(self, database: Database, reader: asyncpg.Connection, *, write: bool) -> None:
        """`open` is the way to get one."""
        self._database = self._place = database
        self._reader = reader
        self._reading = asyncio.Lock()
        self._closed = False
        self._writer = PostgresWriter(database) if write else None

    @classmethod
    async def open(cls, database: Database, *, write: bool = True) -> PostgresStore:
        """Connect; with `write`, create and migrate the schema where needed. Raises StoreError."""
        return cls(database, await connect(database, write=write), write=write)

    async def aclose(self) -> None:
        self._closed = True
        try:
            if self._writer is not None:
                await self._writer.aclose()
        finally:
            async with self._reading:
                await _close(self._reader)

    # Reading

    async def _fetch(self, query: str, parameters: tuple[object, ...]) -> list[Any]:
        rows = await self._read(lambda it: it.fetch(sql(query), *parameters))
        column = _ESCAPED.get(query)
        return [unescape_column(row, column) if column else row for row in map(tuple, rows)]

    async def _events(self, query: str, parameters: tuple[object, ...]) -> list[Event]:
        async def read(it: asyncpg.Connection) -> list[Event]:
            # One snapshot: a cleanup must not remove blobs between the two queries.
            async with it.transaction(isolation="repeatable_read", readonly=True):
                rows = await it.fetch(sql(query), *parameters)
                refs = (blob_refs(row[-1]) for row in rows if row[-1] is not None)
                digests = list({digest for found in refs for _, digest in found})
                stored = await it.fetch(sql("blobs_of"), digests) if digests else []
            blobs = dict.fromkeys(digests) | {
                digest: decompress(digest, data) for digest, data in stored
            }
            return [event_of(unescape_column(tuple(row), _SUMMARY), blobs) for row in rows]

        return await self._read(read)

    async def _read(self, read: Callable[[asyncpg.Connection], Coroutine[Any, Any, T]]) -> T:
        async with self._reading:
            if self._closed:
                raise StoreError(f"{self._database} is closed.")
            if self._reader.is_closed():  # The server was restarted meanwhile.
                self._reader = await connect(self._database, write=False)
            try:
                return await read(self._reader)
            except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
                raise store_error(error, self._database) from error


class PostgresWriter(GroupCommit):
    """Commits batches in the event loop: a batch is a few COPYs, which take little CPU."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._database = database
        self._connection: asyncpg.Connection | None = None
        self._task: asyncio.Task[None] | None = None

    def _write(self, batch: Batch) -> None:
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(self._try_commit(batch, before=self._task))

    async def _end(self) -> None:
        if self._task is not None:
            await self._task
        if self._connection is not None:
            await _close(self._connection)

    async def _try_commit(self, batch: Batch, before: asyncio.Task[None] | None) -> None:
        if before is not None and not before.done():
            # A cancelled `aclose` does not wait for the batch that is being written.
            await asyncio.wait([before])
        error: StoreError | None = self._error
        try:
            if error is None:
                if self._connection is None or self._connection.is_closed():
                    self._connection = await connect(self._database, write=True, settings=_SESSION)
                await self._commit(self._connection, batch)
        except StoreError as found:
            error = found
        except (asyncpg.IntegrityConstraintViolationError, asyncpg.RaiseError) as found:
            owners = await self._owners(batch)
            error = self._taken_over(batch, owners) or store_error(found, self._database)
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as found:
            error = store_error(found, self._database)
        except Exception as found:
            # A value that Postgres cannot store; without this, callers of `flush` wait for ever.
            error = StoreError(f"The journal refused a write: {found}.")
        self._on_committed(batch.count, error)

    async def _owners(self, batch: Batch) -> dict[str, tuple[int, int]]:
        """The last writers of the runs in a refused batch. Empty if they cannot be read."""
        assert self._connection is not None, "it has refused the batch"
        try:
            rows = await self._connection.fetch(sql("owners"), list(batch.heads))
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            return {}
        return {run_id: (epoch, head_seq) for run_id, epoch, head_seq in rows}

    async def _commit(self, connection: asyncpg.Connection, batch: Batch) -> None:
        async with connection.transaction():
            for event in batch.claims:
                if event.seq == 1:
                    await _insert_run(connection, event)
                elif event.epoch != self._epochs.get(event.run_id):
                    owner = (event.run_id, event.epoch - 1, event.seq - 1)
                    await _update_owned_run(connection, "take_over", (event.epoch,), owner)
                    self._heads[event.run_id] = event.seq - 1
            if batch.agents:
                rows = _rows(batch.agents, len(AGENT_COLUMNS), _PATH)
                await _copy(connection, "sub_agents", AGENT_COLUMNS, rows)
            if batch.strings:
                await _insert_blobs(connection, batch)
            if batch.events:
                rows = _rows(batch.events, len(EVENT_COLUMNS), _SUMMARY)
                await _copy(connection, "events", EVENT_COLUMNS, rows)
            if batch.events_with_blobs:
                columns = (*EVENT_COLUMNS, "blobs")
                rows = _rows(batch.events_with_blobs, len(columns), _SUMMARY)
                await _copy(connection, "events", columns, rows)
            if batch.moves:
                moves = (batch.moves[start::3] for start in range(3))
                await connection.execute(sql("move_agents"), *moves)
            for run_id, event in batch.heads.items():
                if event.type == "run.finished":
                    fact = event.fact
                    assert isinstance(fact, RunFinished), "the tag says so"
                    values = (fact.status, event.time, run_id)
                    await connection.execute(sql("finish_run"), *values)
                owner = (run_id, event.epoch, self._heads.get(run_id, 0))
                head = (event.seq, event.hash)
                await _update_owned_run(connection, "advance_head", head, owner)
                if event.type == "run.pruned":
                    await connection.execute(sql("prune_events"), run_id, event.seq)
                    await connection.execute(sql("prune_agents"), run_id)
        self._committed_batch(batch)


async def _close(connection: asyncpg.Connection) -> None:
    try:
        await connection.close(timeout=5)
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
        connection.terminate()


def _rows(values: Sequence[object], columns: int, text: int) -> Iterator[tuple[object, ...]]:
    """Rows of a flat list. The column `text` may have NUL bytes."""
    for row in zip(*[iter(values)] * columns, strict=True):
        shown = str(row[text])
        escaped = escape(shown)
        yield row if escaped is shown else (*row[:text], escaped, *row[text + 1 :])


async def _copy(
    connection: asyncpg.Connection,
    table: str,
    columns: Sequence[str],
    rows: Iterator[tuple[object, ...]],
) -> None:
    await connection.copy_records_to_table(table, records=rows, columns=columns)


async def _update_owned_run(
    connection: asyncpg.Connection,
    query: str,
    values: tuple[object, ...],
    owner: tuple[str, int, int],
) -> None:
    """Update a run if it still has this owner: run id, epoch, and the last sequence number."""
    if await connection.execute(sql(query), *values, *owner) != "UPDATE 1":
        raise taken_over(owner[0])


async def _insert_run(connection: asyncpg.Connection, event: Event) -> None:
    fact = event.fact
    assert isinstance(fact, RunStarted), "a journal begins with run.started"
    values = (event.run_id, fact.kind, escape(fact.task), event.time, event.epoch, GENESIS)
    await connection.execute(sql("insert_run"), *values)


async def _insert_blobs(connection: asyncpg.Connection, batch: Batch) -> None:
    # A cleanup must not delete them between the look and the commit.
    await connection.execute("LOCK TABLE blobs IN ROW EXCLUSIVE MODE")
    found = await connection.fetch(sql("existing_blobs"), list(batch.strings))
    existing = {digest for (digest,) in found}
    new = {
        digest: batch.compressed.get(digest) or compress(string)
        for digest, string in batch.strings.items()
        if digest not in existing
    }
    await connection.execute(sql("insert_blobs"), list(new), list(new.values()))
