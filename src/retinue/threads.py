"""Blocking work off the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

R = TypeVar("R")


async def in_thread(work: Callable[[], R]) -> R:
    """Run `work` in a thread. If cancelled, it may go on unobserved: only for what reads."""
    # Leaner than asyncio.to_thread, which copies the context; nothing here looks at it.
    return await asyncio.get_running_loop().run_in_executor(None, work)


async def to_the_end(work: Callable[[], R]) -> R:
    """Run `work` in a thread and, even if cancelled, wait for it: for what writes.

    Who cancels an agent may remove its files next, and must not meet a write under way.
    """
    future = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        while not future.done():
            try:
                await asyncio.wait([future])
            except asyncio.CancelledError:
                # Once is enough: the first one is raised when the write is done.
                continue
        if not future.cancelled():
            # Or its failure would be reported as never looked at.
            future.exception()
        raise
