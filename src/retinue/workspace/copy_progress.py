"""How far the making or the removal of a large working copy is."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from retinue.threads import in_thread

EVERY_S = 1.0

OnProgress = Callable[[str], None]


@asynccontextmanager
async def reported(
    describe: Callable[[], str], on_progress: OnProgress | None, *, every_s: float = EVERY_S
) -> AsyncIterator[None]:
    """While inside, report what `describe` says, now and then. It runs in a thread.

    The last report is empty.
    """
    if on_progress is None:
        yield
        return
    reporter = asyncio.create_task(_report(describe, on_progress, every_s))
    try:
        yield
    finally:
        reporter.cancel()
        await asyncio.wait({reporter})
        on_progress("")


async def _report(describe: Callable[[], str], on_progress: OnProgress, every_s: float) -> None:
    pause_s = every_s
    while True:
        await asyncio.sleep(pause_s)
        began = time.monotonic()
        if text := await in_thread(describe):
            on_progress(text)
        # Counting may take a twentieth of the time.
        pause_s = max(every_s, 20 * (time.monotonic() - began))


def copying(folder: str, clock: Callable[[], float] = time.monotonic) -> Callable[[], str]:
    """Describes how far `make_copy` is: `copied 1,200 of 60,000 files, 49s left`."""
    began = clock()

    def describe() -> str:
        try:
            with open(os.path.join(folder, "index"), "rb") as index:
                total = int.from_bytes(index.read(12)[8:], "big")  # The third word of its header.
        except OSError:
            return ""  # The files are not listed yet.
        count = _count(folder)
        left = f", {(clock() - began) / count * (total - count):.0f}s left" if count else ""
        return f"copied {count:,} of {total:,} files{left}"

    return describe


def removing(folder: str, clock: Callable[[], float] = time.monotonic) -> Callable[[], str]:
    """Describes how far the removal of a copy is: `removing the copy, 900 files, 3s left`."""
    first: tuple[float, int] | None = None

    def describe() -> str:
        nonlocal first
        now, count = clock(), _count(folder)
        began, before = first = first or (now, count)
        left = f", {(now - began) / (before - count) * count:.0f}s left" if count < before else ""
        return f"removing the copy, {count:,} files{left}" if count else ""

    return describe


def _count(folder: str) -> int:
    return sum(len(names) for _, _, names in os.walk(os.path.join(folder, "copy")))
