"""Open each database that is named on standard input, write a run of the given name, close it."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from retinue.errors import StoreError
from retinue.store.sqlite import SqliteStore
from tests.store.journal_writer import JournalWriter


async def write(path: Path, run_id: str) -> str:
    try:
        store = SqliteStore(path)
        JournalWriter(store, run_id).begin()
        await store.aclose()
    except StoreError as error:
        return str(error)
    return "ok"


for line in sys.stdin:
    print(asyncio.run(write(Path(line.strip()), sys.argv[1])), flush=True)
