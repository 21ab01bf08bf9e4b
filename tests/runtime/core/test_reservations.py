"""Reservations queue while siblings hold the budget, and fail when no release could help."""

from __future__ import annotations

import asyncio
import functools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.domain.account import UNLIMITED, Account, Overdraft, Resources
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


@given(data=st.data())
def test_agent_without_competitors_never_waits(data: st.DataObject) -> None:
    """If no other agent holds or keeps anything, no release would ever wake it."""
    few, reservations = st.integers(0, 40), Reservations()
    draw = functools.partial(data.draw, few)
    root = Account("root", Resources(100, 100, 80, 100, 100))
    one = Account("one", Resources(100, 100, 60, 100, 100), root)
    one.charge(Resources(tokens=draw()))
    overdraft = Overdraft(root, Resources(tokens=draw())) if data.draw(st.booleans()) else None
    for _ in range(2):
        amount, keep = Resources(turns=1, tokens=draw(), cost_microusd=draw()), draw()
        try:
            reservation = reservations.try_reserve(
                one, amount, keep=Resources(tokens=keep), overdraft=overdraft
            )
        except BudgetExceeded:
            return
        assert reservation is not None
        reservation.release()


def test_child_of_a_model_waits_for_what_its_siblings_keep() -> None:
    """The root is a model that keeps room for its own last turn, which stays its own."""
    reservations, (one, two) = Reservations(), accounts(100)
    root = one.parent
    assert root is not None
    assert reservations.try_reserve(root, Resources(), keep=Resources(tokens=30)) is not None
    begun = reservations.try_reserve(one, Resources(tokens=10), keep=Resources(tokens=50))
    assert begun is not None
    assert reservations.try_reserve(two, Resources(tokens=60)) is None
    with pytest.raises(BudgetExceeded):
        reservations.try_reserve(two, Resources(tokens=71))
    # A child of `two` must not wait: `two` may keep what `one` waits for.
    kept = reservations.try_reserve(two, Resources(), keep=Resources(tokens=5))
    assert kept is not None
    with pytest.raises(BudgetExceeded):
        reservations.try_reserve(Account("three", two.limit, two), Resources(tokens=60))
    begun.settle(Resources(tokens=10))
    one.release_kept()
    two.release_kept()
    assert reservations.try_reserve(two, Resources(tokens=60)) is not None


async def test_cancelled_wait_leaves_the_queue() -> None:
    reservations = Reservations()
    waiting = asyncio.create_task(reservations.wait_for_release())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    reservations.notify_released()
