"""The SQLite store: WAL, one writer thread with group commit, and a connection for reading."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from retinue.domain.events import Event
from retinue.store.blobs import decompress
from retinue.store.database import BUSY_TIMEOUT_S, connect, store_error
from retinue.store.queries import queries
from retinue.store.rows import blob_refs, decode_text, event_of
from retinue.store.seals import Seal, define_own_runs, no_seal
from retinue.store.sql_store import SqlStore
from retinue.store.writer import Writer

T = TypeVar("T")


class SqliteStore(SqlStore):
    """A `Store` in one database file. Create and use it in one event loop."""

    def __init__(
        self,
        path: Path,
        *,
        write: bool = True,
        seal: Seal = no_seal,
        busy_timeout_s: float = BUSY_TIMEOUT_S,
    ) -> None:
        """Open the file; with `write`, create and migrate it where needed. Raises StoreError.

        `seal` seals new runs, and tells the user's own runs from others. `busy_timeout_s` is how
        long another process may hold the lock.
        """
        self._path = self._place = path
        self._busy_timeout_s = busy_timeout_s
        self._reader = connect(path, write=write, busy_timeout_s=busy_timeout_s)
        define_own_runs(self._reader, seal)
        self._reading = threading.Lock()
        self._writer = Writer(path, busy_timeout_s, seal) if write else None

    async def aclose(self) -> None:
        try:
            if self._writer is not None:
                await self._writer.aclose()
        finally:
            # The thread of a cancelled read may still be using the connection.
            with self._reading:
                self._reader.close()

    # Reading

    async def _fetch(self, query: str, parameters: tuple[object, ...]) -> list[Any]:
        return await self._in_thread(lambda: self._rows(query, parameters))

    async def _events(self, query: str, parameters: tuple[object, ...]) -> list[Event]:
        return await self._in_thread(lambda: self._restore_blobs(query, parameters))

    def _restore_blobs(self, query: str, parameters: tuple[object, ...]) -> list[Event]:
        # One transaction: a cleanup must not remove blobs between the two queries.
        self._reader.execute("BEGIN")
        try:
            rows = self._rows(query, parameters)
            refs = (blob_refs(row[-1]) for row in rows if row[-1] is not None)
            digests = list({digest for found in refs for _, digest in found})
            stored = (
                self._rows("blobs_of", (msgspec.json.encode(digests).decode(),)) if digests else ()
            )
        finally:
            # After a disk error SQLite has already ended the transaction.
            if self._reader.in_transaction:
                self._reader.execute("COMMIT")
        blobs = dict.fromkeys(digests) | {
            digest: decompress(digest, data) for digest, data in stored
        }
        return [event_of(row, blobs) for row in rows]

    async def _in_thread(self, read: Callable[[], list[T]]) -> list[T]:
        return await asyncio.get_running_loop().run_in_executor(None, self._locked, read)

    def _locked(self, read: Callable[[], list[T]]) -> list[T]:
        with self._reading:
            try:
                return read()
            except (sqlite3.Error, UnicodeDecodeError) as error:
                raise store_error(error, self._path, self._busy_timeout_s) from error

    def _rows(self, query: str, parameters: tuple[object, ...]) -> list[Any]:
        try:
            return self._reader.execute(queries()[query], parameters).fetchall()
        except sqlite3.OperationalError as error:
            if "decode to UTF-8" not in str(error):
                raise
        # A text was tampered with. An audit must read on and report which.
        self._reader.text_factory = decode_text
        return self._reader.execute(queries()[query], parameters).fetchall()
