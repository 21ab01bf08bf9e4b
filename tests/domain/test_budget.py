from __future__ import annotations

import copy
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from retinue.domain.budget import NOTHING, UNLIMITED, Account, Amounts, Budget, Reservation
from retinue.errors import BudgetExceeded, ContractError

FIELDS = {
    "tool_calls": "max_tool_calls",
    "turns": "max_turns",
    "tokens": "max_tokens",
    "cost_microusd": "max_cost_usd",
}


def amounts(most: int) -> st.SearchStrategy[Amounts]:
    return st.builds(Amounts, *[st.integers(0, most)] * 4)


def fits(amount: Amounts, room: Amounts) -> bool:
    return all(getattr(amount, field) <= getattr(room, field) for field in FIELDS)


def left(account: Account) -> Amounts:
    """What may still be reserved here, ancestors aside."""
    return (account.limit - account.spent - account.reserved).above_zero()


def room(account: Account) -> Amounts:
    """The most that can be reserved now."""
    own, above = left(account), [left(node) for node in account.lineage() if node is not account]
    return Amounts(
        own.tool_calls,
        own.turns,
        min([own.tokens, *(rest.tokens for rest in above)]),
        min([own.cost_microusd, *(rest.cost_microusd for rest in above)]),
    )


def assert_most(account: Account, most: Amounts) -> None:
    """All of `most` can be reserved, and not one more of any field."""
    assert can_reserve(account, most)
    for field in FIELDS:
        assert not can_reserve(account, Amounts(**{field: getattr(most, field) + 1}))


def can_reserve(account: Account, amount: Amounts) -> bool:
    """Tries it, and takes it back."""
    try:
        account.reserve(amount).release()
    except BudgetExceeded:
        return False
    return True


# --- what a contract says ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ({"max_tool_calls": 0}, "max_tool_calls must be positive, not 0."),
        ({"max_turns": -1}, "max_turns must be positive, not -1."),
        ({"max_tokens": 0}, "max_tokens must be positive, not 0."),
        ({"max_context_tokens": -5}, "max_context_tokens must be positive, not -5."),
        ({"max_retries": -1}, "max_retries must be 0 or more, not -1."),
        ({"max_cost_usd": 0}, "max_cost_usd must be positive, not 0."),
        ({"max_cost_usd": -0.5}, "max_cost_usd must be positive, not -0.5."),
        ({"max_cost_usd": 1e-9}, "max_cost_usd must be at least 0.000001, not 1e-09."),
        ({"timeout_s": 4.9}, "timeout_s must be at least 5 seconds, not 4.9."),
        ({"timeout_s": 0}, "timeout_s must be at least 5 seconds, not 0."),
        ({"timeout_s": math.inf}, "timeout_s must be a finite number."),
        ({"timeout_s": math.nan}, "timeout_s must be a finite number."),
        ({"timeout_s": 10**400}, "timeout_s must be a finite number."),
        ({"timeout_s": "60"}, "timeout_s must be a number, not '60'."),
        ({"timeout_s": None}, "timeout_s must be a number, not None."),
        ({"max_turns": 2.0}, "max_turns must be a whole number, not 2.0."),
        ({"max_turns": True}, "max_turns must be a whole number, not True."),
        ({"max_turns": None}, "max_turns must be a whole number, not None."),
        ({"max_retries": 1.0}, "max_retries must be a whole number, not 1.0."),
        ({"max_cost_usd": True}, "max_cost_usd must be a number, not True."),
    ],
)
def test_a_senseless_limit_is_refused_by_name(terms: dict[str, Any], message: str) -> None:
    with pytest.raises(ContractError) as caught:
        Budget(**terms)
    assert str(caught.value) == message


def test_the_least_that_is_allowed() -> None:
    least = Budget(
        max_tool_calls=1,
        max_turns=1,
        max_tokens=1,
        max_context_tokens=1,
        timeout_s=5,
        max_cost_usd=0.000001,
        max_retries=0,
    )

    assert least.limits() == Amounts(1, 1, 1, 1)


def test_the_defaults_are_those_of_a_child() -> None:
    assert msgspec.to_builtins(Budget()) == {
        "max_tool_calls": 15,
        "max_turns": 50,
        "max_tokens": 65_536,
        "max_context_tokens": 8_192,
        "timeout_s": 300.0,
        "max_cost_usd": None,
        "max_retries": 1,
    }


def test_an_int_and_the_equal_float_are_one_value() -> None:
    ints, floats = Budget(timeout_s=60, max_cost_usd=2), Budget(timeout_s=60.0, max_cost_usd=2.0)

    assert msgspec.json.encode(ints) == msgspec.json.encode(floats)


def test_no_limit_is_unlimited() -> None:
    limits = Budget(max_tokens=None).limits()

    assert limits.tokens == UNLIMITED
    assert limits.cost_microusd == UNLIMITED


@given(st.integers(1, 10**12))
def test_money_is_counted_in_whole_millionths(microusd: int) -> None:
    assert Budget(max_cost_usd=microusd / 1_000_000).limits().cost_microusd == microusd


def test_a_budget_cannot_be_changed_or_misspelled() -> None:
    with pytest.raises(AttributeError):
        Budget().max_turns = 3  # type: ignore[misc]
    with pytest.raises(msgspec.ValidationError, match="max_turn"):
        msgspec.json.decode(b'{"max_turn": 3}', type=Budget)


# --- amounts ----------------------------------------------------------------------------------


@given(amounts(50), amounts(50))
def test_arithmetic_of_amounts(a: Amounts, b: Amounts) -> None:
    assert a + b == b + a
    assert a + b - b == a
    assert a + NOTHING == a
    assert (a + b).shared() == a.shared() + b.shared()
    assert a.shared() == Amounts(0, 0, a.tokens, a.cost_microusd)
    assert a.covers(b) == fits(b, a)
    assert set(a.short_of(b)) == {
        limit for field, limit in FIELDS.items() if getattr(b, field) > getattr(a, field)
    }
    assert all(
        getattr((a - b).above_zero(), field) == max(0, getattr(a - b, field)) for field in FIELDS
    )


# --- the tree ---------------------------------------------------------------------------------


class Tree(RuleBasedStateMachine):
    """Any interleaving of reservations in a growing tree, beside what each node did by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.accounts: list[Account] = []
        self.held: list[tuple[int, Reservation]] = []
        self.own_spent: list[Amounts] = []

    def _add(self, limit: Amounts, parent: Account | None) -> None:
        self.accounts.append(Account(f"agent-{len(self.accounts)}", limit, parent))
        self.own_spent.append(NOTHING)

    def _snapshot(self) -> list[tuple[Amounts, Amounts]]:
        return [(account.spent, account.reserved) for account in self.accounts]

    def _without_promises(self) -> list[Account]:
        accounts, held = copy.deepcopy((self.accounts, self.held))
        for _, reservation in held:
            reservation.release()
        return accounts

    def _take(self, pick: int) -> tuple[int, Reservation]:
        return self.held.pop(pick % len(self.held))

    @initialize(limit=amounts(20))
    def plant(self, limit: Amounts) -> None:
        self._add(limit, None)

    @precondition(lambda self: len(self.accounts) < 7)
    @rule(pick=st.integers(0, 100), limit=amounts(20))
    def add_child(self, pick: int, limit: Amounts) -> None:
        self._add(limit, self.accounts[pick % len(self.accounts)])

    @rule(pick=st.integers(0, 100), amount=amounts(8))
    def reserve(self, pick: int, amount: Amounts) -> None:
        index = pick % len(self.accounts)
        account = self.accounts[index]
        most = room(account)
        before = self._snapshot()
        if fits(amount, most):
            reservation = account.reserve(amount)
            assert reservation.open
            assert reservation.amount == amount
            self.held.append((index, reservation))
            return
        with pytest.raises(BudgetExceeded) as refused:
            account.reserve(amount)
        assert self._snapshot() == before
        assert refused.value.limit in most.short_of(amount)
        assert refused.value.limit in str(refused.value)

    @precondition(lambda self: self.held)
    @rule(pick=st.integers(0, 100), share=st.builds(Amounts, *[st.integers(0, 8)] * 4))
    def settle_within(self, pick: int, share: Amounts) -> None:
        index, reservation = self._take(pick)
        promised = reservation.amount
        actual = Amounts(*(min(getattr(promised, f), getattr(share, f)) for f in FIELDS))
        reservation.settle(actual)
        assert not reservation.open
        self.own_spent[index] += actual

    @precondition(lambda self: self.held)
    @rule(pick=st.integers(0, 100))
    def release(self, pick: int) -> None:
        _, reservation = self._take(pick)
        reservation.release()
        before = self._snapshot()
        reservation.release()
        assert self._snapshot() == before

    @rule(pick=st.integers(0, 100))
    def what_is_left_is_the_most_that_can_be_reserved(self, pick: int) -> None:
        account = self.accounts[pick % len(self.accounts)]
        assert_most(account, room(account))

    @rule(pick=st.integers(0, 100))
    def unspent_is_the_most_once_promises_are_returned(self, pick: int) -> None:
        index = pick % len(self.accounts)
        assert_most(self._without_promises()[index], self.accounts[index].unspent())

    @rule(pick=st.integers(0, 100), amount=amounts(20))
    def waiting_helps_exactly_if_it_fits_without_promises(self, pick: int, amount: Amounts) -> None:
        index = pick % len(self.accounts)
        fits_later = can_reserve(self._without_promises()[index], amount)
        assert self.accounts[index].blocked_only_by_promises(amount) == fits_later

    @invariant()
    def a_node_holds_its_own_and_what_its_children_share(self) -> None:
        for index, account in enumerate(self.accounts):
            reserved, spent = NOTHING, self.own_spent[index]
            for owner, reservation in self.held:
                if owner == index:
                    reserved += reservation.amount
            for child in self.accounts:
                if child.parent is account:
                    reserved += child.reserved.shared()
                    spent += child.spent.shared()
            assert account.reserved == reserved
            assert account.spent == spent

    @invariant()
    def nothing_is_negative(self) -> None:
        for account in self.accounts:
            for amount in (account.spent, account.reserved, account.unspent()):
                assert fits(NOTHING, amount)


class HonestTree(Tree):
    """Nobody uses more than was promised."""

    @invariant()
    def no_limit_is_ever_passed(self) -> None:
        for account in self.accounts:
            assert fits(account.spent + account.reserved, account.limit)


class BilledTree(Tree):
    """Some servers bill more than the worst case."""

    @precondition(lambda self: self.held)
    @rule(pick=st.integers(0, 100), extra=amounts(6))
    def overrun(self, pick: int, extra: Amounts) -> None:
        index, reservation = self._take(pick)
        actual = reservation.amount + extra
        reservation.settle(actual)
        self.own_spent[index] += actual


machine_settings = settings(max_examples=60, stateful_step_count=40)
TestHonestTree = HonestTree.TestCase
TestHonestTree.settings = machine_settings
TestBilledTree = BilledTree.TestCase
TestBilledTree.settings = machine_settings


def test_tool_calls_and_turns_are_not_charged_to_ancestors() -> None:
    root = Account("root", Amounts(1, 1, 100, 100))
    child = Account("child", Amounts(5, 5, 50, 50), root)

    child.reserve(Amounts(5, 5, 20, 30)).settle(Amounts(4, 3, 10, 20))

    assert child.spent == Amounts(4, 3, 10, 20)
    assert root.spent == Amounts(0, 0, 10, 20)
    assert root.reserved == NOTHING


def test_a_refusal_names_the_account_the_limit_and_the_numbers() -> None:
    root = Account("root", Amounts(9, 9, 2_000, 9))
    child = Account("root/tests", Amounts(9, 9, 5_000, 9), root)
    child.reserve(Amounts(tokens=1_500)).settle(Amounts(tokens=1_200))
    child.reserve(Amounts(tokens=300))

    with pytest.raises(BudgetExceeded) as caught:
        child.reserve(Amounts(tokens=1_000))

    assert caught.value.limit == "max_tokens"
    assert str(caught.value) == (
        "root has no room left under max_tokens"
        " (1,200 of 2,000 used, 300 reserved; asked for 1,000)."
    )


def test_a_refusal_for_money_is_in_dollars() -> None:
    account = Account("root", Budget(max_cost_usd=1.5).limits())

    with pytest.raises(BudgetExceeded) as caught:
        account.reserve(Amounts(cost_microusd=2_250_000))

    assert caught.value.limit == "max_cost_usd"
    assert "0.0000 USD of 1.5000 USD used" in str(caught.value)
    assert "asked for 2.2500 USD" in str(caught.value)


def test_an_overrun_of_tokens_does_not_refuse_what_needs_none() -> None:
    account = Account("root", Amounts(5, 5, 10, 10))
    account.reserve(Amounts(tokens=10)).settle(Amounts(tokens=14))

    assert account.spent == Amounts(tokens=14)
    assert account.unspent() == Amounts(5, 5, 0, 10)
    assert can_reserve(account, Amounts(tool_calls=1))
    assert not can_reserve(account, Amounts(tokens=1))


def test_a_promise_is_settled_once() -> None:
    account = Account("root", Amounts(5, 5, 10, 10))
    reservation = account.reserve(Amounts(tokens=5))
    reservation.settle(Amounts(tokens=3))

    with pytest.raises(AssertionError, match="settled once"):
        reservation.settle(Amounts(tokens=3))

    assert account.spent == Amounts(tokens=3)
    assert account.reserved == NOTHING


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        ({"max_tokens": 2**53 + 1}, "max_tokens must be at most 9,007,199,254,740,992."),
        ({"max_retries": 10**30}, "max_retries must be at most 9,007,199,254,740,992."),
        ({"timeout_s": 1e16}, "timeout_s must be at most 9,007,199,254,740,992."),
        ({"max_cost_usd": 1e300}, "max_cost_usd must be at most 9,007,199,254,740,992."),
    ],
)
def test_no_limit_is_more_than_a_journal_can_hold(limit: dict[str, Any], message: str) -> None:
    with pytest.raises(ContractError) as caught:
        Budget(**limit)
    assert str(caught.value) == message


def test_an_account_without_limits_does_not_hide_those_above_it() -> None:
    top = Account("top", Amounts(1, 1, 100, 100))
    middle = Account("middle", Budget(max_tokens=None).limits(), top)
    below = Account("below", Budget(max_tokens=None).limits(), middle)

    assert below.unspent().tokens == below.unspent().cost_microusd == 100
    with pytest.raises(BudgetExceeded, match="top has no room left under max_tokens"):
        below.reserve(Amounts(tokens=101))
    below.reserve(Amounts(tokens=40)).settle(Amounts(tokens=30))
    assert [node.spent.tokens for node in below.lineage()] == [30, 30, 30]
    assert below.unspent().tokens == 70
