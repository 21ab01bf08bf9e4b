"""Reserve budget while siblings compete for it: reservations wait instead of failing."""

from __future__ import annotations

import asyncio

from retinue.domain.account import Account, Overdraft, Reservation, Resources
from retinue.errors import BudgetExceeded


class Reservations:
    """Reservations of one run. Waiting agents try again in the order in which they began to wait.

    No agent holds a reservation while it waits for another one (a turn is settled before its tools
    run), so a wait always ends.
    """

    def __init__(self) -> None:
        self._released = asyncio.Event()

    def try_reserve(
        self, account: Account, amount: Resources, overdraft: Overdraft | None = None
    ) -> Reservation | None:
        """Reserve `amount`. Return None if only open reservations stand in the way.

        Raises BudgetExceeded when no released reservation could make room.
        """
        try:
            return account.reserve(amount, overdraft=overdraft)
        except BudgetExceeded:
            if not account.remaining().covers(amount):
                raise
            if overdraft is not None:
                left = overdraft.account.remaining()
                if not left.covers(amount.shared() + overdraft.amount):
                    raise
        return None

    async def wait_for_release(self) -> None:
        """Wait until a reservation is settled or released."""
        await self._released.wait()

    def notify_released(self) -> None:
        """Wake all agents that wait now."""
        self._released.set()
        self._released.clear()
