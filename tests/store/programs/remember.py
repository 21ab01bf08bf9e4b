"""Store a number of memories in a database, under a name, and search for each."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from retinue.runtime.core.clock import SystemClock
from retinue.store.memory import SqliteMemoryStore


async def main(path: Path, name: str, count: int) -> None:
    memory_store = SqliteMemoryStore(path, SystemClock(), seal=str)
    for number in range(count):
        text = f"heron {number} of {name}"
        kept = await memory_store.remember(kind="note", text=text, run_id=name, agent_id="a0")
        found = await memory_store.recall(text, limit=2 * count)
        assert (kept, text) in [(memory.id, memory.text) for memory in found]
    await memory_store.aclose()
    print("ok")


asyncio.run(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
