from __future__ import annotations

from retinue.domain.plural import plural


def test_plural() -> None:
    assert [plural(n, "turn") for n in (0, 1, 1_000)] == ["0 turns", "1 turn", "1,000 turns"]
