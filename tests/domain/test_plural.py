from __future__ import annotations

from retinue.domain.plural import listed, plural


def test_plural() -> None:
    assert [plural(n, "turn") for n in (0, 1, 1_000)] == ["0 turns", "1 turn", "1,000 turns"]


def test_listed() -> None:
    assert [listed("abc", most) for most in (2, 3)] == ["a, b and 1 more", "a, b, c"]
    assert listed([], 3) == ""
