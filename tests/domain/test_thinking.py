from __future__ import annotations

import pytest

from retinue.domain.thinking import ThinkingOptions, parse_thinking
from retinue.errors import ConfigError


@pytest.mark.parametrize(
    ("options", "meant"),
    [
        ("", ThinkingOptions()),
        ("thinking", ThinkingOptions(on=True)),
        ("thinking=off", ThinkingOptions(on=False)),
        ("thinking=8000", ThinkingOptions(on=True, budget_tokens=8000)),
        ("effort=low", ThinkingOptions(effort="low")),
        ("thinking+effort=max", ThinkingOptions(on=True, effort="max")),
        (
            "thinking=1024+effort=xhigh",
            ThinkingOptions(on=True, budget_tokens=1024, effort="xhigh"),
        ),
    ],
)
def test_parse_options(options: str, meant: ThinkingOptions) -> None:
    assert parse_thinking(options) == meant
    assert str(meant).removeprefix("+") == options


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ("thinking=1000", "thinking=1000 is too small; write at least 1024."),
        (
            "effort=huge",
            "Unknown effort 'huge'; known: none, minimal, low, medium, high, xhigh, max.",
        ),
        ("effort", "Unknown effort ''; known: none, minimal, low, medium, high, xhigh, max."),
        (
            "thinking=much",
            "Unknown option 'thinking=much'; write thinking, thinking=off, thinking=8000 (a number"
            " of tokens) or effort=high.",
        ),
        (
            "thinking+",
            "Unknown option ''; write thinking, thinking=off, thinking=8000 (a number of tokens) or"
            " effort=high.",
        ),
    ],
)
def test_unknown_options(options: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_thinking(options)
    assert str(caught.value) == problem
