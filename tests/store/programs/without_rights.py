"""Try to write to databases, as somebody who is not root: root may write to everything."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from retinue.errors import StoreError
from retinue.store.sqlite import SqliteStore
from tests.store.journal_writer import JournalWriter

NOBODY = 65_534


async def write(path: Path) -> str:
    store = SqliteStore(path)
    try:
        JournalWriter(store, "x2").begin()
        await store.flush()
    finally:
        with suppress(StoreError):
            await store.aclose()
    return "ok"


def main() -> None:
    with TemporaryDirectory() as directory:
        # Loads everything that is needed, from where nobody may not be allowed to read it.
        print(asyncio.run(write(Path(directory, "retinue.db"))), flush=True)
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    for argument in sys.argv[1:]:
        try:
            print(asyncio.run(write(Path(argument))), flush=True)
        except StoreError as error:
            print(f"{type(error).__name__}: {error}", flush=True)


main()
