"""Task groups, bounded parallel maps, and work that completes despite cancellation."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from retinue.runtime.core.task_group import TaskGroup, map_concurrently, run_to_completion


async def test_first_error_of_a_task_is_raised_without_a_group() -> None:
    async def fail() -> None:
        raise ValueError("broken")

    async def body() -> None:
        async with TaskGroup() as tasks:
            tasks.create_task(fail())
            await asyncio.Event().wait()

    with pytest.raises(ValueError, match="broken"):
        await body()


async def test_error_of_the_body_is_raised_as_it_is() -> None:
    cancelled = asyncio.Event()

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    error = ValueError("of the body")

    async def body() -> None:
        async with TaskGroup() as tasks:
            tasks.create_task(wait())
            await asyncio.sleep(0)
            raise error

    with pytest.raises(ValueError, match="of the body") as raised:
        await body()
    assert raised.value is error
    assert cancelled.is_set()


async def test_map_keeps_the_order_and_the_limit() -> None:
    running = most = 0

    async def work(item: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(5 - item):  # Later items end earlier.
            await asyncio.sleep(0)
        running -= 1
        return item * 10

    assert await map_concurrently(work, range(5), 2) == [0, 10, 20, 30, 40]
    assert most == 2


async def test_map_starts_nothing_after_a_swallowed_cancellation() -> None:
    started: list[int] = []

    async def work(item: int) -> None:
        started.append(item)
        with suppress(asyncio.CancelledError):  # As a broken tool might.
            await asyncio.Event().wait()

    task = asyncio.create_task(map_concurrently(work, range(10), 2))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert started == [0, 1]


async def test_work_is_completed_despite_two_cancellations() -> None:
    begun, released, done = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        await released.wait()
        done.set()

    task = asyncio.create_task(run_to_completion(work()))
    await begun.wait()
    for _ in range(2):
        task.cancel()
        await asyncio.sleep(0)
    assert not task.done()
    released.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done.is_set()
