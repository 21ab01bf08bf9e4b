"""Accounts: the arithmetic that keeps a tree of agents inside its limits.

Accounts form a tree like the agents do. Before an act that may spend something, its worst case is
reserved at the agent's account and, for what is shared (tokens, billed tokens, money), at that of
every ancestor with such a limit. The rest returns when the act is over. Besides, an agent keeps
enough for its last turn from its first turn on. A candidate of a race prepays: all that it may use
is kept for it at every ancestor, until it ends. The invariant, at every node and at all times:

    spent + reserved + kept <= limit

as long as no act spends more than it reserved. If a server bills more than the computed worst case,
the excess is charged all the same: hiding it would be worse.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from retinue.errors import BudgetExceeded

MICROUSD_PER_USD = 1_000_000
UNLIMITED = 2**62


class Resources(msgspec.Struct, frozen=True, gc=False):
    """Amounts of everything that can be spent. Money is whole micro-dollars: sums are exact.

    `tokens` counts each token once: what was read and written. `billed_tokens` counts what servers
    count, prompts that were sent again included.
    """

    tool_calls: int = 0
    turns: int = 0
    tokens: int = 0
    cost_microusd: int = 0
    billed_tokens: int = 0

    def __add__(self, other: Resources) -> Resources:
        return Resources(
            self.tool_calls + other.tool_calls,
            self.turns + other.turns,
            self.tokens + other.tokens,
            self.cost_microusd + other.cost_microusd,
            self.billed_tokens + other.billed_tokens,
        )

    def __sub__(self, other: Resources) -> Resources:
        return Resources(
            self.tool_calls - other.tool_calls,
            self.turns - other.turns,
            self.tokens - other.tokens,
            self.cost_microusd - other.cost_microusd,
            self.billed_tokens - other.billed_tokens,
        )

    def __neg__(self) -> Resources:
        return Resources(
            -self.tool_calls, -self.turns, -self.tokens, -self.cost_microusd, -self.billed_tokens
        )

    def shared(self) -> Resources:
        """The part that is charged to ancestors too: tokens and money."""
        return Resources(0, 0, self.tokens, self.cost_microusd, self.billed_tokens)

    def covers(self, other: Resources) -> bool:
        return (
            self.tool_calls >= other.tool_calls
            and self.turns >= other.turns
            and self.tokens >= other.tokens
            and self.cost_microusd >= other.cost_microusd
            and self.billed_tokens >= other.billed_tokens
        )


ZERO = Resources()
ONE_CALL = Resources(tool_calls=1)


class Account:
    """One agent's node in the tree: its limit, what is spent, reserved, and kept for last turns."""

    __slots__ = (
        "_limited_ancestor",
        "_prepaid_at",
        "_prepaid_left",
        "kept",
        "limit",
        "name",
        "own_kept",
        "parent",
        "prepaid_below",
        "reserved",
        "spent",
    )

    def __init__(self, name: str, limit: Resources, parent: Account | None = None) -> None:
        self.name = name
        self.limit = limit
        self.parent = parent
        # The nearest ancestor that limits something shared. Most runs have none.
        self._limited_ancestor = parent
        if parent is not None and not parent.limits_shared:
            self._limited_ancestor = parent._limited_ancestor
        self.spent = ZERO
        self.reserved = ZERO
        self.kept = ZERO
        """Kept for the last turns of the agent and its descendants; includes `prepaid_below`."""
        self.own_kept = ZERO
        self.prepaid_below = ZERO
        """Resources that descendants have prepaid here, and not used yet."""
        self._prepaid_at: Account | None = None
        """The nearest limited ancestor of an account that has prepaid."""
        self._prepaid_left = ZERO

    @property
    def limits_shared(self) -> bool:
        """Whether the account itself limits tokens or money."""
        limit = self.limit
        return not limit.tokens == limit.cost_microusd == limit.billed_tokens == UNLIMITED

    @property
    def has_limited_ancestor(self) -> bool:
        """Whether an ancestor limits something shared."""
        return self._limited_ancestor is not None

    def self_and_ancestors(self) -> Iterator[Account]:
        node: Account | None = self
        while node is not None:
            yield node
            node = node.parent

    def remaining(self) -> Resources:
        """What this account can still spend, within its own limit and those of its ancestors.

        Open reservations count as unspent: the caller can wait until they are settled. What is kept
        for last turns does not.
        """
        limit, spent = self.limit, self.spent
        tokens, cost, billed = self.remaining_shared()
        return Resources(
            max(0, limit.tool_calls - spent.tool_calls),
            max(0, limit.turns - spent.turns),
            tokens,
            cost,
            billed,
        )

    def remaining_shared(self) -> tuple[int, int, int]:
        """The tokens, micro-dollars and billed tokens of `remaining`."""
        tokens = cost = billed = UNLIMITED
        node: Account | None = self
        while node is not None:
            limit, spent, kept = node.limit, node.spent, node.kept
            # Comparisons, because `min` takes four times as long and every turn and call asks.
            if (left := limit.tokens - spent.tokens - kept.tokens) < tokens:
                tokens = left
            if (left := limit.cost_microusd - spent.cost_microusd - kept.cost_microusd) < cost:
                cost = left
            if (left := limit.billed_tokens - spent.billed_tokens - kept.billed_tokens) < billed:
                billed = left
            node = node._limited_ancestor
        return (
            tokens if tokens > 0 else 0,
            cost if cost > 0 else 0,
            billed if billed > 0 else 0,
        )

    def remaining_tokens(self) -> int:
        """The tokens of `remaining`, for half of what it takes to compute all."""
        tokens = UNLIMITED
        node: Account | None = self
        while node is not None:
            if (left := node.limit.tokens - node.spent.tokens - node.kept.tokens) < tokens:
                tokens = left
            node = node._limited_ancestor
        return tokens if tokens > 0 else 0

    def fits_after_others(
        self, amount: Resources, overdraft: Overdraft | None, waiting: Iterable[Account]
    ) -> bool:
        """Whether there is room for both amounts once other agents have returned what they keep.

        An agent returns what it keeps only when its descendants have ended. So agents with one of
        the `waiting` accounts below them return nothing, nor do this agent and its ancestors. An
        agent that keeps something itself does not wait for others.
        """
        if self.own_kept != ZERO or not (self.limit - self.spent).covers(amount):
            return False
        *below, root = self._budget_path()
        stuck = {root}
        if any(node.own_kept != ZERO for node in below):
            # Two subtrees that keep something could wait for each other for ever.
            stuck.update(node for one in (self, *waiting) for node in one.self_and_ancestors())
        needed = amount.shared()
        for node in (*below, root):
            if overdraft is not None and node is overdraft.account:
                needed += overdraft.amount
            kept = sum((a.own_kept for a in stuck if node in a.self_and_ancestors()), ZERO)
            if not (node.limit - node.spent - kept - node.prepaid_below).covers(needed):
                return False
        return True

    def _budget_path(self) -> Iterator[Account]:
        """The accounts that need room for what this one spends: up to one that has prepaid."""
        for node in self.self_and_ancestors():
            yield node
            if node._prepaid_at is not None:
                return

    def reserve(
        self,
        amount: Resources,
        *,
        keep: Resources | None = None,
        overdraft: Overdraft | None = None,
    ) -> Reservation:
        """Reserve `amount` here and at every ancestor, or nowhere and raise BudgetExceeded.

        With `keep`, that much is kept for the agent's last turn from now on, instead of what was
        kept before.
        """
        change = ZERO if keep is None else keep - self.own_kept
        self._check(amount if keep is None else amount + change)
        self._hold(amount)
        self._keep(change)
        if overdraft is None:
            return Reservation(self, amount)
        try:
            return Reservation(self, amount, overdraft.account.reserve(overdraft.amount))
        except BudgetExceeded:
            self._hold(-amount)
            self._keep(-change)
            raise

    def release_kept(self) -> None:
        """Return what is kept for the last turn."""
        self._keep(-self.own_kept)

    def prepay(self) -> None:
        """Keep what is left of the limit at every ancestor, so that nobody else can use it.

        From then on, this account and its descendants need no room there. Their spending is taken
        from it. Raises BudgetExceeded if an ancestor has no room for it.
        """
        at, limit, spent = self._limited_ancestor, self.limit, self.spent
        if at is None:
            return
        limited = [node.limit for node in (self, *at.self_and_ancestors())]

        def left(name: str) -> int:
            """0 for what neither this account nor an ancestor limits."""
            if all(getattr(one, name) == UNLIMITED for one in limited):
                return 0
            total, used = getattr(limit, name), getattr(spent, name)
            return int(max(0, total - used))

        amount = Resources(0, 0, left("tokens"), left("cost_microusd"), left("billed_tokens"))
        at._check(amount)
        self._prepaid_at, self._limited_ancestor = at, None
        self._change_prepaid(amount)

    def release_prepaid(self) -> None:
        """Return what was prepaid and is not used."""
        self._change_prepaid(-self._prepaid_left)

    def _change_prepaid(self, change: Resources) -> None:
        self._prepaid_left += change
        node = self._prepaid_at
        while node is not None:
            node.kept += change
            node.prepaid_below += change
            node = node._limited_ancestor

    def spend_call(self) -> None:
        """Charge a tool call. Raises BudgetExceeded if none is left."""
        if self.spent.tool_calls + self.reserved.tool_calls >= self.limit.tool_calls:
            raise _exceeded(self, "max_tool_calls", ONE_CALL)
        self.spent += ONE_CALL

    def charge(self, amount: Resources) -> None:
        """Count `amount` as spent, whatever the limits say; the shared part at every ancestor."""
        self.spent += amount
        if amount.tokens or amount.cost_microusd or amount.billed_tokens:
            share, node = amount.shared(), self
            while (parent := node.parent) is not None:
                if node._prepaid_at is not None:
                    node._change_prepaid(-_lesser(share, node._prepaid_left))
                parent.spent += share
                node = parent

    # Ancestors without a shared limit do not count what is reserved or kept: nothing asks for it,
    # and in most runs that is all of them.

    def _hold(self, amount: Resources) -> None:
        """Count `amount` as reserved; a negative amount is released."""
        self.reserved += amount
        node = self._limited_ancestor
        if node is not None and (amount.tokens or amount.cost_microusd or amount.billed_tokens):
            share = amount.shared()
            while node is not None:
                node.reserved += share
                node = node._limited_ancestor

    def _keep(self, change: Resources) -> None:
        if change.tokens or change.cost_microusd or change.billed_tokens:
            self.own_kept += change
            node: Account | None = self
            while node is not None:
                node.kept += change
                node = node._limited_ancestor

    def _check(self, amount: Resources) -> None:
        """Raise BudgetExceeded if `amount` breaks a limit. An amount of 0 or less breaks none."""
        limit, spent, held = self.limit, self.spent, self.reserved
        calls, turns = amount.tool_calls, amount.turns
        if calls > 0 and calls > limit.tool_calls - spent.tool_calls - held.tool_calls:
            raise _exceeded(self, "max_tool_calls", amount)
        if turns > 0 and turns > limit.turns - spent.turns - held.turns:
            raise _exceeded(self, "max_turns", amount)
        tokens, cost, billed = amount.tokens, amount.cost_microusd, amount.billed_tokens
        node: Account | None = self if tokens > 0 or cost > 0 or billed > 0 else None
        while node is not None:
            limit, spent, held, kept = node.limit, node.spent, node.reserved, node.kept
            if tokens > 0 and tokens > limit.tokens - spent.tokens - held.tokens - kept.tokens:
                raise _exceeded(node, "max_tokens", amount)
            if cost > 0 and cost > (
                limit.cost_microusd - spent.cost_microusd - held.cost_microusd - kept.cost_microusd
            ):
                raise _exceeded(node, "max_cost_usd", amount)
            if billed > 0 and billed > (
                limit.billed_tokens - spent.billed_tokens - held.billed_tokens - kept.billed_tokens
            ):
                raise _exceeded(node, "max_billed_tokens", amount)
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
        account = self._account
        account._hold(-self.amount)
        account.charge(actual)
        if self._overdraft is not None:
            self._overdraft.release()

    def release(self) -> None:
        """Return everything: the act did not happen."""
        if self.open:
            self.settle(ZERO)


def _lesser(a: Resources, b: Resources) -> Resources:
    """The lesser of the shared amounts."""
    return Resources(
        0,
        0,
        min(a.tokens, b.tokens),
        min(a.cost_microusd, b.cost_microusd),
        min(a.billed_tokens, b.billed_tokens),
    )


def _exceeded(node: Account, limit: str, asked: Resources) -> BudgetExceeded:
    held_or_kept = node.reserved + node.kept
    total, spent, held = (_amount(r, limit) for r in (node.limit, node.spent, held_or_kept))
    return BudgetExceeded(
        f"{node.name} has no room left under {limit} ({spent} of {total} used, {held} reserved;"
        f" asked for {_amount(asked, limit)}).",
        limit=limit,
    )


def _amount(resources: Resources, limit: str) -> str:
    if limit == "max_cost_usd":
        return f"{resources.cost_microusd / MICROUSD_PER_USD:.4f} USD"
    return f"{getattr(resources, limit.removeprefix('max_')):,}"
