"""Run steps that depend on each other. Plans and `delegate_task` share this engine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from retinue.domain.plan.schedule import Schedule
from retinue.runtime.core.task_group import TaskGroup

T = TypeVar("T")


async def run_steps(
    schedule: Schedule,
    *,
    max_concurrent: int,
    on_start: Callable[[str], None],
    work: Callable[[str], Awaitable[T]],
    on_end: Callable[[str, T], None],
) -> None:
    """Run the steps of `schedule`, as many at a time as dependencies and `max_concurrent` allow.

    Steps that the schedule lists as running come first. `on_end` tells the schedule how a step
    ended. Nothing is awaited between `on_end` and the next `on_start`, so a journal that records
    both shows each decision at the moment it was made.
    """
    ended: asyncio.Queue[tuple[str, T]] = asyncio.Queue()

    async def run(name: str) -> None:
        ended.put_nowait((name, await work(name)))

    async with TaskGroup() as tasks:
        for name in schedule.running:
            tasks.create_task(run(name))
        while True:
            while len(schedule.running) < max_concurrent:
                ready = schedule.start_next()
                if ready is None:
                    break
                on_start(ready)
                tasks.create_task(run(ready))
            if not schedule.running:
                return
            on_end(*await ended.get())
