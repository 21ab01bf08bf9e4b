from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.domain.account import UNLIMITED, Resources
from retinue.domain.budget import (
    BUDGET_SCALES,
    LIMIT_NAMES,
    MAX_LIMIT,
    MIN_TIMEOUT_S,
    Budget,
    Limits,
    as_limits,
    context_of_window,
    least,
)
from retinue.errors import ContractError, UsageError


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ({"max_tool_calls": 0}, "max_tool_calls must be positive, not 0."),
        ({"max_turns": -1}, "max_turns must be positive, not -1."),
        ({"max_tokens": 0}, "max_tokens must be positive, not 0."),
        ({"max_billed_tokens": 0}, "max_billed_tokens must be positive, not 0."),
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
def test_an_invalid_limit_is_refused_by_name(terms: dict[str, Any], message: str) -> None:
    with pytest.raises(ContractError) as caught:
        Budget(**terms)
    assert str(caught.value) == message


def test_smallest_allowed_limits() -> None:
    lowest = Budget(
        max_tool_calls=1,
        max_turns=1,
        max_tokens=1,
        max_context_tokens=1,
        timeout_s=5,
        max_cost_usd=0.000001,
        max_retries=0,
    )

    assert lowest.resources() == Resources(1, 1, 1, 1, 20)
    assert Budget(max_billed_tokens=1).resources().billed_tokens == 1


def test_the_defaults_are_those_of_a_child() -> None:
    assert msgspec.to_builtins(Budget()) == {
        "max_tool_calls": 15,
        "max_turns": 50,
        "max_tokens": 65_536,
        "max_billed_tokens": None,
        "max_context_tokens": None,
        "timeout_s": 300.0,
        "max_cost_usd": None,
        "max_retries": 1,
    }


def test_an_int_and_the_equal_float_are_one_value() -> None:
    ints, floats = Budget(timeout_s=60, max_cost_usd=2), Budget(timeout_s=60.0, max_cost_usd=2.0)

    assert msgspec.json.encode(ints) == msgspec.json.encode(floats)


def test_none_is_unlimited() -> None:
    limits = Budget(max_tokens=None).resources()

    assert limits.tokens == UNLIMITED
    assert limits.cost_microusd == UNLIMITED


@given(st.integers(1, 10**12))
def test_money_is_counted_in_whole_millionths(microusd: int) -> None:
    assert Budget(max_cost_usd=microusd / 1_000_000).resources().cost_microusd == microusd


def test_a_budget_cannot_be_changed_or_misspelled() -> None:
    with pytest.raises(AttributeError):
        Budget().max_turns = 3  # type: ignore[misc]
    with pytest.raises(msgspec.ValidationError, match="max_turn"):
        msgspec.json.decode(b'{"max_turn": 3}', type=Budget)


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        ({"max_tokens": 2**53 + 1}, "max_tokens must be at most 9,007,199,254,740,992."),
        ({"max_retries": 10**30}, "max_retries must be at most 9,007,199,254,740,992."),
        ({"timeout_s": 1e16}, "timeout_s must be at most 9,007,199,254,740,992."),
        ({"max_cost_usd": 1e300}, "max_cost_usd must be at most 9,007,199,254,740,992."),
    ],
)
def test_the_largest_limit_fits_into_json(limit: dict[str, Any], message: str) -> None:
    with pytest.raises(ContractError) as caught:
        Budget(**limit)
    assert str(caught.value) == message


def test_limits_replace_those_of_a_budget() -> None:
    budget = Budget(max_tokens=None, max_turns=7)

    assert Limits().applied_to(budget) is budget
    assert Limits(max_tokens=10).applied_to(budget) == Budget(max_tokens=10, max_turns=7)
    assert Limits(max_tokens=10, timeout_s=9).given() == {"max_tokens": 10, "timeout_s": 9}
    assert Budget(max_turns=3).applied_to(budget) == Budget(max_turns=3)
    with pytest.raises(ContractError, match="max_turns must be positive, not 0"):
        Limits(max_turns=0).applied_to(budget)


def test_a_budget_has_a_value_for_every_limit() -> None:
    assert Budget.__struct_fields__ == LIMIT_NAMES


def test_the_least_of_two_budgets_has_the_lower_one_of_each_limit() -> None:
    one = Budget(max_turns=3, max_tokens=None, max_billed_tokens=9, timeout_s=60)
    other = Budget(max_turns=5, max_tokens=7, max_cost_usd=2, timeout_s=90)
    both = Budget(max_turns=3, max_tokens=7, max_billed_tokens=9, max_cost_usd=2, timeout_s=60)
    assert least(one, other) == least(other, one) == both


def test_limits_may_be_written_as_a_dict() -> None:
    assert as_limits(None) == Limits()
    assert as_limits({"max_turns": 3}) == Limits(max_turns=3)
    with pytest.raises(UsageError, match="Unknown limit 'max_turn'; there are: max_tool_calls, "):
        as_limits({"max_turn": 3})  # type: ignore[arg-type]


def test_scales_by_name() -> None:
    assert BUDGET_SCALES == {"tight": 0.5, "normal": 1.0, "generous": 4.0}


@pytest.mark.parametrize(
    ("window", "prompt"), [(4_096, 3_072), (32_768, 24_576), (200_000, 191_808)]
)
def test_window_also_holds_the_answer(window: int, prompt: int) -> None:
    assert context_of_window(window) == prompt


def test_scaled_limits() -> None:
    budget = Budget(max_tool_calls=15, max_tokens=None, timeout_s=8.0, max_cost_usd=0.5)
    tight = budget.scaled(0.5)
    assert (tight.max_tool_calls, tight.max_turns, tight.max_tokens) == (7, 25, None)
    assert (tight.timeout_s, tight.max_cost_usd) == (5.0, 0.25)
    assert (tight.max_context_tokens, tight.max_retries) == (
        budget.max_context_tokens, budget.max_retries
    )  # fmt: skip
    assert Budget(max_tool_calls=1).scaled(0.5).max_tool_calls == 1
    assert Budget(max_cost_usd=0.000001).scaled(0.5).max_cost_usd == 0.000001
    assert budget.scaled(1.0) == budget


@given(
    st.integers(1, MAX_LIMIT),
    st.floats(MIN_TIMEOUT_S, MAX_LIMIT),
    st.floats(0.000001, MAX_LIMIT),
    st.sampled_from([*BUDGET_SCALES.values()]),
)
def test_scaled_limits_are_valid(number: int, timeout_s: float, usd: float, factor: float) -> None:
    budget = Budget(max_tool_calls=number, max_tokens=number, timeout_s=timeout_s, max_cost_usd=usd)
    assert type(budget.scaled(factor).max_tokens) is int
