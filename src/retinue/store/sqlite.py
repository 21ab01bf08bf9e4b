"""The SQLite store: WAL, one writer thread, group commit.

`append` only adds to a batch. The writer thread commits it as one transaction when somebody waits
in `flush`, or after 50 ms. Readers have their own connection.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

import msgspec

from retinue.domain.chain import GENESIS
from retinue.domain.events import Event, RunFinished, RunStarted
from retinue.domain.lifecycle import State
from retinue.domain.plan.forecast import Used
from retinue.errors import ChainBroken, StoreError, UnknownRun
from retinue.ports.store import AgentRow, NewAgent, RunRow
from retinue.store.batch import Batch
from retinue.store.blobs import (
    LARGE_BYTES,
    Cut,
    Places,
    cut,
    joined,
    pack,
    read_places,
    unpack,
    write_places,
)
from retinue.store.database import BUSY_TIMEOUT_S, connect, named, statements
from retinue.store.queries import moving_script, queries, rows_of

T = TypeVar("T")

# How long an event waits that nobody waits for; and everybody, after a transaction of many. Each
# passes the interpreter lock to and fro some ten times, beside a loop that has work to do: with
# half of this a fan-out takes a fifteenth more CPU.
GROUP_COMMIT_S = 0.05
MANY = 32
_LOST = "blob {name} is gone or was changed"
_TAKEN = "Another process has taken over run {run_id}; this one must stop."
_LARGEST_CHUNK = 1024  # 13 columns each; SQLite takes 32,766 place holders
_REMEMBERED = 1024  # hashes of blobs, so that what siblings share is compressed once


class SqliteStore:
    """Implements the port `Store` on one database file. Made and used in one event loop."""

    def __init__(
        self, path: Path, *, write: bool = True, busy_timeout_s: float = BUSY_TIMEOUT_S
    ) -> None:
        """Open the file, making and migrating it when `write`. Raises StoreError.

        `busy_timeout_s` is how long another process may hold the lock.
        """
        self._path = path
        self._busy_timeout_s = busy_timeout_s
        self._reader = connect(path, write=write, busy_timeout_s=busy_timeout_s)
        self._reading = threading.Lock()
        self._writer = Writer(path, busy_timeout_s) if write else None

    # Writing

    def append(self, event: Event, new_agent: NewAgent | None = None) -> None:
        if self._writer is None:
            raise self._only_read()
        self._writer.append(event, new_agent)

    # Not a coroutine that awaits another: every child waits here for each of its turns.
    def flush(self) -> Coroutine[Any, Any, None]:
        if self._writer is None:
            raise self._only_read()
        return self._writer.flush()

    def _only_read(self) -> StoreError:
        return StoreError(f"{self._path} was opened for reading only.")

    async def aclose(self) -> None:
        try:
            if self._writer is not None:
                await self._writer.aclose()
        finally:
            # A read whose waiter was cancelled may still be under way in its thread.
            with self._reading:
                self._reader.close()

    # Reading

    async def events(self, run_id: str, *, after: int = 0, limit: int = 10_000) -> Sequence[Event]:
        return await self._events("events_after", (run_id, after, limit))

    async def agent_events(self, run_id: str, agent_id: str) -> Sequence[Event]:
        return await self._events("events_of_agent", (run_id, agent_id))

    async def runs(self, *, limit: int = 50) -> Sequence[RunRow]:
        return [_run(row) for row in await self._fetch("runs_latest", (None, limit))]

    async def run(self, run_id: str) -> RunRow:
        # No id is empty or has other letters, and SQLite takes no broken ones.
        possible = run_id.isascii() and run_id
        rows = [_run(row) for row in await self._fetch("runs_like", (run_id,))] if possible else []
        if not rows:
            raise UnknownRun(f"No run {run_id!r} in {self._path}; `retinue runs` lists them.")
        if len(rows) > 1 and rows[0].id != run_id:
            raise UnknownRun(f"{run_id!r} is the beginning of several runs; write more of it.")
        return rows[0]

    async def session(self, run_id: str | None = None) -> Sequence[RunRow]:
        if run_id is None:
            row = next(map(_run, await self._fetch("runs_latest", ("run", 1))), None)
            if row is None:
                raise UnknownRun("There is no session to go on with yet; `retinue run` begins one.")
        else:
            row = await self.run(run_id)
        if row.session is None:
            raise UnknownRun(
                f"Run {row.id} is no part of a session: a program led it (spawn, fan-out), and no"
                " model; `retinue runs` lists those that are."
            )
        found = await self._fetch("runs_of_session", (row.session,))
        rows = {columns[0]: _run(columns[:-1]) for columns in found}
        # The longest chain: two who go on at the same time make two of them.
        last, *_, earlier = found[-1]
        return [rows[name] for name in (*_names(earlier), last) if name in rows]

    async def agents(self, run_id: str) -> Sequence[AgentRow]:
        return [_agent(row) for row in await self._fetch("agents_of", (run_id,))]

    async def cached(self, cache_key: str, *, limit: int = 3) -> Sequence[tuple[str, str]]:
        rows = await self._fetch("agents_cached", (cache_key, limit))
        return [(run_id, agent_id) for run_id, agent_id in rows]

    async def cache_keys(self) -> frozenset[str]:
        return frozenset(key for (key,) in await self._fetch("cache_keys", ()))

    async def history(self, role: str, *, limit: int = 12) -> Sequence[Used]:
        rows = await self._fetch("role_history", (role, limit))
        return [
            Used(
                tokens_in=int(tokens_in),
                tokens_out=int(tokens_out),
                duration_s=float(duration_s),
                generating_s=float(generating_s),
            )
            for tokens_in, tokens_out, duration_s, generating_s in rows
        ]

    async def _fetch(self, query: str, parameters: tuple[object, ...]) -> list[Any]:
        return await self._in_thread(lambda: self._rows(query, parameters))

    async def _events(self, query: str, parameters: tuple[object, ...]) -> list[Event]:
        return await self._in_thread(lambda: self._whole_events(query, parameters))

    def _whole_events(self, query: str, parameters: tuple[object, ...]) -> list[Event]:
        # One view of the file: what an event needs must not be cleaned away in between.
        self._reader.execute("BEGIN")
        try:
            rows = self._rows(query, parameters)
            places = (_places(row[-1]) for row in rows if row[-1] is not None)
            wanted = list({digest for found in places for _, digest in found})
            kept = self._rows("blobs_of", (msgspec.json.encode(wanted).decode(),)) if wanted else ()
        finally:
            # SQLite has ended it already where the disk fails.
            if self._reader.in_transaction:
                self._reader.execute("COMMIT")
        blobs = dict.fromkeys(wanted) | {digest: unpack(digest, data) for digest, data in kept}
        return [_event(row, blobs) for row in rows]

    async def _in_thread(self, read: Callable[[], list[T]]) -> list[T]:
        return await asyncio.get_running_loop().run_in_executor(None, self._alone, read)

    def _alone(self, read: Callable[[], list[T]]) -> list[T]:
        with self._reading:
            try:
                return read()
            except (sqlite3.Error, UnicodeDecodeError) as error:
                raise named(error, self._path, self._busy_timeout_s) from error

    def _rows(self, query: str, parameters: tuple[object, ...]) -> list[Any]:
        try:
            return self._reader.execute(queries()[query], parameters).fetchall()
        except sqlite3.OperationalError as error:
            if "decode to UTF-8" not in str(error):
                raise
        # Somebody has tampered with a text. An audit has to read on and say which.
        self._reader.text_factory = _text
        return self._reader.execute(queries()[query], parameters).fetchall()


class Writer:
    """The one thread that writes.

    A batch goes in as multi-row INSERTs, a handful of calls in all. Each call into SQLite gives up
    the interpreter lock and has to wait for it again, up to 5 ms while the event loop is busy: with
    a busy loop beside it, executemany took 3,300 µs an event and this takes 90 (idle: 4 and 4).
    """

    def __init__(self, path: Path, busy_timeout_s: float) -> None:
        self._path = path
        self._busy_timeout_s = busy_timeout_s
        self._batch = Batch()
        self._recent: dict[str, None] = {}
        self._batches: SimpleQueue[Batch | None] = SimpleQueue()
        self._writing = False
        self._due = False
        self._closing = False
        self._appended = 0
        self._committed = 0
        self._not_before = 0.0
        self._error: StoreError | None = None
        self._heads: dict[str, int] = {}
        self._epochs: dict[str, int] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._wanted = False
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._thread: threading.Thread | None = None

    # In the event loop

    def append(self, event: Event, new_agent: NewAgent | None) -> None:
        if self._timer is None:
            self._loop = asyncio.get_running_loop()
            self._timer = self._loop.call_later(GROUP_COMMIT_S, self._hand_over)
        large = len(event.payload) >= LARGE_BYTES
        self._batch.add(event, new_agent, self._cut(event) if large else None)
        self._appended += 1

    def _cut(self, event: Event) -> Cut | None:
        """Its payload without the large strings, if it has any; those that may be new are packed.

        Here and not in the thread, which would wait for the interpreter lock after each of them.
        """
        found = cut(bytes(event.payload))
        for digest, string in found.strings.items():
            if self._recent.pop(digest, self) is self:
                self._batch.packed[digest] = pack(string)
                if len(self._recent) >= _REMEMBERED:
                    del self._recent[next(iter(self._recent))]
            self._recent[digest] = None
        return found if found.places else None

    async def flush(self) -> None:
        if self._error is not None:
            raise self._error
        if self._committed == self._appended:
            return
        if self._closing:
            raise StoreError(f"{self._path} is closed.")
        assert self._loop is not None
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append((self._appended, waiter))
        if not self._wanted:
            # At the end of this round of the loop, so that everybody who is ready to run now gets
            # into the same transaction; and not right after a large one, so that a busy loop does
            # not pay for more transactions than it needs.
            self._wanted = True
            self._loop.call_at(self._not_before, self._hand_over)
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
            self._give()
            self._batches.put(None)
            if self._thread is not None:
                await asyncio.get_running_loop().run_in_executor(None, self._thread.join)

    def _hand_over(self) -> None:
        """Have all that there is written: when the thread is free, so that it is one batch."""
        self._wanted = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._due = self._writing
        if not self._due:
            self._give()

    def _give(self) -> None:
        if not self._batch.count:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="retinue-store", daemon=True)
            self._thread.start()
        self._writing = True
        self._batches.put(self._batch)
        self._batch = Batch()

    def _settle(self, count: int, error: StoreError | None) -> None:
        assert self._loop is not None
        if count >= MANY:
            self._not_before = self._loop.time() + GROUP_COMMIT_S
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
        if self._due:
            self._hand_over()

    # In the thread

    def _work(self) -> None:
        assert self._loop is not None
        connection: sqlite3.Connection | None = None
        broken: StoreError | None = None
        while (batch := self._batches.get()) is not None:
            # After an error nothing more is written: a chain with a hole would be worse than a
            # chain that ends.
            if broken is None:
                try:
                    if connection is None:
                        connection = self._connect()
                    self._commit(connection, batch)
                except sqlite3.Error as error:
                    broken = named(error, self._path, self._busy_timeout_s)
                except StoreError as error:
                    broken = error
                except Exception as error:
                    # A value that cannot be stored. Without this the thread would end, and
                    # everybody in `flush` would wait for ever.
                    broken = StoreError(f"The journal refused a write: {error}.")
            try:
                self._loop.call_soon_threadsafe(self._settle, batch.count, broken)
            except RuntimeError:
                # The loop is gone, and with it everybody who could be waiting.
                break
        if connection is not None:
            connection.close()

    def _connect(self) -> sqlite3.Connection:
        connection = connect(self._path, write=True, busy_timeout_s=self._busy_timeout_s)
        # What a statement of many rows may have to take back goes to a file otherwise, which made
        # a third of all writes of a fan-out.
        connection.execute("PRAGMA temp_store = MEMORY")
        for statement in statements(moving_script()):
            connection.execute(statement)
        return connection

    def _commit(self, connection: sqlite3.Connection, batch: Batch) -> None:
        connection.execute("BEGIN IMMEDIATE")
        try:
            for event in batch.owned:
                if event.seq == 1:
                    _insert_run(connection, event)
                elif event.epoch != self._epochs.get(event.run_id):
                    self._take_over(connection, event)
            _insert(connection, "insert_agents", 8, batch.agents)
            if batch.strings:
                _insert_blobs(connection, batch)
            _insert(connection, "insert_events", 12, batch.events)
            _insert(connection, "insert_cut_events", 13, batch.cut_events)
            _insert(connection, "move_agents", 3, batch.moves)
            for run_id, event in batch.heads.items():
                if event.type == "run.finished":
                    _finish_run(connection, event)
                self._advance(connection, run_id, event)
                if event.type == "run.pruned":
                    connection.execute(queries()["prune_events"], (run_id, event.seq))
                    connection.execute(queries()["prune_agents"], (run_id,))
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        for run_id, event in batch.heads.items():
            self._heads[run_id], self._epochs[run_id] = event.seq, event.epoch

    def _take_over(self, connection: sqlite3.Connection, event: Event) -> None:
        before = event.seq - 1
        done = connection.execute(
            queries()["take_over"], (event.epoch, event.run_id, event.epoch - 1, before)
        )
        if done.rowcount != 1:
            raise StoreError(_TAKEN.format(run_id=event.run_id))
        self._heads[event.run_id] = before

    def _advance(self, connection: sqlite3.Connection, run_id: str, event: Event) -> None:
        before = self._heads.get(run_id, 0)
        done = connection.execute(
            queries()["advance_head"], (event.seq, event.hash, run_id, event.epoch, before)
        )
        if done.rowcount != 1:
            raise StoreError(_TAKEN.format(run_id=run_id))


def _insert(
    connection: sqlite3.Connection, query: str, columns: int, values: Sequence[object]
) -> None:
    """Insert all rows, whose values follow each other, in as few statements as can be."""
    count, begin = len(values) // columns, 0
    while count:
        # Two sizes to an octave, so that a few prepared statements serve every size of batch.
        chunk = min(_LARGEST_CHUNK, count & (3 << (count.bit_length() - 2)) if count > 1 else 1)
        end = begin + chunk * columns
        connection.execute(rows_of(query, columns, chunk), values[begin:end])
        count, begin = count - chunk, end


def _insert_blobs(connection: sqlite3.Connection, batch: Batch) -> None:
    wanted = msgspec.json.encode(list(batch.strings)).decode()
    there = {digest for (digest,) in connection.execute(queries()["blobs_there"], (wanted,))}
    rows: list[object] = []
    for digest, string in batch.strings.items():
        if digest not in there:
            # One that was written lately may have been cleaned away since, by another process.
            rows += (digest, batch.packed.get(digest) or pack(string))
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


# Columns of a table take values of any type, and a tampered one may hold some other than ours.

_EVENT_TYPES = {
    (int, str, str, parent, int, int, float, str, int, str, str, str, places)
    for parent in (str, type(None))
    for places in (str, type(None))
}
_TYPES_MENDED = (str, str, str, int, int, float, str, int, str, str)
_RUN_TYPES = [
    (str, str, str, *outcome, int, int, str, int, int, session)
    for outcome in ((type(None), float, type(None)), (str, float, float))
    for session in (str, type(None))
]
_AGENT_TYPES = [(str, str, parent, str, str, str, str) for parent in (str, type(None))]


def _text(data: bytes) -> str | bytes:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def _places(text: object) -> Places:
    try:
        found = read_places(text) if isinstance(text, str) else []
    except msgspec.DecodeError:
        return []
    return found if write_places(found) == text else []


def _event(row: Any, blobs: Mapping[str, bytes | None]) -> Event:
    found = _places(row[-1]) if row[-1] is not None else []
    if tuple(map(type, row)) not in _EVENT_TYPES or (row[-1] is not None and not found):
        row = _mended(row)
    (
        seq, run_id, agent_id, parent, attempt, epoch, time, kind, version, summary, payload,
        digest, _,
    ) = row  # fmt: skip
    whole = payload.encode()
    if found:
        lost = [_LOST.format(name=name[:12]) for _, name in found if blobs[name] is None]
        strings = {name: blobs[name] or lost[0].encode() for _, name in found}
        whole = joined(whole, found, strings)
        digest = lost[0] if lost else digest
    return Event(
        seq=seq,
        run_id=run_id,
        agent_id=agent_id,
        parent_agent_id=parent,
        attempt=attempt,
        epoch=epoch,
        time=time,
        type=kind,
        version=version,
        summary=summary,
        payload=msgspec.Raw(whole),
        hash=digest,
    )


def _mended(row: Sequence[Any]) -> tuple[Any, ...]:
    """An event that can be shown, and with a hash that no chain has: an audit will name it."""
    # Never the number: it is what pages are cut by.
    seq, *columns, _, _ = row
    mended = map(_as, _TYPES_MENDED, columns)
    return seq, *mended, "", None


def _as(kind: type, value: object) -> object:
    if type(value) is kind:
        return value
    return str(value) if kind is str else 0


def _run(row: Any) -> RunRow:
    if tuple(map(type, row)) not in _RUN_TYPES:
        raise ChainBroken(f"The row of run {row[0]} is not what was written.")
    (
        run_id, kind, task, status, started, finished, agents, head_seq, head_hash, epoch, pruned,
        session,
    ) = row  # fmt: skip
    return RunRow(
        id=run_id,
        kind=kind,
        task=task,
        status=status,
        started_at=started,
        finished_at=finished,
        agents=agents,
        head_seq=head_seq,
        head_hash=head_hash,
        epoch=epoch,
        session=session,
        pruned=bool(pruned),
    )


def _names(earlier: object) -> Sequence[str]:
    if earlier is None:
        return ()
    try:
        return msgspec.json.decode(str(earlier), type=tuple[str, ...])
    except msgspec.DecodeError:
        raise ChainBroken("The first event of a run is not what was written.", seq=1) from None


def _agent(row: Any) -> AgentRow:
    run_id, agent_id, parent, path, role, state, context_json = row
    if tuple(map(type, row)) not in _AGENT_TYPES or state not in list(State):
        raise ChainBroken(f"The row of agent {agent_id} is not what was written.")
    return AgentRow(
        run_id=run_id,
        id=agent_id,
        parent_agent_id=parent,
        path=path,
        role=role,
        state=State(state),
        context_json=context_json,
    )
