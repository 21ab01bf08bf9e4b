"""Runs blocking work in threads, off the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from contextvars import copy_context
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


async def in_thread(work: Callable[[], R]) -> R:
    """Run `work` in a thread. For reads only: a cancelled call returns while `work` still runs."""
    # Cheaper than asyncio.to_thread, which copies the context; no caller reads context variables.
    return await asyncio.get_running_loop().run_in_executor(None, work)


async def in_thread_shielded(work: Callable[[], R]) -> R:
    """Run `work` in a thread and wait for its end, even if cancelled. For writes.

    The canceller may remove the agent's files next, which must not race with a write.
    """
    future = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        while not future.done():
            try:
                await asyncio.wait([future])
            except asyncio.CancelledError:
                # The first cancellation is raised below, when the write is done.
                continue
        if not future.cancelled():
            # Retrieve it, or asyncio logs "exception was never retrieved".
            future.exception()
        raise


def threaded(
    work: Callable[P, R], run: Callable[[Callable[[], R]], Awaitable[R]] = in_thread
) -> Callable[P, Coroutine[Any, Any, R]]:
    """Decorator: turn a blocking function into a coroutine function, by `in_thread`."""

    @wraps(work)
    async def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return await run(partial(work, *args, **kwargs))

    return call


def threaded_shielded(work: Callable[P, R]) -> Callable[P, Coroutine[Any, Any, R]]:
    """Decorator like `threaded`, by `in_thread_shielded`."""
    return threaded(work, in_thread_shielded)


async def in_daemon_thread(work: Callable[[], R]) -> R:
    """Run `work` in a daemon thread. For work that may never return.

    A cancelled call returns at once. The thread continues, and does not keep the process alive.
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
            error = RuntimeError(repr(stop))  # Futures reject StopIteration.
        except Exception as raised:
            error = raised
        except BaseException as raised:
            # Such as SystemExit: a tool must not end the program.
            error = RuntimeError(f"it tried to exit the program: {raised!r}")
        with suppress(RuntimeError):  # The loop may be closed.
            loop.call_soon_threadsafe(settle, error, result)

    threading.Thread(target=run, name="retinue-tool", daemon=True).start()
    return await done
