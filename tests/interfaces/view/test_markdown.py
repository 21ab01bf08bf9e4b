from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from retinue.interfaces.view.formatting import cell_width, printable_lines
from retinue.interfaces.view.markdown import render_markdown
from retinue.interfaces.view.styled_text import Tone, plain_text


def rendered(text: str, width: int = 40) -> list[str]:
    return plain_text(render_markdown(text, width)).split("\n")


def spans_with(text: str, tone: Tone) -> list[str]:
    return [span.text for line in render_markdown(text, 80) for span in line if span.tone is tone]


def test_paragraphs_wrap_between_words() -> None:
    assert rendered("one two three four", 12) == ["one two", "three four"]
    assert rendered("one\n\ntwo") == ["one", "", "two"]


def test_long_words_break_anywhere() -> None:
    assert rendered("x" * 20 + " y", 12) == ["x" * 12, "x" * 8 + " y"]
    assert rendered("日本語日本語", 8) == ["日本語日", "本語"]


def test_list_items_have_a_hanging_indent() -> None:
    assert rendered("- one two three four\n  1. five six seven", 12) == [
        "• one two",
        "  three four",
        "  1. five",
        "     six",
        "     seven",
    ]


def test_headings_rules_and_quotes() -> None:
    assert rendered("## Title ##\n---\n> said so") == ["Title", "─" * 24, "│ said so"]
    assert spans_with("# Title", Tone.STRONG) == ["Title"]


def test_bold_and_code() -> None:
    assert rendered("**bold** and `a  b` and __too__") == ["bold and a  b and too"]
    assert spans_with("**bold** and `code`", Tone.STRONG) == ["bold"]
    assert spans_with("**bold** and `a  b`", Tone.CODE) == ["a  b"]


def test_code_blocks_are_verbatim() -> None:
    text = "```python\ndef f():\n    return '**x**'\n```\nafter"
    assert rendered(text) == ["  def f():", "      return '**x**'", "after"]
    assert rendered("~~~\n```\n~~~") == ["  ```"]
    assert rendered("```\nnever ended") == ["  never ended"]


def test_tables() -> None:
    table = "| file | lines |\n|---|---:|\n| a.py | 1 |\n| longer.py | 20 |"
    assert rendered(table) == ["file       lines", "a.py       1", "longer.py  20"]
    assert rendered(table, 14) == ["file     lines", "a.py     1", "longer…  20"]
    assert spans_with(table, Tone.STRONG) == ["file       lines"]


def test_control_characters_are_removed() -> None:
    assert rendered("a\x1b[31mb\x07") == ["a[31mb"]


@given(st.text(st.characters(codec="utf-8"), max_size=200), st.integers(8, 60))
def test_no_line_exceeds_the_width(text: str, width: int) -> None:
    for line in render_markdown(text, width):
        assert sum(cell_width(span.text) for span in line) <= width


@given(st.lists(st.text("ab c", min_size=1, max_size=30), max_size=5), st.integers(8, 30))
def test_no_word_is_lost(paragraphs: list[str], width: int) -> None:
    text = "\n".join(paragraphs)
    assert "".join(plain_text(render_markdown(text, width)).split()) == "".join(
        "".join(printable_lines(text)).split()
    )
