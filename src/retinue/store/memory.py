"""Memories that outlive runs, stored in the same file as the journal.

A query is a list of words. Where SQLite has FTS5, a full-text index looks them up. Without FTS5, or
where the index finds nothing, LIKE does: the index ignores punctuation and emoji, and words in
languages written without spaces.
"""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from retinue.errors import StoreError, UsageError
from retinue.ports.clock import Clock
from retinue.ports.store import MemoryEntry
from retinue.store.database import (
    BUSY_TIMEOUT_S,
    connect,
    run_script,
    store_error,
    transaction,
)
from retinue.store.queries import queries, script
from retinue.store.seals import Seal, define_own_runs, insert_seal, no_seal

R = TypeVar("R")

MAX_QUERY_CHARS = 2_000
MAX_QUERY_WORDS = 32
_KIND = re.compile(r"[a-z_]{1,40}")
_TRIGGERS = ("memories_index_insert", "memories_index_delete", "memories_index_update")


class SqliteMemoryStore:
    """A `MemoryStore` in one database file, with its own connection and thread.

    The first call opens the file, and creates it if it is missing. `seal` tells the user's own runs
    from others, whose memories are never recalled. `full_text=False` searches without FTS5, as on a
    build of SQLite that lacks it.
    """

    def __init__(
        self,
        path: Path,
        clock: Clock,
        *,
        seal: Seal = no_seal,
        full_text: bool = True,
        busy_timeout_s: float = BUSY_TIMEOUT_S,
    ) -> None:
        self._path = path
        self._clock = clock
        self._seal = seal
        self._full_text = full_text
        self._busy_timeout_s = busy_timeout_s
        # One thread: calls never overlap, and closing comes last.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="retinue-memory")
        self._connection: sqlite3.Connection | None = None
        self._closed = False

    async def remember(self, *, kind: str, text: str, run_id: str, agent_id: str) -> int:
        check_memory(kind, text)
        row = (kind, storable(text), self._clock.now(), run_id, agent_id)
        return await self._in_thread(lambda connection: _insert(connection, row, self._seal))

    async def recall(
        self, query: str, *, kind: str | None = None, limit: int = 5
    ) -> list[MemoryEntry]:
        words = memory_words(query)
        rest = (None if kind is None else storable(kind), limit)
        rows = await self._in_thread(lambda connection: self._select(connection, words, rest))
        names = MemoryEntry.__struct_fields__
        return [MemoryEntry(**dict(zip(names, row, strict=True))) for row in rows]

    async def aclose(self) -> None:
        """Close the file once pending calls are done."""
        if self._closed:
            return
        self._closed = True
        closing = self._thread.submit(self._close)
        self._thread.shutdown(wait=False)
        await asyncio.shield(asyncio.wrap_future(closing))

    async def _in_thread(self, work: Callable[[sqlite3.Connection], R]) -> R:
        if self._closed:
            raise StoreError(f"{self._path} is closed.")
        # A cancelled call does not interrupt the thread: a write that began completes.
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._run, work)

    # In the thread

    def _run(self, work: Callable[[sqlite3.Connection], R]) -> R:
        try:
            if self._connection is None:
                self._connection = self._open()
            return work(self._connection)
        except sqlite3.Error as error:
            raise store_error(error, self._path, self._busy_timeout_s) from error

    def _open(self) -> sqlite3.Connection:
        connection = connect(self._path, write=True, busy_timeout_s=self._busy_timeout_s)
        try:
            define_own_runs(connection, self._seal)
            self._full_text = _switch_index(connection, wanted=self._full_text)
        except BaseException:
            connection.close()
            raise
        return connection

    def _select(
        self, connection: sqlite3.Connection, words: Sequence[str], rest: tuple[object, ...]
    ) -> list[Any]:
        def rows(query: str, *parameters: object) -> list[Any]:
            return connection.execute(queries()[query], (*parameters, *rest)).fetchall()

        if not words:
            return rows("memories_latest")
        found = rows("memories_matching", _expression(words)) if self._full_text else []
        return found or rows("memories_alike", _patterns(words))

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()


def check_memory(kind: str, text: str) -> None:
    """UsageError for a kind or a text that is not a memory's."""
    if not _KIND.fullmatch(kind):
        raise UsageError(f"A kind of memory is 1 to 40 characters of a-z and _, not {kind!r}.")
    if not text.strip():
        raise UsageError("There is nothing to remember: the text is empty.")


def _switch_index(connection: sqlite3.Connection, *, wanted: bool) -> bool:
    """Create or drop the triggers that maintain the full-text index; return whether it exists."""

    def is_true(query: str) -> bool:
        return bool(connection.execute(queries()[query]).fetchone()[0])

    possible = wanted and is_true("has_full_text")
    if possible != is_true("full_text_kept"):
        drops = "".join(f"DROP TRIGGER IF EXISTS {name};\n" for name in _TRIGGERS)
        with transaction(connection):
            run_script(connection, script("full_text.sql") if possible else drops)
    return possible


def _insert(
    connection: sqlite3.Connection, row: tuple[str, str, float, str, str], seal: Seal
) -> int:
    with transaction(connection):
        insert_seal(connection, row[3], seal)
        memory_id = connection.execute(queries()["insert_memory"], row).lastrowid
    assert memory_id is not None
    return memory_id


def storable(text: str) -> str:
    """`text` without lone surrogates, which have no UTF-8, and NULs, which end a text in SQL."""
    return text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")


def memory_words(query: str) -> list[str]:
    return storable(query[:MAX_QUERY_CHARS]).split()[:MAX_QUERY_WORDS]


def _expression(words: Sequence[str]) -> str:
    """An FTS5 expression for any of the words, quoted; the last word matches as a prefix."""
    return " OR ".join('"' + word.replace('"', '""') + '"' for word in words) + "*"


def _patterns(words: Sequence[str]) -> str:
    """LIKE patterns with `\\` as the escape character, as a JSON array."""
    return msgspec.json.encode(
        ["%" + re.sub(r"([%_\\])", r"\\\1", word) + "%" for word in words]
    ).decode()
