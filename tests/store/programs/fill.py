"""Write to a database until its disk is full, and print what is then in it, as lines of JSON.

fill.py tmpfs DIRECTORY   mounts a tiny file system there, which needs a namespace of its own
fill.py limit DIRECTORY   forbids this process files over a small size, which needs nothing
"""

from __future__ import annotations

import asyncio
import resource
import subprocess
import sys
from pathlib import Path

import msgspec

from retinue.domain.chain import verify
from retinue.errors import StoreError
from retinue.runtime.history.audit import read_all
from retinue.store.sqlite import SqliteStore
from tests.store.journal_writer import JournalWriter

ROOM = 600_000


def told(what: str, **facts: object) -> None:
    print(msgspec.json.encode({"what": what, **facts}).decode(), flush=True)


def take(path: Path, size_bytes: int) -> Path:
    ballast = path.parent / "ballast"
    ballast.write_bytes(bytes(size_bytes))
    return ballast


def clear(directory: Path) -> None:
    for file in directory.iterdir():
        file.unlink()


async def fill(path: Path) -> int:
    """Write until it fails; the number of events that were acknowledged."""
    store = SqliteStore(path)
    writer = JournalWriter(store, "k3f9")
    writer.begin()
    acknowledged = 0
    try:
        while True:
            await store.flush()
            acknowledged = writer.note("x" * 1_000).seq - 1
    except StoreError as error:
        told("full", error=type(error).__name__, message=str(error))
    try:
        await store.aclose()
    except StoreError as error:
        told("closed", error=type(error).__name__, message=str(error))
    return acknowledged


async def look(path: Path, acknowledged: int) -> None:
    store = SqliteStore(path)
    row = await store.run("k3f9")
    events = await read_all(store, "k3f9")
    count = verify(events, head_seq=row.head_seq, head_hash=row.head_hash)
    # And it can be written again.
    JournalWriter(store, "x2").begin()
    await store.aclose()
    told("after", events=count, acknowledged=acknowledged)


async def begin(path: Path, run_id: str) -> str:
    """Make a new database where there may be too little room for it."""
    try:
        store = SqliteStore(path)
        JournalWriter(store, run_id).begin()
        await store.aclose()
    except StoreError as error:
        return type(error).__name__
    return "ok"


async def main(how: str, directory: Path) -> None:
    path = directory / "retinue.db"
    if how == "tmpfs":
        ballast = take(path, ROOM // 3)
        acknowledged = await fill(path)
        ballast.unlink()
        await look(path, acknowledged)
        for left in range(0, 200_000, 8_192):
            clear(directory)
            ballast = take(path, ROOM - left)
            first = await begin(path, "k3f9")
            ballast.unlink()
            told("new", left=left, first=first, then=await begin(path, "x2"))
    else:
        resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM, resource.RLIM_INFINITY))
        acknowledged = await fill(path)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        await look(path, acknowledged)


def mount(directory: Path) -> None:
    options = ["-t", "tmpfs", "-o", f"size={ROOM}", "tmpfs", str(directory)]
    subprocess.run(["mount", *options], check=True)


if sys.argv[1] == "tmpfs":
    mount(Path(sys.argv[2]))
asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
