"""Reserve budget while siblings compete for it: reservations queue instead of failing."""

from __future__ import annotations

import asyncio
from collections import deque

import msgspec

from retinue.domain.account import Account, Overdraft, Reservation, Resources
from retinue.errors import BudgetExceeded


class WorstCase(msgspec.Struct, frozen=True):
    """The most that a model call may cost; `overdraft` is what its own account cannot hold."""

    amount: Resources
    overdraft: Overdraft | None = None


class Reservations:
    """Reservations of one run, first come first served.

    No agent holds a reservation while it waits for another one (a turn is settled before its tools
    run), so a wait always ends.
    """

    def __init__(self) -> None:
        self._queue: deque[asyncio.Future[None]] = deque()

    def try_reserve(self, account: Account, worst: WorstCase) -> Reservation | None:
        """Reserve the worst case. Return None if only open reservations stand in the way.

        Raises BudgetExceeded when no released reservation could make room.
        """
        try:
            return account.reserve(worst.amount, overdraft=worst.overdraft)
        except BudgetExceeded:
            if not _fits_after_releases(account, worst.amount, worst.overdraft):
                raise
        return None

    async def wait_for_release(self) -> None:
        """Wait until a reservation is settled or released."""
        released: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(released)
        try:
            await released
        finally:
            if released in self._queue:
                self._queue.remove(released)

    def notify_released(self) -> None:
        """Wake all waiting agents, in their order, to try again."""
        if not self._queue:
            return
        waiting, self._queue = self._queue, deque()
        for released in waiting:
            if not released.done():
                released.set_result(None)


def _fits_after_releases(account: Account, amount: Resources, overdraft: Overdraft | None) -> bool:
    return account.remaining().covers(amount) and (
        overdraft is None
        or overdraft.account.remaining().covers(amount.shared() + overdraft.amount)
    )
