"""Locks on runs as advisory locks of Postgres, through which other processes send messages.

The server releases the locks of a process when its connection ends, and it ends the connection of a
process that is frozen. A process that has lost its connection locks its runs again; if another one
was faster, the epoch in the journal refuses what the first one writes. Messages are rows, and a
NOTIFY tells the owner of new ones.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from time import monotonic
from typing import Any, TypeVar

import asyncpg

from retinue.errors import RunError, StoreError
from retinue.store.postgres.address import Database
from retinue.store.postgres.database import connect, sql, store_error
from retinue.store.postgres.texts import escape, unescape

T = TypeVar("T")
Work = Callable[[asyncpg.Connection], Awaitable[Any]]

IDLE_S = 5.0  # after which a thread without locks ends
CHECK_S = 1.0  # how often a thread with locks looks at its connection
PING_S = 5.0  # how often it says something on it
FROZEN_S = 20  # after which the server ends a connection on which nothing is said
_LOST = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError)
"""Errors of a connection, with which the thread of the locks goes on."""
_SESSION = {"idle_session_timeout": f"{FROZEN_S}s", "idle_in_transaction_session_timeout": "20s"}


class PostgresRunLock:
    """A `RunLock`. The thread of the locks puts messages into its queue."""

    def __init__(self, run_locks: PostgresRunLocks, run_id: str) -> None:
        self._run_locks = run_locks
        self._run_id = run_id
        self.messages: deque[str] = deque()

    def received(self) -> Sequence[str]:
        found: list[str] = []
        while self.messages:
            found.append(self.messages.popleft())
        return found

    def release(self) -> None:
        self._run_locks.release(self._run_id)


class PostgresRunLocks:
    """`RunLocks` in the schema of one project.

    The port is synchronous, so the connection belongs to a thread, and a caller waits for one
    round trip, or for a connect. A run that begins waits in the event loop: it has to be locked
    before its first event is written. The thread starts with the first call, and ends when it has
    no locks and no work.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        digest = hashlib.sha256(database.schema.encode()).hexdigest()[:16]
        self._channel = f"retinue_{digest}"
        self._mine: dict[str, PostgresRunLock] = {}
        self._lost: set[str] = set()
        """Runs that are ours, and whose lock another session has."""
        self._work: deque[tuple[Work, Future[Any]]] = deque()
        self._guard = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake: asyncio.Event | None = None

    def acquire(self, run_id: str) -> PostgresRunLock:
        if run_id in self._mine:
            raise RunError(f"This process already works on run {run_id}.")
        lock = PostgresRunLock(self, run_id)

        async def work(connection: asyncpg.Connection) -> None:
            if not await connection.fetchval(sql("lock_run"), self._key(run_id)):
                raise RunError(
                    f"Another process works on run {run_id}; `retinue watch {run_id}` follows it,"
                    f" and `retinue cancel {run_id}` stops it."
                )
            # Messages to an earlier owner are not meant for this one.
            await connection.fetch(sql("take_messages"), run_id)
            self._mine[run_id] = lock

        self._call(work)
        return lock

    def release(self, run_id: str) -> None:
        if self._mine.pop(run_id, None) is None:
            return
        self._lost.discard(run_id)
        key = self._key(run_id)
        # Without a connection, the server has released the lock already.
        with suppress(StoreError):
            self._call(lambda connection: connection.fetchval(sql("unlock_run"), key))

    def is_held(self, run_id: str) -> bool:
        if run_id in self._mine:
            return True
        key = self._key(run_id)
        return bool(self._call(lambda connection: connection.fetchval(sql("is_locked"), key)))

    def send(self, run_id: str, message: str) -> bool:
        if not self.is_held(run_id):
            return False
        values = (run_id, escape(message), self._channel)
        self._call(lambda connection: connection.fetch(sql("send_message"), *values))
        return True

    def _key(self, run_id: str) -> int:
        name = f"{self._database.schema} {run_id}".encode()
        return int.from_bytes(hashlib.sha256(name).digest()[:7])

    def _call(self, work: Callable[[asyncpg.Connection], Awaitable[T]]) -> T:
        done: Future[T] = Future()
        with self._guard:
            self._work.append((work, done))
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._wake = asyncio.Event()
                serve = threading.Thread(
                    target=self._run,
                    args=(self._loop, self._wake),
                    name="retinue-locks",
                    daemon=True,
                )
                serve.start()
            else:
                assert self._wake is not None
                self._loop.call_soon_threadsafe(self._wake.set)
        return done.result()

    # In the thread

    def _run(self, loop: asyncio.AbstractEventLoop, wake: asyncio.Event) -> None:
        try:
            loop.run_until_complete(self._serve(wake))
        finally:
            loop.close()

    async def _serve(self, wake: asyncio.Event) -> None:
        connection: asyncpg.Connection | None = None
        said_at = monotonic()
        while True:
            while self._work:
                work, done = self._work.popleft()
                try:
                    connection = await self._connected(connection)
                    done.set_result(await work(connection))
                    said_at = monotonic()
                except _LOST as error:
                    done.set_exception(store_error(error, self._database))
                except Exception as error:
                    done.set_exception(error)
            wake.clear()
            try:
                await asyncio.wait_for(wake.wait(), CHECK_S if self._mine else IDLE_S)
            except TimeoutError:
                if self._mine:
                    if monotonic() - said_at >= PING_S and connection is not None:
                        said_at = monotonic()
                        await _ping(connection)
                    # The server was restarted, perhaps; if it is not back, the next look tries.
                    with suppress(StoreError, *_LOST):
                        connection = await self._connected(connection)
                        await self._lock_lost(connection)
                    continue
                with self._guard:
                    if self._work:
                        continue
                    self._loop = self._wake = None
                break
        if connection is not None:
            try:
                await connection.close(timeout=5)
            except _LOST:
                connection.terminate()

    async def _connected(self, connection: asyncpg.Connection | None) -> asyncpg.Connection:
        """The connection; a new one, with all locks, if there is none or it was lost."""
        if connection is not None and not connection.is_closed():
            return connection
        connection = await connect(self._database, write=True, settings=_SESSION)
        try:
            await connection.add_listener(self._channel, self._notified)
            self._lost.update(self._mine)
            await self._lock_lost(connection)
        except _LOST as error:
            connection.terminate()
            raise store_error(error, self._database) from error
        return connection

    async def _lock_lost(self, connection: asyncpg.Connection) -> None:
        """Lock runs again whose lock was lost with a connection.

        The server may not have ended that connection yet. If another process has the lock, the
        journal refuses our next event, and messages are for that process.
        """
        for run_id in self._lost & self._mine.keys():
            if await connection.fetchval(sql("lock_run"), self._key(run_id)):
                self._lost.discard(run_id)
                await self._take_messages(connection, run_id)

    def _notified(self, _: object, __: int, ___: str, run_id: object) -> None:
        if isinstance(run_id, str) and run_id in self._mine and run_id not in self._lost:
            # As work, since a connection does one thing at a time.
            self._work.append((lambda it: self._take_messages(it, run_id), Future()))
            if self._wake is not None:
                self._wake.set()

    async def _take_messages(self, connection: asyncpg.Connection, run_id: str) -> None:
        rows = await connection.fetch(sql("take_messages"), run_id)
        if (lock := self._mine.get(run_id)) is not None:
            lock.messages.extend(unescape(text) for (text,) in rows)


async def _ping(connection: asyncpg.Connection) -> None:
    """Say something. A connection that gives no answer is ended."""
    try:
        await connection.execute("SELECT 1", timeout=PING_S)
    except _LOST:
        connection.terminate()
