"""Reserving from the budget tree when siblings compete: limits queue, they do not fail."""

from __future__ import annotations

import asyncio
from collections import deque

from retinue.domain.budget import Account, Amounts, Reservation
from retinue.errors import BudgetExceeded


class Allowance:
    """One per run. Waits, first come first served, where only open promises stand in the way.

    Nobody holds a reservation while waiting for another one (a turn is settled before its tools
    run), so the wait always ends.
    """

    def __init__(self) -> None:
        self._queue: deque[asyncio.Future[None]] = deque()

    async def reserve(self, account: Account, amount: Amounts) -> Reservation:
        """Reserve `amount`, or raise BudgetExceeded when no refund could make room for it."""
        while True:
            try:
                return account.reserve(amount)
            except BudgetExceeded:
                if not account.blocked_only_by_promises(amount):
                    raise
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._queue.append(turn)
            try:
                await turn
            finally:
                if turn in self._queue:
                    self._queue.remove(turn)

    def returned(self) -> None:
        """Something was settled: let everybody who waits look again, in their order."""
        waiting, self._queue = self._queue, deque()
        for turn in waiting:
            if not turn.done():
                turn.set_result(None)
