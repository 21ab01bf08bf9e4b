from __future__ import annotations

from rich.cells import cell_len

from retinue.interfaces.chat.styles import to_strip
from retinue.interfaces.view.styled_text import Span, Tone


def test_control_characters_are_replaced() -> None:
    strip = to_strip((Span("a\x1b]0;x\x07"), Span("b\x9bc\u202e\n", Tone.FAILED)), 20)
    assert strip.text.isprintable()
    assert strip.text.startswith("a�]0;x�b�c��")
    assert cell_len(strip.text) == 20
