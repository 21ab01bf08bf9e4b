"""Reserving from the budget tree when siblings compete: limits queue, they do not fail."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from retinue.domain.budget import Account, Amounts, Cover, Reservation
from retinue.errors import BudgetExceeded


class WorstCase(NamedTuple):
    """The most that an act may cost; `cover` is what its account cannot hold of that."""

    amount: Amounts
    cover: Cover | None = None


class Allowance:
    """One per run. Waits, first come first served, where only open promises stand in the way.

    Nobody holds a reservation while waiting for another one (a turn is settled before its tools
    run), so the wait always ends.
    """

    def __init__(self) -> None:
        self._queue: deque[asyncio.Future[None]] = deque()

    async def reserve(self, account: Account, worst_case: Callable[[], WorstCase]) -> Reservation:
        """Reserve the worst case, or raise BudgetExceeded when no refund could make room for it.

        It is asked for anew after every wait: who waits while others spend can do with less.
        """
        while True:
            amount, cover = worst_case()
            try:
                return account.reserve(amount, cover=cover)
            except BudgetExceeded:
                if not _blocked_only_by_promises(account, amount, cover):
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


def _blocked_only_by_promises(account: Account, amount: Amounts, cover: Cover | None) -> bool:
    return account.blocked_only_by_promises(amount) and (
        cover is None or cover.account.blocked_only_by_promises(amount.shared() + cover.amount)
    )
