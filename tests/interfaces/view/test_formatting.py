from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.interfaces.view.formatting import (
    cell_width,
    clip,
    clip_reason,
    format_cost,
    format_duration,
    one_line,
    pad,
    pad_left,
    printable_lines,
    short_count,
)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (999, "999"),
        (1_000, "1.0k"),
        (12_345, "12.3k"),
        (99_999, "100k"),
        (123_456, "123k"),
        (999_499, "999k"),
        (999_500, "1.0M"),
        (65_500_000, "65.5M"),
        (2_000_000_000, "2.0G"),
        (3_000_000_000_000, "3.0T"),
    ],
)
def test_short_count(number: int, text: str) -> None:
    assert short_count(number) == text


@given(st.integers(0, 10**14))
def test_short_count_takes_at_most_five_cells(number: int) -> None:
    assert cell_width(short_count(number)) <= 5


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0.0s"),
        (0.04, "0.0s"),
        (12.4, "12.4s"),
        (99.94, "99.9s"),
        (99.96, "1m 40s"),
        (200, "3m 20s"),
        (3_599.4, "59m 59s"),
        (3_599.6, "1h 00m"),
        (3_900, "1h 05m"),
        (360_000, "100h 00m"),
    ],
)
def test_format_duration(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@given(st.floats(0, 86_400))
def test_format_duration_takes_at_most_seven_cells(seconds: float) -> None:
    assert cell_width(format_duration(seconds)) <= 7


@pytest.mark.parametrize(
    ("amount", "text"),
    [(0, ""), (0.00001, "<$0.0001"), (0.0012, "$0.0012"), (0.34, "$0.34"), (1234.5, "$1,234.50")],
)
def test_format_cost(amount: float, text: str) -> None:
    assert format_cost(amount) == text


def test_one_line_removes_control_characters() -> None:
    assert one_line("  a\n\tb \x1b[31mred\x07  c ") == "a b [31mred c"
    assert one_line("plain text") == "plain text"


def test_printable_lines() -> None:
    assert printable_lines("def f():\n\treturn 1\x1b[2J\n") == ["def f():", "    return 1[2J"]


@pytest.mark.parametrize(
    ("text", "width"), [("abc", 3), ("日本", 4), ("e\u0301", 1), ("✓", 1), ("👍🏽", 2)]
)
def test_cell_width(text: str, width: int) -> None:
    assert cell_width(text) == width


def test_clip_ends_in_an_ellipsis() -> None:
    assert clip("abcdef", 6) == "abcdef"
    assert clip("abcdef", 4) == "abc…"
    assert clip("abc def", 5) == "abc…"
    assert clip("日本語", 4) == "日…"
    assert clip("abc", 0) == ""


@given(st.text(), st.integers(0, 40))
def test_pad_is_exact(text: str, width: int) -> None:
    assert cell_width(pad(text, width)) == width
    assert cell_width(pad_left(text, width)) == width


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (46, "http://127.0.0.1:80/v1 wants an API key (401)."),
        (30, "wants an API key (401)."),
        (12, "wants an AP…"),
        (0, ""),
    ],
)
def test_clip_reason_drops_the_address(width: int, shown: str) -> None:
    assert clip_reason("http://127.0.0.1:80/v1 wants an API key (401).", width) == shown


def test_clip_reason_keeps_a_lone_address() -> None:
    assert clip_reason("http://127.0.0.1:8080/v1", 10) == "http://12…"
