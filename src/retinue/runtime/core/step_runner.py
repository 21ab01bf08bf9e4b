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
    begin: Callable[[str], None],
    work: Callable[[str], Awaitable[T]],
    settle: Callable[[str, T], None],
) -> None:
    """Run the steps of `schedule`, as many at a time as dependencies and `max_concurrent` allow.

    Steps that the schedule lists as under way run first. `settle` tells the schedule how a step
    ended. Nothing is awaited between `settle` and the next `begin`, so a journal that records both
    shows each decision at the moment it was made.
    """
    ended: asyncio.Queue[tuple[str, T]] = asyncio.Queue()

    async def run(name: str) -> None:
        ended.put_nowait((name, await work(name)))

    async with TaskGroup() as tasks:
        for name in schedule.under_way:
            tasks.create_task(run(name))
        while True:
            while len(schedule.under_way) < max_concurrent:
                ready = schedule.next()
                if ready is None:
                    break
                begin(ready)
                tasks.create_task(run(ready))
            if not schedule.under_way:
                return
            settle(*await ended.get())
