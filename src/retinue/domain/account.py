"""Accounts: the arithmetic that keeps a tree of agents inside its limits.

Accounts form a tree like the agents do. Before an act that may spend something, its worst case is
reserved at the agent's account and, for what is shared (tokens, money), at every ancestor's. The
rest returns when the act is over. The invariant, at every node and at all times:

    spent + reserved <= limit

as long as no act spends more than it reserved. If a server bills more than the computed worst case,
the excess is charged all the same: hiding it would be worse.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from retinue.errors import BudgetExceeded

MICROUSD_PER_USD = 1_000_000
UNLIMITED = 2**62


class Resources(msgspec.Struct, frozen=True, gc=False):
    """Amounts of everything that can be spent. Money is whole micro-dollars: sums are exact."""

    tool_calls: int = 0
    turns: int = 0
    tokens: int = 0
    cost_microusd: int = 0

    def __add__(self, other: Resources) -> Resources:
        return Resources(
            self.tool_calls + other.tool_calls,
            self.turns + other.turns,
            self.tokens + other.tokens,
            self.cost_microusd + other.cost_microusd,
        )

    def __sub__(self, other: Resources) -> Resources:
        return Resources(
            self.tool_calls - other.tool_calls,
            self.turns - other.turns,
            self.tokens - other.tokens,
            self.cost_microusd - other.cost_microusd,
        )

    def shared(self) -> Resources:
        """The part that is charged to ancestors too: tokens and money."""
        return Resources(0, 0, self.tokens, self.cost_microusd)

    def covers(self, other: Resources) -> bool:
        return (
            self.tool_calls >= other.tool_calls
            and self.turns >= other.turns
            and self.tokens >= other.tokens
            and self.cost_microusd >= other.cost_microusd
        )


ZERO = Resources()


class Account:
    """One agent's node in the tree: its limit, what is spent, and what is reserved."""

    __slots__ = ("_limited_ancestor", "limit", "name", "parent", "reserved", "spent")

    def __init__(self, name: str, limit: Resources, parent: Account | None = None) -> None:
        self.name = name
        self.limit = limit
        self.parent = parent
        # The nearest ancestor that limits something shared. Most runs have none.
        self._limited_ancestor = parent
        if parent is not None and parent.limit.tokens == parent.limit.cost_microusd == UNLIMITED:
            self._limited_ancestor = parent._limited_ancestor
        self.spent = ZERO
        self.reserved = ZERO

    def self_and_ancestors(self) -> Iterator[Account]:
        node: Account | None = self
        while node is not None:
            yield node
            node = node.parent

    def remaining(self) -> Resources:
        """What this account can still spend, within its own limit and those of its ancestors.

        Open reservations count as unspent: the caller can wait until they are settled.
        """
        limit, spent = self.limit, self.spent
        return Resources(
            max(0, limit.tool_calls - spent.tool_calls),
            max(0, limit.turns - spent.turns),
            *self.remaining_shared(),
        )

    def remaining_shared(self) -> tuple[int, int]:
        """The tokens and micro-dollars of `remaining`."""
        tokens = cost = UNLIMITED
        node: Account | None = self
        while node is not None:
            limit, spent = node.limit, node.spent
            # Comparisons, because `min` takes four times as long and every turn and call asks.
            if (left := limit.tokens - spent.tokens) < tokens:
                tokens = left
            if (left := limit.cost_microusd - spent.cost_microusd) < cost:
                cost = left
            node = node._limited_ancestor
        return (tokens if tokens > 0 else 0), (cost if cost > 0 else 0)

    def reserve(self, amount: Resources, *, overdraft: Overdraft | None = None) -> Reservation:
        """Reserve `amount` here and at every ancestor, or nowhere and raise BudgetExceeded."""
        self._check(amount)
        self._hold(amount)
        if overdraft is None:
            return Reservation(self, amount)
        try:
            return Reservation(self, amount, overdraft.account.reserve(overdraft.amount))
        except BudgetExceeded:
            self._hold(ZERO - amount)
            raise

    def spend(self, amount: Resources) -> None:
        """Check `amount` against the limits and charge it. Raises BudgetExceeded."""
        self._check(amount)
        self.charge(amount)

    def charge(self, amount: Resources) -> None:
        """Count `amount` as spent, whatever the limits say; the shared part at every ancestor."""
        self.spent += amount
        if amount.tokens or amount.cost_microusd:
            share, node = amount.shared(), self.parent
            while node is not None:
                node.spent += share
                node = node.parent

    def _hold(self, amount: Resources) -> None:
        """Count `amount` as reserved, like `charge`; a negative amount is released."""
        self.reserved += amount
        if amount.tokens or amount.cost_microusd:
            share, node = amount.shared(), self.parent
            while node is not None:
                node.reserved += share
                node = node.parent

    def _check(self, amount: Resources) -> None:
        """Raise BudgetExceeded if `amount` breaks a limit. An amount of 0 breaks none."""
        limit, spent, held = self.limit, self.spent, self.reserved
        calls, turns = amount.tool_calls, amount.turns
        if calls and calls > limit.tool_calls - spent.tool_calls - held.tool_calls:
            raise _exceeded(self, "max_tool_calls", amount)
        if turns and turns > limit.turns - spent.turns - held.turns:
            raise _exceeded(self, "max_turns", amount)
        tokens, cost = amount.tokens, amount.cost_microusd
        node: Account | None = self if tokens or cost else None
        while node is not None:
            limit, spent, held = node.limit, node.spent, node.reserved
            if tokens and tokens > limit.tokens - spent.tokens - held.tokens:
                raise _exceeded(node, "max_tokens", amount)
            if cost and cost > limit.cost_microusd - spent.cost_microusd - held.cost_microusd:
                raise _exceeded(node, "max_cost_usd", amount)
            node = node._limited_ancestor


class Overdraft(NamedTuple):
    """An ancestor's account, and the part of a worst case that the agent's own cannot hold.

    If the worst case occurs, only the agent's own account is overdrawn, and no shared one.
    """

    account: Account
    amount: Resources


class Reservation:
    """A reserved amount. Settle it once, with what was really used."""

    __slots__ = ("_account", "_overdraft", "amount", "open")

    def __init__(
        self, account: Account, amount: Resources, overdraft: Reservation | None = None
    ) -> None:
        self._account = account
        self._overdraft = overdraft
        self.amount = amount
        self.open = True

    def settle(self, actual: Resources) -> None:
        """Charge `actual` and release the reservation. `actual` may exceed what was reserved."""
        if not self.open:
            raise AssertionError("a reservation is settled once")
        self.open = False
        self._account._hold(ZERO - self.amount)
        self._account.charge(actual)
        if self._overdraft is not None:
            self._overdraft.release()

    def release(self) -> None:
        """Return everything: the act did not happen."""
        if self.open:
            self.settle(ZERO)


def _exceeded(node: Account, limit: str, asked: Resources) -> BudgetExceeded:
    total, spent, held = (_amount(r, limit) for r in (node.limit, node.spent, node.reserved))
    return BudgetExceeded(
        f"{node.name} has no room left under {limit} ({spent} of {total} used, {held} reserved;"
        f" asked for {_amount(asked, limit)}).",
        limit=limit,
    )


def _amount(resources: Resources, limit: str) -> str:
    if limit == "max_cost_usd":
        return f"{resources.cost_microusd / MICROUSD_PER_USD:.4f} USD"
    return f"{getattr(resources, limit.removeprefix('max_')):,}"
