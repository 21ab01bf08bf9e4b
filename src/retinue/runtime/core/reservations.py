"""Reserve budget while siblings compete for it: reservations wait instead of failing."""

from __future__ import annotations

import asyncio

from retinue.domain.account import ZERO, Account, Overdraft, Reservation, Resources
from retinue.domain.messages import Usage
from retinue.errors import BudgetExceeded


class Calibration:
    """By how much one model's server has exceeded the upper bounds of a prompt and of a reply.

    From then on, that much more is reserved.
    """

    __slots__ = ("prompt_factor", "reply_factor")

    def __init__(self) -> None:
        self.prompt_factor = 1.0
        self.reply_factor = 1.0

    def learn(self, usage: Usage, *, max_prompt: int, max_output: int) -> None:
        """Learn from a reply. `max_prompt` and `max_output` are the bounds that were reserved."""
        if usage.tokens_in > max_prompt * self.prompt_factor:
            self.prompt_factor = usage.tokens_in / max_prompt
        if usage.tokens_out > max_output * self.reply_factor:
            self.reply_factor = usage.tokens_out / max_output


class Reservations:
    """Reservations of one run. Waiting agents try again in the order in which they began to wait.

    An agent that waits for another one holds no reservation, because a turn is settled before its
    tools run. An agent that keeps budget for its last turn does not wait for what others keep. Nor
    does an agent with such an ancestor below the root wait for others that wait themselves, or
    whose descendants do. So a wait always ends: the agent that began to wait last waits for one
    that works.
    """

    def __init__(self) -> None:
        self._released = asyncio.Event()
        self._waiting: set[Account] = set()
        self._calibrations: dict[str, Calibration] = {}

    def calibration(self, model: str) -> Calibration:
        """By how much `model` has exceeded its bounds in this run."""
        found = self._calibrations.get(model)
        if found is None:
            found = self._calibrations[model] = Calibration()
        return found

    def try_reserve(
        self,
        account: Account,
        amount: Resources,
        *,
        keep: Resources = ZERO,
        overdraft: Overdraft | None = None,
    ) -> Reservation | None:
        """Reserve `amount`, and keep `keep` for the agent's last turn from now on.

        Return None if others stand in the way: their open reservations, or what they keep. Raises
        BudgetExceeded if waiting for them would not help.
        """
        try:
            return account.reserve(amount, keep=keep, overdraft=overdraft)
        except BudgetExceeded:
            needed = amount + keep - account.own_kept
            if not _fits_beside_others(account, needed, overdraft) and not (
                account.fits_after_others(needed, overdraft, self._waiting)
            ):
                raise
        return None

    async def wait_for_release(self, account: Account) -> None:
        """Wait until a reservation is settled or released, or what was kept is returned."""
        self._waiting.add(account)
        try:
            await self._released.wait()
        finally:
            self._waiting.discard(account)

    def notify_released(self) -> None:
        """Wake all agents that wait. Until they have tried again, they do not count as waiting."""
        self._waiting.clear()
        self._released.set()
        self._released.clear()


def _fits_beside_others(account: Account, amount: Resources, overdraft: Overdraft | None) -> bool:
    """Whether there is room once open reservations are settled, beside what others keep."""
    if not account.remaining().covers(amount):
        return False
    return overdraft is None or overdraft.account.remaining().covers(
        amount.shared() + overdraft.amount
    )
