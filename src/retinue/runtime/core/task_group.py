"""Where tasks are born: nothing started in a nursery outlives it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from types import TracebackType
from typing import Any, TypeVar

A = TypeVar("A")
T = TypeVar("T")


class Nursery(asyncio.TaskGroup):
    """A TaskGroup that raises errors as they are, without a group around them.

    Our tasks turn every failure of theirs into a result. What gets through (a broken store, a bug)
    hits all of them alike, so the first tells as much as the group would; and an error of the body
    is the caller's own, and must reach them as they raised it.
    """

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await super().__aexit__(kind, error, trace)
        except BaseExceptionGroup as several:
            # Returning lets an error of the body go on as it was raised.
            if several.exceptions[0] is not error:
                raise several.exceptions[0] from None


async def side_by_side(work: Callable[[A], Awaitable[T]], items: Sequence[A], most: int) -> list[T]:
    """What comes of `work` for each item, in their order: `most` at a time, the next as one ends.

    Ten thousand items cost no more memory than those under way.
    """
    done: dict[int, T] = {}
    waiting = iter(enumerate(items))

    async def worker() -> None:
        task = asyncio.current_task()
        assert task is not None
        for index, item in waiting:
            done[index] = await work(item)
            if task.cancelling():
                break  # Somebody's model or tool has swallowed it. Nothing more is begun.

    async with Nursery() as nursery:
        for _ in range(min(most, len(items))):
            nursery.create_task(worker())
    return [done[index] for index in range(len(items))]


async def to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Await `work` even while being cancelled, however often; it must be bounded itself.

    A shield alone lets the second cancellation through, and what it shields outlives its caller.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    result = task.result()
    if cancelled is not None:
        raise cancelled
    return result
