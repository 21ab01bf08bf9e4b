"""Write events to the run k3f9 of a database, many at a time, and print those that are durable."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from retinue.store.sqlite import SqliteStore
from tests.store.journal_writer import JournalWriter


async def main(path: Path) -> None:
    store = SqliteStore(path)
    writer = JournalWriter(store, "k3f9")
    writer.begin()
    writer.create_agent()

    async def work() -> None:
        while True:
            seqs = [writer.note("x" * 100).seq for _ in range(3)]
            await store.flush()
            print(seqs[-1], flush=True)

    await asyncio.gather(*(work() for _ in range(8)))


asyncio.run(main(Path(sys.argv[1])))
