"""Forecasts: from what roles have used before, or a guess; and how they came true."""

from __future__ import annotations

from typing import Any

from retinue.config.roles import builtin_roles
from retinue.domain.plan.forecast import Forecast, Used, forecast
from retinue.domain.plan.plan import OnFailure, Plan, PlanStep
from retinue.domain.price import Price
from retinue.domain.result import Spent

ROLES = dict(builtin_roles())


def step(name: str, *needs: str, role: str = "researcher", **more: Any) -> PlanStep:
    return PlanStep(name=name, role=role, task="x", depends_on=needs, **more)


def expected(
    *steps: PlanStep,
    history: dict[str, list[Used]] | None = None,
    limits: dict[str, int | None] | None = None,
    limit: int | None = None,
    review: bool = False,
    price: Price | None = None,
    slots: int = 3,
) -> Forecast:
    return forecast(
        Plan(goal="G", steps=steps, review=review),
        roles=ROLES,
        history=history or {},
        limits=limits or {},
        limit=limit,
        price=lambda _: price,
        slots=slots,
    )


def used(tokens_in: int, tokens_out: int, duration_s: float, generating_s: float = 0.0) -> Used:
    return Used(
        tokens_in=tokens_in,
        tokens_out=tokens_out,
        duration_s=duration_s,
        generating_s=generating_s,
    )


def test_it_is_the_middle_of_what_the_role_has_used() -> None:
    known = [used(900, 100, 5.0), used(1_900, 100, 10.0), used(90_000, 100, 300.0)]
    found = expected(step("a"), step("b"), history={"researcher": known})
    assert (found.tokens, found.duration_s) == (4_000, 10.0)
    assert found.guessed == []
    assert str(found) == "about 4,000 tokens, 10 s"


def test_steps_side_by_side_take_the_time_of_one() -> None:
    known = {"researcher": [used(100, 10, 10.0)]}
    steps = [step("a"), step("b"), step("c", "a", "b")]
    assert expected(*steps, history=known, slots=2).duration_s == 20.0
    assert expected(*steps, history=known, slots=1).duration_s == 30.0


def test_without_a_history_it_is_a_guess_at_the_speed_of_the_endpoint() -> None:
    found = expected(step("a"), limits={"a": 10_000})
    assert (found.tokens, found.most_tokens) == (3_000, 10_000)
    assert found.duration_s == 10.0
    assert str(found).endswith("; 1 of 1 steps are a guess")
    fast = expected(
        step("a"),
        step("b", "a", role="planner"),
        limits={"a": 10_000, "b": 10_000},
        history={"planner": [used(10, 300, 1.0, generating_s=1.0)]},
    )
    assert fast.duration_s == 2.0


def test_a_model_that_has_written_nothing_has_no_speed() -> None:
    known = {"planner": [used(10, 0, 1.0, generating_s=1.0)]}
    assert expected(step("a"), limits={"a": 10_000}, history=known).duration_s == 10.0


def test_the_most_is_the_most() -> None:
    limits: dict[str, int | None] = {"a": 10_000, "b": 5_000}
    again = step("a", on_failure=OnFailure.RETRY)
    anew = step("a", on_failure=OnFailure.REPLAN)
    assert expected(again, step("b"), limits=limits).most_tokens == 25_000
    assert expected(again, step("c"), limits=limits).most_tokens is None
    # What comes on top of these steps is held by the limit of the whole, or by nothing.
    assert expected(anew, limits=limits).most_tokens is None
    assert expected(anew, limits=limits, limit=40_000).most_tokens == 40_000
    assert expected(step("b"), limits=limits, review=True).most_tokens is None


def test_the_review_takes_its_part() -> None:
    known = {"researcher": [used(900, 100, 10.0)], "reviewer": [used(400, 100, 5.0)]}
    found = expected(step("a"), step("b"), history=known, review=True)
    assert (found.tokens, found.duration_s) == (2_500, 15.0)


def test_what_a_step_says_of_its_time_counts() -> None:
    assert expected(step("a", expect_s=77.0)).duration_s == 77.0


def test_no_step_is_expected_to_use_more_than_it_may() -> None:
    known = {"researcher": [used(90_000, 100, 5.0)]}
    assert expected(step("a"), history=known, limits={"a": 5_000}).tokens == 5_000


def test_money_is_what_the_tokens_cost() -> None:
    known = {"researcher": [used(1_000_000, 100_000, 5.0)]}
    found = expected(step("a"), history=known, price=Price(input=2.0, output=10.0))
    assert round(found.cost_usd, 3) == 3.0


def test_afterwards_it_is_told_how_far_off_it_was() -> None:
    found = Forecast(tokens=1_000, duration_s=10.0, cost_usd=2.0)
    spent = Spent(tokens_in=1_000, tokens_out=200, cost_usd=1.0, duration_s=5.0)
    assert found.against(spent) == (
        "forecast about 1,000 tokens, 2.00 USD, 10 s; used 1,200 tokens (+20%), 1.00 USD (-50%),"
        " 5 s (-50%)"
    )


def test_of_no_time_at_all_no_part_is_told() -> None:
    found = Forecast(tokens=100, duration_s=0.02)
    told = found.against(Spent(tokens_in=100, duration_s=0.3))
    assert told == "forecast about 100 tokens, 0 s; used 100 tokens (+0%), 0 s"
