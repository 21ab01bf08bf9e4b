"""Blocking work off the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
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


async def let_go(work: Callable[[], R]) -> R:
    """Run `work` in a thread of its own that holds nobody up: for what may never come back.

    If cancelled, it goes on unobserved, and the program ends without it.
    """
    loop, context = asyncio.get_running_loop(), copy_context()
    done: asyncio.Future[R] = loop.create_future()

    def settle(error: Exception | None, result: R | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(result)  # type: ignore[arg-type]
        else:
            done.set_exception(error)

    def run() -> None:
        error: Exception | None = None
        result: R | None = None
        try:
            result = context.run(work)
        except StopIteration as stop:
            error = RuntimeError(repr(stop))  # A future takes none.
        except Exception as raised:
            error = raised
        except BaseException as raised:
            # Such as sys.exit(), which is meant for a program of its own.
            error = RuntimeError(f"it wanted to end the program: {raised!r}")
        with suppress(RuntimeError):  # The loop may be gone.
            loop.call_soon_threadsafe(settle, error, result)

    threading.Thread(target=run, name="retinue-tool", daemon=True).start()
    return await done
