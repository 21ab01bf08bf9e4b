"""Reservations queue while siblings hold the budget, and fail when no release could help."""

from __future__ import annotations

import asyncio

import pytest

from retinue.domain.account import UNLIMITED, Account, Resources
from retinue.errors import BudgetExceeded
from retinue.runtime.core.reservations import Reservations


def accounts(tokens: int) -> tuple[Account, Account]:
    """Two siblings that share so many tokens."""
    root = Account("root", Resources(UNLIMITED, UNLIMITED, tokens, UNLIMITED))
    limit = Resources(UNLIMITED, UNLIMITED, UNLIMITED, UNLIMITED)
    return Account("one", limit, root), Account("two", limit, root)


async def test_second_reservation_waits_for_the_release_of_the_first() -> None:
    reservations, (one, two) = Reservations(), accounts(100)
    worst = Resources(tokens=80)
    first = reservations.try_reserve(one, worst)
    assert first is not None
    assert reservations.try_reserve(two, worst) is None
    waiting = asyncio.create_task(reservations.wait_for_release())
    await asyncio.sleep(0)
    first.settle(Resources(tokens=10))
    reservations.notify_released()
    await waiting
    assert reservations.try_reserve(two, worst) is not None


def test_reservation_that_can_never_fit_raises() -> None:
    reservations, (one, _) = Reservations(), accounts(100)
    with pytest.raises(BudgetExceeded):
        reservations.try_reserve(one, Resources(tokens=101))


async def test_cancelled_wait_leaves_the_queue() -> None:
    reservations = Reservations()
    waiting = asyncio.create_task(reservations.wait_for_release())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    reservations.notify_released()
