"""Reserving from the budget tree when siblings compete: limits queue, they do not fail."""

from __future__ import annotations

import asyncio
from collections import deque

import msgspec

from retinue.domain.budget import Account, Amounts, Cover, Reservation
from retinue.errors import BudgetExceeded


class WorstCase(msgspec.Struct, frozen=True):
    """The most that an act may cost; `cover` is what its account cannot hold of that."""

    amount: Amounts
    cover: Cover | None = None


class Reservations:
    """One per run. Waits, first come first served, where only open promises stand in the way.

    Nobody holds a reservation while waiting for another one (a turn is settled before its tools
    run), so the wait always ends.
    """

    def __init__(self) -> None:
        self._queue: deque[asyncio.Future[None]] = deque()

    def take(self, account: Account, worst: WorstCase) -> Reservation | None:
        """Reserve the worst case; None if it has to wait for what others may return.

        Raises BudgetExceeded when no refund could make room for it.
        """
        try:
            return account.reserve(worst.amount, cover=worst.cover)
        except BudgetExceeded:
            if not _blocked_only_by_promises(account, worst.amount, worst.cover):
                raise
        return None

    async def refund(self) -> None:
        """Wait until something is returned."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        try:
            await turn
        finally:
            if turn in self._queue:
                self._queue.remove(turn)

    def returned(self) -> None:
        """Something was settled: let everybody who waits look again, in their order."""
        if not self._queue:
            return
        waiting, self._queue = self._queue, deque()
        for turn in waiting:
            if not turn.done():
                turn.set_result(None)


def _blocked_only_by_promises(account: Account, amount: Amounts, cover: Cover | None) -> bool:
    return account.blocked_only_by_promises(amount) and (
        cover is None or cover.account.blocked_only_by_promises(amount.shared() + cover.amount)
    )
