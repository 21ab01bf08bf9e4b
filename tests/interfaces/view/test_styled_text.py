from __future__ import annotations

from retinue.interfaces.view.styled_text import (
    Tone,
    clip_line,
    hard_wrap,
    plain_text,
    segments,
    styled,
    wrap,
)


def test_wrap_with_prefixes() -> None:
    lines = wrap(styled("one two three"), 10, first="-> ", rest="   ")
    assert plain_text(lines).split("\n") == ["-> one two", "   three"]
    assert plain_text(hard_wrap(styled("abcdef"), 3)).split("\n") == ["abc", "def"]
    assert plain_text(hard_wrap(styled("日本語"), 4)).split("\n") == ["日本", "語"]


def test_a_clipped_line_keeps_its_tones() -> None:
    line = clip_line(styled(("failed", Tone.FAILED), " and more"), 9)
    assert line.plain == "failed a…"
    first, *_ = segments(line)
    assert (first.text, str(first.style)) == ("failed", "red")
