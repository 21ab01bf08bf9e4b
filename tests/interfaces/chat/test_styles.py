from __future__ import annotations

from rich.cells import cell_len

from retinue.interfaces.chat.styles import to_strip
from retinue.interfaces.view.styled_text import Tone, styled


def test_control_characters_are_replaced() -> None:
    strip = to_strip(styled("a\x1b]0;x\x07", ("b\x9bc\u202e\n", Tone.FAILED)), 20)
    assert strip.text.isprintable()
    assert strip.text.startswith("a�]0;xb�c��")
    assert cell_len(strip.text) == 20
