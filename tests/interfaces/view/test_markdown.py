"""Markdown as lines of a width."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from retinue.interfaces.view.formatting import cell_width, printable_lines
from retinue.interfaces.view.markdown import render_markdown
from retinue.interfaces.view.styled_text import Span, Tone, hard_wrap, plain_text, wrap


def drawn(text: str, width: int = 40) -> list[str]:
    return plain_text(render_markdown(text, width)).split("\n")


def toned(text: str, tone: Tone) -> list[str]:
    return [span.text for line in render_markdown(text, 80) for span in line if span.tone is tone]


def test_paragraphs_are_broken_between_words() -> None:
    assert drawn("one two three four", 12) == ["one two", "three four"]
    assert drawn("one\n\ntwo") == ["one", "", "two"]


def test_what_is_longer_than_a_line_is_broken_anywhere() -> None:
    assert drawn("x" * 20 + " y", 12) == ["x" * 12, "x" * 8 + " y"]
    assert drawn("日本語日本語", 8) == ["日本語日", "本語"]


def test_items_hang() -> None:
    assert drawn("- one two three four\n  1. five six seven", 12) == [
        "• one two",
        "  three four",
        "  1. five",
        "     six",
        "     seven",
    ]


def test_headings_rules_and_quotations() -> None:
    assert drawn("## Title ##\n---\n> said so") == ["Title", "─" * 24, "│ said so"]
    assert toned("# Title", Tone.STRONG) == ["Title"]


def test_words_that_stand_out() -> None:
    assert drawn("**bold** and `a  b` and __too__") == ["bold and a  b and too"]
    assert toned("**bold** and `code`", Tone.STRONG) == ["bold"]
    assert toned("**bold** and `a  b`", Tone.CODE) == ["a  b"]


def test_code_keeps_its_spaces_and_is_not_read() -> None:
    text = "```python\ndef f():\n    return '**x**'\n```\nafter"
    assert drawn(text) == ["  def f():", "      return '**x**'", "after"]
    assert drawn("~~~\n```\n~~~") == ["  ```"]
    assert drawn("```\nnever ended") == ["  never ended"]


def test_tables_have_columns() -> None:
    table = "| file | lines |\n|---|---:|\n| a.py | 1 |\n| longer.py | 20 |"
    assert drawn(table) == ["file       lines", "a.py       1", "longer.py  20"]
    assert drawn(table, 14) == ["file     lines", "a.py     1", "longer…  20"]
    assert toned(table, Tone.STRONG) == ["file       lines"]


def test_what_a_terminal_would_obey_is_gone() -> None:
    assert drawn("a\x1b[31mb\x07") == ["a[31mb"]


def test_lines_can_begin_with_something() -> None:
    lines = wrap([Span("one two three")], 10, first="-> ", rest="   ")
    assert plain_text(lines).split("\n") == ["-> one two", "   three"]
    assert plain_text(hard_wrap("abcdef", 5, indent="  ")).split("\n") == ["  abc", "  def"]


@given(st.text(st.characters(codec="utf-8"), max_size=200), st.integers(8, 60))
def test_no_line_is_wider_than_asked(text: str, width: int) -> None:
    for line in render_markdown(text, width):
        assert sum(cell_width(span.text) for span in line) <= width


@given(st.lists(st.text("ab c", min_size=1, max_size=30), max_size=5), st.integers(8, 30))
def test_no_word_is_lost(paragraphs: list[str], width: int) -> None:
    text = "\n".join(paragraphs)
    assert "".join(plain_text(render_markdown(text, width)).split()) == "".join(
        "".join(printable_lines(text)).split()
    )
