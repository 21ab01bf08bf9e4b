"""Carrying out steps that need each other: the one engine for plans of any origin."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from retinue.domain.plan.schedule import Schedule
from retinue.runtime.core.task_group import Nursery

T = TypeVar("T")


async def carry_out(
    schedule: Schedule,
    *,
    at_once: int,
    begin: Callable[[str], None],
    work: Callable[[str], Awaitable[T]],
    settle: Callable[[str, T], None],
) -> None:
    """Do what `schedule` has, as much of it at a time as there are places and needs allow.

    What is under way by its account is gone on with first.

    `settle` tells the schedule how a step ended. Between that and the next `begin` nothing is
    awaited, so that a journal of both has every decision at the moment it was made.
    """
    ended: asyncio.Queue[tuple[str, T]] = asyncio.Queue()

    async def see_through(name: str) -> None:
        ended.put_nowait((name, await work(name)))

    async with Nursery() as nursery:
        for begun in schedule.under_way:
            nursery.create_task(see_through(begun))
        while True:
            while len(schedule.under_way) < at_once and (name := schedule.next()) is not None:
                begin(name)
                nursery.create_task(see_through(name))
            if not schedule.under_way:
                return
            settle(*await ended.get())
