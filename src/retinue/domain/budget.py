"""Limits, and the arithmetic that keeps a tree of agents inside them.

`Budget` is what a contract says. Accounts form a tree: an amount is reserved at a node and, for
what is shared (tokens, money), at every ancestor, before the act that may spend it; what was not
used returns. The invariant, at every node and at all times:

    spent + reserved <= limit

as long as nobody spends more than they reserved. A server that bills more than the worst case we
computed is booked as it is, since hiding it would be worse.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from retinue.errors import BudgetExceeded, ContractError

MICRO = 1_000_000
MIN_TIMEOUT_S = 5.0
MOST = 2**53
"""The largest limit: what every reader of JSON can hold."""

DEFAULT_MAX_TOOL_CALLS = 15
DEFAULT_MAX_TURNS = 50
DEFAULT_MAX_TOKENS = 65_536
DEFAULT_MAX_CONTEXT_TOKENS = 8_192
DEFAULT_TIMEOUT_S = 300.0
DEFAULT_MAX_RETRIES = 1


class SomeLimits(msgspec.Struct, frozen=True, kw_only=True):
    """A budget of which only some limits are set."""

    max_tool_calls: int | None = None
    max_turns: int | None = None
    max_tokens: int | None = None
    max_context_tokens: int | None = None
    timeout_s: float | None = None
    max_cost_usd: float | None = None
    max_retries: int | None = None

    def chosen(self) -> dict[str, Any]:
        return {f: v for f in self.__struct_fields__ if (v := getattr(self, f)) is not None}


class Budget(msgspec.Struct, frozen=True, gc=False, kw_only=True, forbid_unknown_fields=True):
    """What one agent may use over its life (`timeout_s`: per attempt). None means no limit."""

    max_tool_calls: int = DEFAULT_MAX_TOOL_CALLS
    max_turns: int = DEFAULT_MAX_TURNS
    max_tokens: int | None = DEFAULT_MAX_TOKENS
    max_context_tokens: int = DEFAULT_MAX_CONTEXT_TOKENS
    timeout_s: float = DEFAULT_TIMEOUT_S
    max_cost_usd: float | None = None
    max_retries: int = DEFAULT_MAX_RETRIES

    def __post_init__(self) -> None:
        for name, value in (
            ("max_tool_calls", self.max_tool_calls),
            ("max_turns", self.max_turns),
            ("max_tokens", self.max_tokens),
            ("max_context_tokens", self.max_context_tokens),
        ):
            if type(value) is int and 0 < value <= MOST:
                continue
            if value is None and name == "max_tokens":
                continue
            if isinstance(value, bool) or not isinstance(value, int):
                raise ContractError(f"{name} must be a whole number, not {value!r}.")
            if value <= 0:
                raise ContractError(f"{name} must be positive, not {value}.")
            if value > MOST:
                raise ContractError(f"{name} must be at most {MOST:,}.")
        if isinstance(self.max_retries, bool) or not isinstance(self.max_retries, int):
            raise ContractError(f"max_retries must be a whole number, not {self.max_retries!r}.")
        if self.max_retries < 0:
            raise ContractError(f"max_retries must be 0 or more, not {self.max_retries}.")
        if self.max_retries > MOST:
            raise ContractError(f"max_retries must be at most {MOST:,}.")
        # An int and the equal float would be two byte strings for one value.
        _force_float(self, "timeout_s")
        if self.timeout_s < MIN_TIMEOUT_S:
            raise ContractError(
                f"timeout_s must be at least {MIN_TIMEOUT_S:g} seconds, not {self.timeout_s:g}."
            )
        if self.max_cost_usd is not None:
            _force_float(self, "max_cost_usd")
            if self.max_cost_usd <= 0:
                raise ContractError(f"max_cost_usd must be positive, not {self.max_cost_usd:g}.")
            if round(self.max_cost_usd * MICRO) == 0:
                raise ContractError(
                    f"max_cost_usd must be at least {1 / MICRO:f}, not {self.max_cost_usd:g}."
                )

    def limits(self) -> Amounts:
        """The budget as the amounts that a ledger counts."""
        cost = None if self.max_cost_usd is None else round(self.max_cost_usd * MICRO)
        return Amounts(
            tool_calls=self.max_tool_calls,
            turns=self.max_turns,
            tokens=UNLIMITED if self.max_tokens is None else self.max_tokens,
            cost_microusd=UNLIMITED if cost is None else cost,
        )


def _force_float(budget: Budget, name: str) -> None:
    value = getattr(budget, name)
    if type(value) is float and 0 <= value <= MOST:
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ContractError(f"{name} must be a number, not {value!r}.")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ContractError(f"{name} must be a finite number.")
    if number > MOST:
        raise ContractError(f"{name} must be at most {MOST:,}.")
    msgspec.structs.force_setattr(budget, name, number)


UNLIMITED = 2**62


class Amounts(msgspec.Struct, frozen=True, gc=False):
    """A vector of what can be spent. Money is whole micro-dollars, so that sums are exact."""

    tool_calls: int = 0
    turns: int = 0
    tokens: int = 0
    cost_microusd: int = 0

    def __add__(self, other: Amounts) -> Amounts:
        return Amounts(
            self.tool_calls + other.tool_calls,
            self.turns + other.turns,
            self.tokens + other.tokens,
            self.cost_microusd + other.cost_microusd,
        )

    def __sub__(self, other: Amounts) -> Amounts:
        return Amounts(
            self.tool_calls - other.tool_calls,
            self.turns - other.turns,
            self.tokens - other.tokens,
            self.cost_microusd - other.cost_microusd,
        )

    def shared(self) -> Amounts:
        """The part that ancestors pay too. A child's turns and tool calls are its own."""
        return Amounts(0, 0, self.tokens, self.cost_microusd)

    def above_zero(self) -> Amounts:
        return Amounts(
            max(0, self.tool_calls),
            max(0, self.turns),
            max(0, self.tokens),
            max(0, self.cost_microusd),
        )

    def covers(self, other: Amounts) -> bool:
        return not any(True for _ in self.short_of(other))

    def short_of(self, other: Amounts) -> Iterator[str]:
        """The names of the limits that `other` breaks."""
        if other.tool_calls > self.tool_calls:
            yield "max_tool_calls"
        if other.turns > self.turns:
            yield "max_turns"
        if other.tokens > self.tokens:
            yield "max_tokens"
        if other.cost_microusd > self.cost_microusd:
            yield "max_cost_usd"


NOTHING = Amounts()


class Account:
    """One node of the ledger: a limit, what is spent, and what is promised."""

    __slots__ = ("_bound", "limit", "name", "parent", "reserved", "spent")

    def __init__(self, name: str, limit: Amounts, parent: Account | None = None) -> None:
        self.name = name
        self.limit = limit
        self.parent = parent
        # The next above with a limit to keep. Most runs have none for all of their agents.
        self._bound = parent
        if parent is not None and parent.limit.tokens == parent.limit.cost_microusd == UNLIMITED:
            self._bound = parent._bound
        self.spent = NOTHING
        self.reserved = NOTHING

    def lineage(self) -> Iterator[Account]:
        node: Account | None = self
        while node is not None:
            yield node
            node = node.parent

    def unspent(self) -> Amounts:
        """What this account can still come to: its own rest and, if shared, that of its ancestors.

        Open reservations are not counted: they return, or are spent, and one can wait for that.
        """
        limit, spent = self.limit, self.spent
        return Amounts(
            max(0, limit.tool_calls - spent.tool_calls),
            max(0, limit.turns - spent.turns),
            *self.unspent_shares(),
        )

    def unspent_shares(self) -> tuple[int, int]:
        """Of what is unspent, the tokens and the micro-dollars."""
        tokens = cost = UNLIMITED
        node: Account | None = self
        while node is not None:
            limit, spent = node.limit, node.spent
            # As comparisons: `min` takes four times as long, and every turn and tool call asks.
            if (left := limit.tokens - spent.tokens) < tokens:
                tokens = left
            if (left := limit.cost_microusd - spent.cost_microusd) < cost:
                cost = left
            node = node._bound
        return (tokens if tokens > 0 else 0), (cost if cost > 0 else 0)

    def reserve(self, amount: Amounts, *, cover: Cover | None = None) -> Reservation:
        """Set `amount` aside here and at every ancestor, or nowhere and raise BudgetExceeded."""
        self._check(amount)
        self._hold(amount)
        if cover is None:
            return Reservation(self, amount)
        try:
            return Reservation(self, amount, cover.account.reserve(cover.amount))
        except BudgetExceeded:
            self._hold(NOTHING - amount)
            raise

    def spend(self, amount: Amounts) -> None:
        """Reserve `amount` and use all of it, in one step."""
        self._check(amount)
        self.book(amount)

    def book(self, amount: Amounts) -> None:
        """Count what is spent, whatever the limits say; of what is shared, at every ancestor."""
        self.spent += amount
        if amount.tokens or amount.cost_microusd:
            share, node = amount.shared(), self.parent
            while node is not None:
                node.spent += share
                node = node.parent

    def _hold(self, amount: Amounts) -> None:
        """Count what is promised, as `book` counts what is spent; less than nothing returns it."""
        self.reserved += amount
        if amount.tokens or amount.cost_microusd:
            share, node = amount.shared(), self.parent
            while node is not None:
                node.reserved += share
                node = node.parent

    def _check(self, amount: Amounts) -> None:
        """Refuse what would break a limit. Asking for nothing of a kind breaks no limit of it."""
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
            node = node._bound

    def blocked_only_by_promises(self, amount: Amounts) -> bool:
        """Would `amount` fit if every open reservation were returned? Then waiting can help."""
        need = amount
        for node in self.lineage():
            if not (node.limit - node.spent).above_zero().covers(need):
                return False
            need = amount.shared()
        return True


class Cover(NamedTuple):
    """What is set aside further up besides, where an account is too small for the worst case.

    Should the worst case come about, the small account is overdrawn, and none that is shared.
    """

    account: Account
    amount: Amounts


class Reservation:
    """A promise of some amount. Settle it once, with what was really used."""

    __slots__ = ("_account", "_cover", "_open", "amount")

    def __init__(self, account: Account, amount: Amounts, cover: Reservation | None = None) -> None:
        self._account = account
        self._cover = cover
        self.amount = amount
        self._open = True

    @property
    def open(self) -> bool:
        return self._open

    def settle(self, actual: Amounts) -> None:
        """Book `actual` and return the rest. More than was promised is booked as well."""
        if not self._open:
            raise AssertionError("a reservation is settled once")
        self._open = False
        self._account._hold(NOTHING - self.amount)
        self._account.book(actual)
        if self._cover is not None:
            self._cover.release()

    def release(self) -> None:
        """Return everything: the act did not happen."""
        if self._open:
            self.settle(NOTHING)


def _exceeded(node: Account, limit: str, asked: Amounts) -> BudgetExceeded:
    return BudgetExceeded(
        f"{node.name} has no room left under {limit}"
        f" ({_describe(node, limit)}; asked for {_amount(asked, limit)}).",
        limit=limit,
    )


def _amount(amounts: Amounts, limit: str) -> str:
    if limit == "max_cost_usd":
        return f"{amounts.cost_microusd / MICRO:.4f} USD"
    return f"{getattr(amounts, limit.removeprefix('max_')):,}"


def _describe(node: Account, limit: str) -> str:
    total, spent, held = (_amount(a, limit) for a in (node.limit, node.spent, node.reserved))
    return f"{spent} of {total} used, {held} reserved"
