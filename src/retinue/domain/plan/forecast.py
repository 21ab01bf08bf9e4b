"""Forecasts what a plan will use, from what agents of the same roles have used before."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from statistics import median

import msgspec

from retinue.domain.plan.plan import OnFailure, Plan, PlanStep
from retinue.domain.plan.schedule import run_through
from retinue.domain.price import PoolPrice, Price
from retinue.domain.result import Spent
from retinue.domain.role import Role

# For a role without history: about a third of what it may use, most of it input.
GUESSED_SHARE = 0.3
GUESSED_OUT = 0.1
GUESSED_TOKENS = 65_536
GUESSED_SPEED = 30.0
"""Output tokens a second."""


class Used(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Usage of an agent of an earlier run. `generating_s` is the time of its model only."""

    tokens_in: int
    tokens_out: int
    duration_s: float
    generating_s: float = 0.0
    tokens_repeated: int = 0
    """Input tokens that do not count for `max_tokens`."""


class StepForecast(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """The forecast of a step, based on `known` earlier agents; with 0 of them it is a guess.

    ```python
    forecast = await rt.forecast([("researcher", "Look around.")])
    for step in forecast.steps:
        print(step.step, step.tokens, "a guess" if step.known == 0 else "")
    ```
    """

    step: str
    tokens: int
    duration_s: float
    cost_usd: float = 0.0
    known: int = 0


class Forecast(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """The forecast of a plan; its `duration_s` accounts for steps that run at the same time.

    ```python
    forecast = await rt.forecast([("researcher", "Look around."), ("reviewer", "Review it.")])
    print(forecast.tokens, forecast.cost_usd, forecast.duration_s, forecast.guessed)
    ```
    """

    tokens: int
    duration_s: float
    steps: tuple[StepForecast, ...] = ()
    cost_usd: float = 0.0
    most_tokens: int | None = None

    @property
    def guessed(self) -> list[str]:
        """Steps whose forecast is only a guess."""
        return [step.step for step in self.steps if not step.known]

    def __str__(self) -> str:
        money = f", {self.cost_usd:.2f} USD" if self.cost_usd else ""
        most = "" if self.most_tokens is None else f" (at most {self.most_tokens:,})"
        guess = f"; {len(self.guessed)} of {len(self.steps)} steps are a guess"
        return (
            f"about {self.tokens:,} tokens{most}{money}, {self.duration_s:,.0f} s"
            f"{guess if self.guessed else ''}"
        )

    def against(self, spent: Spent) -> str:
        """The forecast beside what was really used."""
        money = f", {spent.cost_usd:.2f} USD{_difference(spent.cost_usd, self.cost_usd)}"
        return (
            f"forecast {self}; used {spent.tokens:,} tokens{_difference(spent.tokens, self.tokens)}"
            f"{money if self.cost_usd else ''},"
            f" {spent.duration_s:,.0f} s{_difference(spent.duration_s, self.duration_s, least=1.0)}"
        )


def _difference(actual: float, expected: float, *, least: float = 0.0) -> str:
    """The difference in percent; "" if next to nothing was expected."""
    return f" ({(actual - expected) / expected:+.0%})" if expected > least else ""


def forecast(
    plan: Plan,
    *,
    roles: Mapping[str, Role],
    history: Mapping[str, Sequence[Used]],
    limits: Mapping[str, int | None],
    limit: int | None,
    price: Callable[[PlanStep], Price | PoolPrice | None],
    slots: int,
    exclusive: Collection[str] = (),
) -> Forecast:
    """The likely usage of `plan`, if nothing fails and the review finds nothing.

    `history` is by role. `limits` are the tokens of each step, `limit` those of all together. Of
    the `exclusive` steps, one runs at a time.
    """
    speed = _speed([used for several in history.values() for used in several])
    steps = [
        _step(step, roles[step.role], history.get(step.role, ()), limits, price(step), speed)
        for step in plan.work
    ]
    took_s = {step.step: step.duration_s for step in steps}
    needs = {step.name: step.depends_on for step in plan.work}
    times = run_through(needs, took_s, took_s, slots=slots, exclusive=exclusive)
    return Forecast(
        tokens=sum(step.tokens for step in steps),
        duration_s=max((end for _, end in times.values()), default=0.0),
        cost_usd=round(sum(step.cost_usd for step in steps), 6),
        most_tokens=_most(plan, limits, limit),
        steps=tuple(steps),
    )


def _most(plan: Plan, limits: Mapping[str, int | None], limit: int | None) -> int | None:
    """The most tokens that the steps can use; None if further steps may come and have no limit."""
    if plan.review or any(step.on_failure is OnFailure.REPLAN for step in plan.steps):
        return limit
    most = 0
    for step in plan.steps:
        own = limits.get(step.name)
        if own is None:
            return limit
        most += own * step.children
    return most


def _step(
    step: PlanStep,
    role: Role,
    known: Sequence[Used],
    limits: Mapping[str, int | None],
    price: Price | PoolPrice | None,
    speed: float,
) -> StepForecast:
    limit = limits.get(step.name)
    if known:
        tokens_in = round(median(used.tokens_in for used in known))
        tokens_out = round(median(used.tokens_out for used in known))
        repeated = round(median(used.tokens_repeated for used in known))
        duration_s = median(used.duration_s for used in known)
    else:
        repeated = 0
        guess = (limit or role.budget.max_tokens or GUESSED_TOKENS) * GUESSED_SHARE
        tokens_out = round(guess * GUESSED_OUT)
        tokens_in = round(guess) - tokens_out
        duration_s = tokens_out / speed
    tokens = tokens_in - repeated + tokens_out
    cost_microusd = 0 if price is None else price.max_cost_microusd(tokens_in, tokens_out)
    return StepForecast(
        step=step.name,
        tokens=min(tokens, limit or tokens) * step.candidates,
        duration_s=round(duration_s if step.expect_s is None else step.expect_s, 3),
        # The highest cost: that of the most expensive model of a pool.
        cost_usd=step.candidates * cost_microusd / 1e6,
        known=len(known),
    )


def _speed(known: Sequence[Used]) -> float:
    """Output tokens a second of the agents so far."""
    took_s = sum(used.generating_s for used in known)
    tokens = sum(used.tokens_out for used in known)
    return tokens / took_s if took_s and tokens else GUESSED_SPEED
