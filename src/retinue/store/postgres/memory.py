"""Memories in Postgres: words are looked up in a full-text index, then by LIKE."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import asyncpg

from retinue.errors import StoreError
from retinue.ports.clock import Clock
from retinue.ports.store import MemoryEntry
from retinue.store.memory import check_memory, memory_words, storable
from retinue.store.postgres.address import Database
from retinue.store.postgres.database import connect, sql, store_error


class PostgresMemoryStore:
    """A `MemoryStore` in the schema of one project. The first call connects."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._connection: asyncpg.Connection | None = None
        self._calling = asyncio.Lock()
        self._closed = False

    async def remember(self, *, kind: str, text: str, run_id: str, agent_id: str) -> int:
        check_memory(kind, text)
        row = (kind, storable(text), self._clock.now(), run_id, agent_id)
        ((memory_id,),) = await self._fetch("insert_memory", *row)
        return int(memory_id)

    async def recall(
        self, query: str, *, kind: str | None = None, limit: int = 5
    ) -> list[MemoryEntry]:
        words = memory_words(query)
        rest = (None if kind is None else storable(kind), limit)
        rows: list[Any] = []
        if not words:
            rows = await self._fetch("memories_latest", *rest)
        elif expression := _expression(words):
            rows = await self._fetch("memories_matching", expression, *rest)
        if words and not rows:
            patterns = ["%" + re.sub(r"([%_\\])", r"\\\1", word) + "%" for word in words]
            rows = await self._fetch("memories_alike", patterns, *rest)
        names = MemoryEntry.__struct_fields__
        return [MemoryEntry(**dict(zip(names, row, strict=True))) for row in rows]

    async def aclose(self) -> None:
        self._closed = True
        if self._connection is not None:
            self._connection.terminate()

    async def _fetch(self, query: str, *parameters: object) -> list[Any]:
        async with self._calling:
            if self._closed:
                raise StoreError(f"{self._database} is closed.")
            try:
                if self._connection is None or self._connection.is_closed():
                    self._connection = await connect(self._database, write=True)
                return list(await self._connection.fetch(sql(query), *parameters))
            except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
                raise store_error(error, self._database) from error


def _expression(words: list[str]) -> str:
    """A tsquery for any of the words; the last one matches as a prefix."""
    plain = [" ".join(re.findall(r"\w+", word)) for word in words]
    parts = [f"'{part}'" for part in " ".join(plain).split()]
    return " | ".join(parts) + ":*" if parts else ""
