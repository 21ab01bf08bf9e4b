from __future__ import annotations

from retinue.interfaces.view.styled_text import Span, hard_wrap, plain_text, wrap


def test_wrap_with_prefixes() -> None:
    lines = wrap([Span("one two three")], 10, first="-> ", rest="   ")
    assert plain_text(lines).split("\n") == ["-> one two", "   three"]
    assert plain_text(hard_wrap("abcdef", 5, indent="  ")).split("\n") == ["  abc", "  def"]
