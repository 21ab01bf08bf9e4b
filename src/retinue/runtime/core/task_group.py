"""Task groups, a bounded parallel map, and work that completes even when cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from types import TracebackType
from typing import Any, TypeVar

from retinue.errors import RunSuspended

A = TypeVar("A")
T = TypeVar("T")


class TaskGroup(asyncio.TaskGroup):
    """An `asyncio.TaskGroup` that raises the first error itself, not an ExceptionGroup.

    Tasks of the runtime turn their failures into results. An error that gets through (a broken
    store, a bug) hits all tasks alike, so the first one tells as much as the group would. An error
    of the body is the caller's own and reaches the caller as it was raised.
    """

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await super().__aexit__(kind, error, trace)
        except BaseExceptionGroup as group:
            # Returning normally lets Python re-raise the error of the body.
            if group.exceptions[0] is not error:
                raise group.exceptions[0] from None


async def map_concurrently(
    work: Callable[[A], Awaitable[T]], items: Sequence[A], limit: int
) -> list[T]:
    """Await `work(item)` for each item, at most `limit` at a time. Results keep the items' order.

    Memory grows with `limit`, not with the number of items.

    An item that raises RunSuspended keeps its place, so that a model endpoint that is gone does not
    use up all items. The others continue. Then RunSuspended is raised, with their results.
    """
    done: dict[int, T] = {}
    suspended: list[RunSuspended] = []
    waiting = iter(enumerate(items))

    async def worker() -> None:
        task = asyncio.current_task()
        assert task is not None
        for index, item in waiting:
            try:
                done[index] = await work(item)
            except RunSuspended as error:
                suspended.append(error)
                break
            if task.cancelling():
                break  # A model or a tool swallowed the cancellation: start nothing more.

    async with TaskGroup() as tasks:
        for _ in range(min(limit, len(items))):
            tasks.create_task(worker())
    if suspended:
        results = [done[index] for index in sorted(done)]
        raise RunSuspended(str(suspended[0]), run_id=suspended[0].run_id, results=results)
    return [done[index] for index in range(len(items))]


async def run_to_completion(work: Coroutine[Any, Any, T]) -> T:
    """Await `work` even if the caller is cancelled, however often; `work` must be bounded itself.

    `asyncio.shield` alone lets the second cancellation through, and the shielded task outlives its
    caller.
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
