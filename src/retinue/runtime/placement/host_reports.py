"""The reports of a host to its run: numbered, and kept until the run has acknowledged them."""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Sequence

from retinue.runtime.placement.messages import Item, Report

COLLECT_S = 0.002


class HostReports:
    """Reports that the run has not acknowledged, in order."""

    def __init__(self) -> None:
        self._items: deque[Item] = deque()
        self._number = self._acknowledged = 0
        self._waiters: list[tuple[int, int, asyncio.Future[None]]] = []
        self._has_items = asyncio.Event()

    def add(self, serial: int, report: Report) -> int:
        """Add a report, and return its number."""
        self._number += 1
        self._items.append(Item(self._number, serial, report))
        self._has_items.set()
        return self._number

    async def poll(self, after: int) -> Sequence[Item]:
        """Wait for reports with a number above `after`."""
        while self._number <= after:
            self._has_items.clear()
            await self._has_items.wait()
        # Reports of one step of the loop, such as the end of a reservation and what was spent
        # instead, arrive together. So do those of several agents: messages cost more than bytes.
        await asyncio.sleep(COLLECT_S)
        return [item for item in self._items if item.number > after]

    async def durable(self, number: int) -> None:
        """Wait until the run has acknowledged everything up to `number`."""
        if number > self._acknowledged:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            heapq.heappush(self._waiters, (number, id(waiter), waiter))
            await waiter

    def acknowledge(self, upto: int) -> None:
        """Forget the reports up to `upto`, which the run has recorded."""
        self._acknowledged = upto
        while self._items and self._items[0].number <= upto:
            self._items.popleft()
        while self._waiters and self._waiters[0][0] <= upto:
            _, _, waiter = heapq.heappop(self._waiters)
            if not waiter.done():
                waiter.set_result(None)
