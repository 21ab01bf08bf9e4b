from __future__ import annotations

import copy

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

from retinue.domain.account import (
    ONE_CALL,
    UNLIMITED,
    ZERO,
    Account,
    Overdraft,
    Reservation,
    Resources,
)
from retinue.domain.budget import Budget
from retinue.errors import BudgetExceeded

FIELDS = {
    "tool_calls": "max_tool_calls",
    "turns": "max_turns",
    "tokens": "max_tokens",
    "cost_microusd": "max_cost_usd",
    "billed_tokens": "max_billed_tokens",
}
SHARED = ("tokens", "cost_microusd", "billed_tokens")


def resources(most: int) -> st.SearchStrategy[Resources]:
    return st.builds(Resources, *[st.integers(0, most)] * len(FIELDS))


def limits() -> st.SearchStrategy[Resources]:
    """Limits of an agent; many agents limit only their own calls and turns."""
    own = st.builds(Resources, st.integers(0, 20), st.integers(0, 20), *[st.just(UNLIMITED)] * 3)
    return resources(20) | own


def fits(amount: Resources, room: Resources) -> bool:
    return all(getattr(amount, field) <= getattr(room, field) for field in FIELDS)


def left(account: Account) -> Resources:
    """What may still be reserved here, ancestors aside."""
    rest = account.limit - account.spent - account.reserved - account.kept
    return Resources(*(max(0, getattr(rest, field)) for field in FIELDS))


def payers(account: Account) -> list[Account]:
    """The accounts that need room for what this one spends: up to one that has prepaid."""
    found: list[Account] = []
    for node in account.self_and_ancestors():
        found.append(node)
        if node.name.startswith("candidate"):
            break
    return found


def room(account: Account) -> Resources:
    """The most that can be reserved now."""
    own, above = (
        left(account),
        [left(n) for n in payers(account) if n is not account and n.limits_shared],
    )
    return Resources(
        own.tool_calls,
        own.turns,
        *(min(getattr(rest, field) for rest in (own, *above)) for field in SHARED),
    )


def _unlimited(rest: Resources) -> Resources:
    """`rest`, with room for any number of calls and turns."""
    return Resources(UNLIMITED, UNLIMITED, rest.tokens, rest.cost_microusd, rest.billed_tokens)


def assert_most(account: Account, most: Resources) -> None:
    """All of `most` can be reserved, and not one more of any field."""
    assert can_reserve(account, most)
    for field in FIELDS:
        assert not can_reserve(account, Resources(**{field: getattr(most, field) + 1}))


def can_reserve(account: Account, amount: Resources) -> bool:
    """Tries it, and takes it back."""
    try:
        account.reserve(amount).release()
    except BudgetExceeded:
        return False
    return True


# --- amounts ----------------------------------------------------------------------------------


@given(resources(50), resources(50))
def test_arithmetic_of_resources(a: Resources, b: Resources) -> None:
    assert a + b == b + a
    assert a + b - b == a
    assert a + ZERO == a
    assert (a + b).shared() == a.shared() + b.shared()
    assert a.shared() == Resources(0, 0, a.tokens, a.cost_microusd, a.billed_tokens)
    assert a.covers(b) == fits(b, a)


# --- the tree ---------------------------------------------------------------------------------


class Tree(RuleBasedStateMachine):
    """Any interleaving of reservations in a growing tree, beside what each node did by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.accounts: list[Account] = []
        self.held: list[tuple[int, Reservation]] = []
        self.own_spent: list[Resources] = []
        self.prepaid: list[Resources] = []
        """What each candidate of a race has prepaid, as long as it has not ended."""

    def _add(self, limit: Resources, parent: Account | None, kind: str = "agent") -> Account:
        account = Account(f"{kind}-{len(self.accounts)}", limit, parent)
        self.accounts.append(account)
        self.own_spent.append(ZERO)
        self.prepaid.append(ZERO)
        return account

    def _snapshot(self) -> list[tuple[Resources, ...]]:
        return [(a.spent, a.reserved, a.kept, a.own_kept) for a in self.accounts]

    def _without_reservations(self) -> list[Account]:
        accounts, held = copy.deepcopy((self.accounts, self.held))
        for _, reservation in held:
            reservation.release()
        return accounts

    def _take(self, pick: int) -> tuple[int, Reservation]:
        return self.held.pop(pick % len(self.held))

    @initialize(limit=limits())
    def create_root(self, limit: Resources) -> None:
        self._add(limit, None)

    @precondition(lambda self: len(self.accounts) < 7)
    @rule(pick=st.integers(0, 100), limit=limits())
    def add_child(self, pick: int, limit: Resources) -> None:
        self._add(limit, self.accounts[pick % len(self.accounts)])

    @precondition(lambda self: len(self.accounts) < 7)
    @rule(pick=st.integers(0, 100), limit=resources(12))
    def add_candidate(self, pick: int, limit: Resources) -> None:
        parent = self.accounts[pick % len(self.accounts)]
        limited = [node for node in payers(parent) if node.limits_shared]
        fitting = all(fits(limit.shared(), _unlimited(left(node))) for node in limited)
        before = self._snapshot()
        account = self._add(limit, parent, "candidate" if fitting and limited else "agent")
        if fitting:
            account.prepay()
            self.prepaid[-1] = limit.shared() if limited else ZERO
            return
        with pytest.raises(BudgetExceeded):
            account.prepay()
        assert self._snapshot()[:-1] == before

    @rule(pick=st.integers(0, 100))
    def end_candidate(self, pick: int) -> None:
        index = pick % len(self.accounts)
        account = self.accounts[index]
        if not account.name.startswith("candidate") or account.reserved + account.kept != ZERO:
            return
        account.release_prepaid()
        self.prepaid[index] = ZERO
        account.limit = account.spent  # It makes no more calls.

    @rule(pick=st.integers(0, 100), amount=resources(8))
    def reserve(self, pick: int, amount: Resources) -> None:
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
        assert refused.value.limit in {
            limit
            for field, limit in FIELDS.items()
            if getattr(amount, field) > getattr(most, field)
        }
        assert refused.value.limit in str(refused.value)

    @precondition(lambda self: self.held)
    @rule(pick=st.integers(0, 100), share=resources(8))
    def settle_within(self, pick: int, share: Resources) -> None:
        index, reservation = self._take(pick)
        promised = reservation.amount
        actual = Resources(*(min(getattr(promised, f), getattr(share, f)) for f in FIELDS))
        reservation.settle(actual)
        assert not reservation.open
        self.own_spent[index] += actual

    @rule(pick=st.integers(0, 100), amount=resources(4), keep=resources(4))
    def reserve_and_keep(self, pick: int, amount: Resources, keep: Resources) -> None:
        index = pick % len(self.accounts)
        account, keep = self.accounts[index], keep.shared()
        before, most = self._snapshot(), room(account)
        try:
            reservation = account.reserve(amount, keep=keep)
        except BudgetExceeded:
            assert self._snapshot() == before
            assert not fits(amount + keep - account.own_kept, most)
        else:
            assert account.own_kept == keep
            self.held.append((index, reservation))

    @rule(pick=st.integers(0, 100))
    def last_turn_takes_what_was_kept(self, pick: int) -> None:
        account = self.accounts[pick % len(self.accounts)]
        kept = account.own_kept
        # However much siblings have reserved since.
        account.reserve(kept, keep=ZERO).release()
        if all(
            fits(ZERO, node.limit - node.spent - node.reserved - node.kept - kept)
            for node in account.self_and_ancestors()
        ):
            account.reserve(ZERO, keep=kept).release()

    @rule(pick=st.integers(0, 100))
    def release_kept(self, pick: int) -> None:
        account = self.accounts[pick % len(self.accounts)]
        account.release_kept()
        assert account.own_kept == ZERO

    @precondition(lambda self: self.held)
    @rule(pick=st.integers(0, 100))
    def release(self, pick: int) -> None:
        _, reservation = self._take(pick)
        reservation.release()
        before = self._snapshot()
        reservation.release()
        assert self._snapshot() == before

    @rule(pick=st.integers(0, 100))
    def spend_call(self, pick: int) -> None:
        index = pick % len(self.accounts)
        account, before = self.accounts[index], self._snapshot()
        if fits(ONE_CALL, room(account)):
            account.spend_call()
            self.own_spent[index] += ONE_CALL
        else:
            with pytest.raises(BudgetExceeded, match="max_tool_calls"):
                account.spend_call()
            assert self._snapshot() == before

    @rule(pick=st.integers(0, 100))
    def room_is_the_most_that_can_be_reserved(self, pick: int) -> None:
        account = self.accounts[pick % len(self.accounts)]
        assert_most(account, room(account))

    @rule(pick=st.integers(0, 100))
    def remaining_is_the_most_after_releases(self, pick: int) -> None:
        index = pick % len(self.accounts)
        remaining = self.accounts[index].remaining()
        assert_most(self._without_reservations()[index], remaining)
        assert self.accounts[index].remaining_tokens() == remaining.tokens

    @rule(pick=st.integers(0, 100), amount=resources(20))
    def remaining_covers_what_fits_after_releases(self, pick: int, amount: Resources) -> None:
        index = pick % len(self.accounts)
        fits_later = can_reserve(self._without_reservations()[index], amount)
        assert self.accounts[index].remaining().covers(amount) == fits_later

    @invariant()
    def a_node_counts_itself_and_the_shared_part_of_its_children(self) -> None:
        for index, account in enumerate(self.accounts):
            spent = self.own_spent[index]
            for child in self.accounts:
                if child.parent is account:
                    spent += child.spent.shared()
            assert account.spent == spent

    @invariant()
    def a_node_with_a_shared_limit_counts_what_its_descendants_hold(self) -> None:
        for account in self.accounts:
            reserved, kept = ZERO, account.own_kept
            for index, other in enumerate(self.accounts):
                if other is account:
                    continue
                if self._holds_from(other, account):
                    kept += other.own_kept
                if other.parent is not None and self._holds_from(other.parent, account):
                    kept += self._unused(index)
            for owner, reservation in self.held:
                if self.accounts[owner] is account:
                    reserved += reservation.amount
                elif self._holds_from(self.accounts[owner], account):
                    reserved += reservation.amount.shared()
            assert account.reserved == reserved
            assert account.kept == kept

    def _holds_from(self, owner: Account, ancestor: Account) -> bool:
        return ancestor.limits_shared and ancestor in payers(owner)

    def _unused(self, index: int) -> Resources:
        """What a candidate has prepaid and not spent."""
        prepaid, spent = self.prepaid[index], self.accounts[index].spent
        return Resources(0, 0, *(max(0, getattr(prepaid, f) - getattr(spent, f)) for f in SHARED))

    @invariant()
    def nothing_is_negative(self) -> None:
        for account in self.accounts:
            for amount in (account.spent, account.reserved, account.kept, account.remaining()):
                assert fits(ZERO, amount)


class HonestTree(Tree):
    """Nobody uses more than was promised."""

    @invariant()
    def no_limit_is_ever_passed(self) -> None:
        for account in self.accounts:
            assert fits(account.spent + account.reserved + account.kept, account.limit)


class BilledTree(Tree):
    """Some servers bill more than the worst case."""

    @precondition(lambda self: self.held)
    @rule(pick=st.integers(0, 100), extra=resources(6))
    def overrun(self, pick: int, extra: Resources) -> None:
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
    root = Account("root", Resources(1, 1, 100, 100))
    child = Account("child", Resources(5, 5, 50, 50), root)

    child.reserve(Resources(5, 5, 20, 30)).settle(Resources(4, 3, 10, 20))

    assert child.spent == Resources(4, 3, 10, 20)
    assert root.spent == Resources(0, 0, 10, 20)
    assert root.reserved == ZERO


def test_a_refusal_names_the_account_the_limit_and_the_numbers() -> None:
    root = Account("root", Resources(9, 9, 2_000, 9))
    child = Account("root/tests", Resources(9, 9, 5_000, 9), root)
    child.reserve(Resources(tokens=1_500)).settle(Resources(tokens=1_200))
    child.reserve(Resources(tokens=300))

    with pytest.raises(BudgetExceeded) as caught:
        child.reserve(Resources(tokens=1_000))

    assert caught.value.limit == "max_tokens"
    assert str(caught.value) == (
        "root has no room left under max_tokens"
        " (1,200 of 2,000 used, 300 reserved; asked for 1,000)."
    )


def test_a_refused_cost_is_shown_in_dollars() -> None:
    account = Account("root", Budget(max_cost_usd=1.5).resources())

    with pytest.raises(BudgetExceeded) as caught:
        account.reserve(Resources(cost_microusd=2_250_000))

    assert caught.value.limit == "max_cost_usd"
    assert "0.0000 USD of 1.5000 USD used" in str(caught.value)
    assert "asked for 2.2500 USD" in str(caught.value)


def test_an_overrun_of_tokens_does_not_block_acts_without_tokens() -> None:
    account = Account("root", Resources(5, 5, 10, 10))
    account.reserve(Resources(tokens=10)).settle(Resources(tokens=14))

    assert account.spent == Resources(tokens=14)
    assert account.remaining() == Resources(5, 5, 0, 10)
    assert can_reserve(account, Resources(tool_calls=1))
    assert not can_reserve(account, Resources(tokens=1))


@pytest.mark.parametrize("field", FIELDS)
def test_an_overrun_blocks_only_acts_that_need_more_of_the_same(field: str) -> None:
    account = Account("root", Resources(10, 10, 10, 10, 10))
    account.charge(Resources(**{field: 14}))
    blocked = [one for one in FIELDS if not can_reserve(account, Resources(**{one: 1}))]
    assert blocked == [field]


def test_a_reservation_is_settled_once() -> None:
    account = Account("root", Resources(5, 5, 10, 10))
    reservation = account.reserve(Resources(tokens=5))
    reservation.settle(Resources(tokens=3))

    with pytest.raises(AssertionError, match="settled once"):
        reservation.settle(Resources(tokens=3))

    assert account.spent == Resources(tokens=3)
    assert account.reserved == ZERO


def test_an_unlimited_account_keeps_the_limits_of_its_ancestors() -> None:
    top = Account("top", Resources(1, 1, 100, 100))
    middle = Account("middle", Budget(max_tokens=None).resources(), top)
    below = Account("below", Budget(max_tokens=None).resources(), middle)

    assert below.remaining().tokens == below.remaining().cost_microusd == 100
    with pytest.raises(BudgetExceeded, match="top has no room left under max_tokens"):
        below.reserve(Resources(tokens=101))
    below.reserve(Resources(tokens=40)).settle(Resources(tokens=30))
    assert [node.spent.tokens for node in below.self_and_ancestors()] == [30, 30, 30]
    assert below.remaining().tokens == 70


def test_an_account_knows_whether_an_ancestor_limits_what_it_shares() -> None:
    """Without one, an agent on a host need not ask the owner of the run before it spends."""
    unlimited = Budget(max_tokens=None).resources()
    alone = Account("alone", Budget().resources())
    below_unlimited = Account("below", Budget().resources(), Account("top", unlimited))
    limited = Account("middle", unlimited, Account("top", Budget().resources()))
    assert not alone.has_limited_ancestor
    assert not below_unlimited.has_limited_ancestor
    assert limited.has_limited_ancestor
    assert Account("below", unlimited, limited).has_limited_ancestor


def test_refused_overdraft_leaves_nothing_reserved_or_kept() -> None:
    root = Account("root", Resources(9, 9, 100, UNLIMITED, UNLIMITED))
    child = Account("child", Resources(9, 9, 50, UNLIMITED, UNLIMITED), root)
    child.reserve(Resources(tokens=1), keep=Resources(tokens=2)).release()
    before = [(one.reserved, one.kept, one.own_kept) for one in (child, root)]
    too_much = Overdraft(root, Resources(tokens=1_000))
    with pytest.raises(BudgetExceeded):
        child.reserve(Resources(tokens=10), keep=Resources(tokens=5), overdraft=too_much)
    assert [(one.reserved, one.kept, one.own_kept) for one in (child, root)] == before


def test_a_candidate_prepays_what_it_has_not_spent_yet() -> None:
    """As one that an earlier process has left."""
    root = Account("root", Resources(9, 9, 1_000, UNLIMITED, UNLIMITED))
    child = Account("child", Resources(9, 9, 100, UNLIMITED, UNLIMITED), root)
    child.charge(Resources(tokens=30))
    child.prepay()
    assert root.remaining().tokens == 1_000 - 30 - 70


def test_a_candidate_that_is_billed_more_than_it_prepaid_takes_nothing_from_others() -> None:
    root = Account("root", Resources(9, 9, 1_000, UNLIMITED, UNLIMITED))
    child = Account("child", Resources(9, 9, 100, UNLIMITED, UNLIMITED), root)
    child.prepay()
    child.charge(Resources(tokens=150))
    assert (root.kept, root.remaining().tokens) == (ZERO, 1_000 - 150)
