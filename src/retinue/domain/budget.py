"""Limits on what an agent may use.

`Limits` declares them. Each is optional: roles, settings, tasks, plans and command lines set some
and leave the others. `Budget` has a value for each; a contract holds one. `retinue.domain.account`
counts what is used of it.
"""

from __future__ import annotations

import math
from typing import Any, TypedDict

import msgspec

from retinue.domain.account import MICROUSD_PER_USD, UNLIMITED, Resources
from retinue.errors import ContractError, UsageError

MIN_TIMEOUT_S = 5.0
BILLED_PER_TOKEN = 20
"""`max_billed_tokens` for each token of `max_tokens`, unless it is set or a price is known."""
UNKNOWN_WINDOW = 32_768
"""The window assumed for a model whose window is unknown."""
ANSWER_ROOM = 8_192
MAX_LIMIT = 2**53
"""The largest integer that every JSON reader can hold."""


BUDGET_SCALES = {"tight": 0.5, "normal": 1.0, "generous": 4.0}
"""Factors for all limits together, by name."""


def context_of_window(window: int) -> int:
    """The longest prompt for a window that also has to hold the answer."""
    return window - min(ANSWER_ROOM, window // 4)


class Limits(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Limits on one agent, or on a whole run. None means that the limit is not set here.

    ```python
    limits = retinue.Limits(max_tokens=200_000, timeout_s=60)
    assert limits.given() == {"max_tokens": 200_000, "timeout_s": 60}
    assert limits.applied_to(retinue.Budget()).max_tool_calls == 15
    ```
    """

    max_tool_calls: int | None = None
    """Denied calls count too."""
    max_turns: int | None = None
    """Replies of the model."""
    max_tokens: int | None = None
    """Each token once: what was read and written, that of children included."""
    max_billed_tokens: int | None = None
    """Tokens that servers count, prompts that are sent again included; also those of children."""
    max_context_tokens: int | None = None
    """Length of the conversation that the model is sent; by default what its window holds."""
    timeout_s: float | None = None
    """Time for one attempt."""
    max_cost_usd: float | None = None
    max_retries: int | None = None
    """Attempts after the first."""

    def given(self) -> dict[str, Any]:
        """The limits that are set, by name."""
        if self == _NO_LIMITS:  # As for most children.
            return {}
        return {f: v for f in LIMIT_NAMES if (v := getattr(self, f)) is not None}

    def applied_to(self, budget: Budget) -> Budget:
        """`budget` with the limits that are set here instead of its own. Raises ContractError."""
        given = self.given()
        return msgspec.structs.replace(budget, **given) if given else budget


_NO_LIMITS = Limits()
LIMIT_NAMES = Limits.__struct_fields__


class LimitOptions(TypedDict, total=False):
    """`Limits` as keyword arguments of a function, or as a dict.

    ```python
    limits: retinue.LimitOptions = {"max_tokens": 200_000, "max_turns": 20}
    async with retinue.open(".", model=ScriptedModel([]), limits=limits) as rt:
        assert rt.budget.max_tokens == 200_000
    ```
    """

    max_tool_calls: int | None
    max_turns: int | None
    max_tokens: int | None
    max_billed_tokens: int | None
    max_context_tokens: int | None
    timeout_s: float | None
    max_cost_usd: float | None
    max_retries: int | None


def as_limits(value: Limits | LimitOptions | None) -> Limits:
    """`value` as Limits. Raises UsageError for a name that is no limit."""
    if isinstance(value, Limits):
        return value
    value = value or {}
    for name in value:
        if name not in LIMIT_NAMES:
            raise UsageError(f"Unknown limit {name!r}; there are: {', '.join(LIMIT_NAMES)}.")
    return Limits(**value)


class Budget(Limits, frozen=True, gc=False, kw_only=True, forbid_unknown_fields=True):
    """What one agent may use over its life: a value for every limit. None means no limit.

    The defaults are those of a child. Raises ContractError for a value that makes no sense.

    ```python
    budget = retinue.Budget(max_tool_calls=8, timeout_s=60)
    assert budget.max_tokens == 65_536
    assert budget.scaled(2).max_tool_calls == 16
    ```
    """

    max_tool_calls: int = 15
    max_turns: int = 50
    max_tokens: int | None = 65_536
    max_billed_tokens: int | None = None
    max_context_tokens: int | None = None
    timeout_s: float = 300.0
    max_cost_usd: float | None = None
    max_retries: int = 1

    def __post_init__(self) -> None:
        for name, value, least in (
            ("max_tool_calls", self.max_tool_calls, 1),
            ("max_turns", self.max_turns, 1),
            ("max_tokens", 1 if self.max_tokens is None else self.max_tokens, 1),
            (
                "max_billed_tokens",
                1 if self.max_billed_tokens is None else self.max_billed_tokens,
                1,
            ),
            ("max_context_tokens", self.context_tokens, 1),
            ("max_retries", self.max_retries, 0),
        ):
            if type(value) is not int or not least <= value <= MAX_LIMIT:
                raise _wrong_integer(name, value, least)
        _force_float(self, "timeout_s")
        if self.timeout_s < MIN_TIMEOUT_S:
            raise ContractError(
                f"timeout_s must be at least {MIN_TIMEOUT_S:g} seconds, not {self.timeout_s:g}."
            )
        if self.max_cost_usd is not None:
            _force_float(self, "max_cost_usd")
            if self.max_cost_usd <= 0:
                raise ContractError(f"max_cost_usd must be positive, not {self.max_cost_usd:g}.")
            if round(self.max_cost_usd * MICROUSD_PER_USD) == 0:
                least_usd = f"{1 / MICROUSD_PER_USD:f}"
                raise ContractError(
                    f"max_cost_usd must be at least {least_usd}, not {self.max_cost_usd:g}."
                )

    def applied_to(self, budget: Budget) -> Budget:
        """This budget: it has a value for every limit."""
        return self

    @property
    def context_tokens(self) -> int:
        """`max_context_tokens`; without it, what a window of unknown size certainly holds."""
        given = self.max_context_tokens
        return context_of_window(UNKNOWN_WINDOW) if given is None else given

    def scaled(self, factor: float) -> Budget:
        """All limits times `factor`, but for the context, which the model decides, and retries."""
        scaled: dict[str, Any] = {}
        for name, value in self.given().items():
            if name in ("max_context_tokens", "max_retries"):
                continue
            least = {"timeout_s": MIN_TIMEOUT_S, "max_cost_usd": 1 / MICROUSD_PER_USD}.get(name, 1)
            scaled[name] = type(value)(min(max(least, value * factor), MAX_LIMIT))
        return msgspec.structs.replace(self, **scaled)

    def resources(self, *, priced: bool = False) -> Resources:
        """What an account for this budget may spend.

        If no price is known (`priced`), `max_tokens` also limits how often prompts are sent again.
        """
        billed = self.max_billed_tokens
        if billed is None and self.max_tokens is not None and not priced:
            billed = BILLED_PER_TOKEN * self.max_tokens
        cost = None if self.max_cost_usd is None else round(self.max_cost_usd * MICROUSD_PER_USD)
        return Resources(
            tool_calls=self.max_tool_calls,
            turns=self.max_turns,
            tokens=UNLIMITED if self.max_tokens is None else self.max_tokens,
            cost_microusd=UNLIMITED if cost is None else cost,
            billed_tokens=UNLIMITED if billed is None else billed,
        )


def least(a: Budget, b: Budget) -> Budget:
    """The lower one of each limit."""
    limits: dict[str, Any] = {}
    for name in LIMIT_NAMES:
        given = [one for one in (getattr(a, name), getattr(b, name)) if one is not None]
        limits[name] = min(given, default=None)
    return Budget(**limits)


def _wrong_integer(name: str, value: object, least: int) -> ContractError:
    if isinstance(value, bool) or not isinstance(value, int):
        return ContractError(f"{name} must be a whole number, not {value!r}.")
    if value > MAX_LIMIT:
        return ContractError(f"{name} must be at most {MAX_LIMIT:,}.")
    return ContractError(f"{name} must be {'positive' if least else '0 or more'}, not {value}.")


def _force_float(budget: Budget, name: str) -> None:
    """Make the value a float: an int would be encoded as other bytes than the equal float."""
    value = getattr(budget, name)
    if type(value) is float and 0 <= value <= MAX_LIMIT:
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ContractError(f"{name} must be a number, not {value!r}.")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ContractError(f"{name} must be a finite number.")
    if number > MAX_LIMIT:
        raise ContractError(f"{name} must be at most {MAX_LIMIT:,}.")
    msgspec.structs.force_setattr(budget, name, number)
