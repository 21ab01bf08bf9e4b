from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from retinue.interfaces.view.formatting import cell_width, printable_lines
from retinue.interfaces.view.markdown import MarkdownText, render_markdown
from retinue.interfaces.view.styled_text import plain_text, segments


def rendered(text: str, width: int = 40) -> list[str]:
    return plain_text(render_markdown(text, width)).split("\n")


def styled_with(text: str, style: str) -> list[str]:
    """The parts of the text whose style has that word."""
    return [
        segment.text
        for line in render_markdown(text, 80)
        for segment in segments(line)
        if style in str(segment.style).split()
    ]


def test_paragraphs_wrap_between_words() -> None:
    assert rendered("one two three four", 12) == ["one two", "three four"]
    assert rendered("one\n\ntwo") == ["one", "", "two"]


def test_long_words_break_anywhere() -> None:
    assert rendered("x" * 20 + " y", 12) == ["x" * 12, "x" * 8 + " y"]
    assert rendered("日本語日本語", 8) == ["日本語日", "本語"]


def test_list_items_have_a_hanging_indent() -> None:
    assert rendered("- one two three four\n  1. five six seven", 14) == [
        " • one two",
        "   three four",
        "    1 five six",
        "      seven",
    ]


def test_checkboxes() -> None:
    assert rendered("- [ ] open\n- [x] done\n- [ref]") == [" • ☐ open", " • ☑ done", " • [ref]"]


def test_headings_rules_and_quotes() -> None:
    assert rendered("## Title ##\n***\n> said so") == ["Title", "", "─" * 24, "", "▌ said so"]
    assert styled_with("# Title", "bold") == ["Title"]


def test_emphasis_and_code() -> None:
    assert rendered("**bold** and `a  b` and __too__") == ["bold and a  b and too"]
    assert styled_with("**bold** and *so*", "bold") == ["bold"]
    assert styled_with("**bold** and *so*", "italic") == ["so"]
    assert styled_with("~~no~~ and `a  b`", "strike") == ["no"]
    assert styled_with("**bold** and `a  b`", "cyan") == ["a  b"]


def test_links_show_their_address() -> None:
    text = "[docs](https://x.y/z) and <https://a.b>"
    assert rendered(text, 60) == ["docs (https://x.y/z) and https://a.b"]
    assert styled_with(text, "https://x.y/z") == ["docs"], "OSC 8"


def test_tags_are_text() -> None:
    assert rendered("Use <div> here\n\n<p>so</p>") == ["Use <div> here", "", "<p>so</p>"]


def test_line_breaks_are_kept() -> None:
    assert rendered("one\ntwo") == ["one", "two"]


def test_code_blocks_are_verbatim_and_highlighted() -> None:
    text = "```python\ndef f():\n    return '**x**'\n\n\n```\nafter"
    assert rendered(text) == ["  def f():", "      return '**x**'", "", "after"]
    assert styled_with(text, "bright_blue") == ["def", "return"], "keywords have a colour"
    assert rendered("~~~\n```\n~~~") == ["  ```"]
    assert rendered("```\nnever ended") == ["  never ended"]


def test_tables() -> None:
    table = "| file | lines |\n|---|---:|\n| `a.py` | 1 |\n| longer.py | 20 |"
    assert rendered(table) == [
        " file       lines",
        " ────────────────",
        " a.py           1",
        " longer.py     20",
    ]
    assert styled_with(table, "cyan") == ["a.py"]
    assert "".join(styled_with(table, "bold")).split() == ["file", "lines"]


def test_a_pipe_gets_the_text_as_it_is() -> None:
    assert rendered("# a **b**\n---", 1_000_000) == ["# a **b**", "---"]


@given(
    st.lists(
        st.sampled_from(
            ["# T", "", "a *b*", "- x", "  - y", "1. n", "```py", "```", "| a |", "|---|", "> q",
             "    code", "***", "[l](u)", "text"]
        ),
        max_size=12,
    )
)  # fmt: skip
@example(["1. n", "1. n", "", "1. n"])
def test_a_text_that_grows_ends_up_as_if_it_came_at_once(lines: list[str]) -> None:
    growing = MarkdownText()
    text = "\n".join(lines)
    for end in range(0, len(text), 3):
        growing.lines(text[:end], 40)
    assert plain_text(growing.lines(text, 40)) == plain_text(render_markdown(text, 40))


def test_control_characters_are_removed() -> None:
    assert rendered("a\x1b[31mb\x07") == ["a[31mb"]


@given(st.text(st.characters(codec="utf-8"), max_size=200), st.integers(8, 60))
def test_no_line_exceeds_the_width(text: str, width: int) -> None:
    for line in render_markdown(text, width):
        assert cell_width(line.plain) <= width


@given(st.lists(st.text("ab c", min_size=1, max_size=30), max_size=5), st.integers(8, 30))
def test_no_word_is_lost(paragraphs: list[str], width: int) -> None:
    text = "\n".join(paragraphs)
    assert "".join(plain_text(render_markdown(text, width)).split()) == "".join(
        "".join(printable_lines(text)).split()
    )
