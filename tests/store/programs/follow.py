"""Follow the run k3f9 of a database and print every event as one line of JSON, until its end."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import msgspec

from retinue.runtime.core.clock import SystemClock
from retinue.runtime.history.follow import follow
from retinue.store.sqlite import SqliteStore


async def main(path: Path) -> None:
    store = SqliteStore(path, write=False)
    async for event in follow(store, SystemClock(), "k3f9", is_active=lambda _: True):
        print(msgspec.json.encode(event).decode(), flush=True)
    await store.aclose()


asyncio.run(main(Path(sys.argv[1])))
