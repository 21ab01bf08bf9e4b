"""Reservations queue while siblings hold the budget, and fail when no release could help."""

from __future__ import annotations

import asyncio
import functools
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retinue.domain.account import UNLIMITED, Account, Overdraft, Resources
from retinue.domain.messages import Usage
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
    waiting = asyncio.create_task(reservations.wait_for_release(two))
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
    begun.settle(Resources(tokens=10))
    one.release_kept()
    assert reservations.try_reserve(two, Resources(tokens=60)) is not None


def test_what_an_agent_keeps_already_is_not_needed_twice() -> None:
    reservations, (one, two) = Reservations(), accounts(100)
    keep = Resources(tokens=20)
    first = reservations.try_reserve(one, Resources(tokens=1), keep=keep)
    assert first is not None
    first.release()
    assert reservations.try_reserve(two, Resources(tokens=50)) is not None
    assert reservations.try_reserve(one, Resources(tokens=70), keep=keep) is None


async def test_agents_that_were_just_woken_do_not_count_as_waiting() -> None:
    """What the parent of a waiting agent keeps will not return; that of a woken one may."""
    reservations = Reservations()
    unlimited = Resources(*[UNLIMITED] * 5)
    root = Account("root", Resources(UNLIMITED, UNLIMITED, 100, UNLIMITED, UNLIMITED))
    left, right = Account("left", unlimited, root), Account("right", unlimited, root)
    for one, kept in ((left, 30), (right, 10)):
        one.reserve(Resources(tokens=1), keep=Resources(tokens=kept)).release()
    below_left, below_right = Account("a", unlimited, left), Account("b", unlimited, right)
    waiting = asyncio.create_task(reservations.wait_for_release(below_left))
    await asyncio.sleep(0)
    with pytest.raises(BudgetExceeded):
        reservations.try_reserve(below_right, Resources(tokens=70))
    reservations.notify_released()
    assert reservations.try_reserve(below_right, Resources(tokens=70)) is None
    await waiting


def test_a_later_reply_does_not_lower_what_is_reserved_for_this_server() -> None:
    calibration = Reservations().calibration("m")
    for tokens in (300, 200):
        usage = Usage(tokens_in=tokens, tokens_out=tokens)
        calibration.learn(usage, max_prompt=100, max_output=100)
    assert (calibration.prompt_factor, calibration.reply_factor) == (3.0, 3.0)


def test_nobody_waits_for_what_only_the_agent_itself_has_used() -> None:
    """Its turns are its own: no release by a sibling would bring one back."""
    reservations, (one, two) = Reservations(), accounts(100)
    assert reservations.try_reserve(one, Resources(tokens=90)) is not None
    two.limit = Resources(1, 1, 100, UNLIMITED)
    two.charge(Resources(tool_calls=1, turns=1))
    for spent in (Resources(turns=1, tokens=20), Resources(tool_calls=1, tokens=20)):
        with pytest.raises(BudgetExceeded):
            reservations.try_reserve(two, spent)
    assert reservations.try_reserve(two, Resources(tokens=20)) is None


def test_nobody_waits_for_what_a_candidate_has_prepaid() -> None:
    """It may use all of that, however long the race takes."""
    reservations, (one, two) = Reservations(), accounts(100)
    one.limit = Resources(UNLIMITED, UNLIMITED, 60, 0, 0)
    one.prepay()
    assert reservations.try_reserve(two, Resources(tokens=40)) is not None
    with pytest.raises(BudgetExceeded):
        reservations.try_reserve(two, Resources(tokens=41))


def test_who_keeps_something_does_not_wait_for_what_others_keep() -> None:
    """They could wait for each other for ever."""
    reservations, (one, two) = Reservations(), accounts(100)
    for account in (one, two):
        assert reservations.try_reserve(account, Resources(), keep=Resources(tokens=40))
    with pytest.raises(BudgetExceeded):
        reservations.try_reserve(one, Resources(tokens=61), keep=Resources(tokens=40))


@pytest.mark.parametrize(("over", "waits"), [(70, True), (71, False)])
def test_the_overdraft_of_an_ancestor_is_waited_for_too(over: int, waits: bool) -> None:
    reservations, (one, two) = Reservations(), accounts(100)
    root = two.parent
    assert root is not None
    assert reservations.try_reserve(one, Resources(), keep=Resources(tokens=50)) is not None
    overdraft = Overdraft(root, Resources(tokens=over))
    if waits:
        assert reservations.try_reserve(two, Resources(tokens=30), overdraft=overdraft) is None
    else:
        with pytest.raises(BudgetExceeded):
            reservations.try_reserve(two, Resources(tokens=30), overdraft=overdraft)
    assert root.reserved == Resources()


async def test_grandchild_waits_for_an_agent_that_does_not_wait_itself() -> None:
    reservations, (one, two) = Reservations(), accounts(100)
    below_one, below_two = (Account(f"below {a.name}", a.limit, a) for a in (one, two))
    for parent in (one, two):
        assert reservations.try_reserve(parent, Resources(), keep=Resources(tokens=40))
    assert reservations.try_reserve(below_one, Resources(tokens=60)) is None
    waiting = asyncio.create_task(reservations.wait_for_release(below_one))
    await asyncio.sleep(0)
    # `one` returns nothing while its child waits, so the child of `two` would wait for ever.
    with pytest.raises(BudgetExceeded):
        reservations.try_reserve(below_two, Resources(tokens=60))
    two.release_kept()
    reservations.notify_released()
    await waiting
    assert reservations.try_reserve(below_one, Resources(tokens=60)) is not None


async def test_cancelled_wait_leaves_the_queue() -> None:
    reservations, (one, two) = Reservations(), accounts(100)
    below = Account("below two", two.limit, two)
    for parent in (one, two):
        assert reservations.try_reserve(parent, Resources(), keep=Resources(tokens=40))
    waiting = asyncio.create_task(
        reservations.wait_for_release(Account("below one", one.limit, one))
    )
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert reservations.try_reserve(below, Resources(tokens=60)) is None


@settings(max_examples=40)
@given(
    tokens=st.integers(60, 400),
    widths=st.lists(st.lists(st.integers(0, 3), max_size=4), min_size=1, max_size=4),
    random=st.randoms(use_true_random=False),
)
async def test_every_wait_ends(tokens: int, widths: list[list[int]], random: Random) -> None:
    """Agents of depth 1 to 3 that compete for one limit all end, in whatever order they work.

    Some have prepaid, as candidates of races do.
    """
    reservations = Reservations()
    unlimited = Resources(UNLIMITED, UNLIMITED, UNLIMITED, UNLIMITED, UNLIMITED)
    root = Account("root", Resources(UNLIMITED, UNLIMITED, tokens, UNLIMITED, UNLIMITED))

    async def turn(account: Account, keep: int) -> None:
        while True:
            amount = Resources(tokens=random.randint(1, 30))
            reservation = reservations.try_reserve(account, amount, keep=Resources(tokens=keep))
            if reservation is not None:
                break
            await reservations.wait_for_release(account)
        for _ in range(random.randrange(4)):
            await asyncio.sleep(0)
        reservation.settle(Resources(tokens=random.randint(0, amount.tokens)))
        reservations.notify_released()

    def child(parent: Account) -> Account:
        if random.random() < 0.7:
            return Account("child", unlimited, parent)
        share = random.randint(1, 60)
        account = Account("candidate", Resources(UNLIMITED, UNLIMITED, share, 0, 0), parent)
        with suppress(BudgetExceeded):
            account.prepay()
        return account

    async def work(account: Account, below: list[Any]) -> None:
        try:
            await turn(account, random.randint(1, 20))
            async with asyncio.TaskGroup() as tasks:
                for each in below:
                    tasks.create_task(work(child(account), each))
            await turn(account, 0)
        except BudgetExceeded:
            pass
        finally:
            account.release_kept()
            account.release_prepaid()
            reservations.notify_released()

    trees: list[Any] = [[[[]] * leaves for leaves in width] for width in widths]
    working = [asyncio.create_task(work(child(root), t)) for t in trees]
    steps = 0
    while steps < 3_000 and not all(task.done() for task in working):
        await asyncio.sleep(0)
        steps += 1
    stuck = [task for task in working if task.cancel()]
    assert not stuck
    assert root.kept == root.reserved == root.prepaid_below == Resources()
    assert root.spent.tokens <= tokens
