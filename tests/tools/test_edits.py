from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.errors import ToolFailure
from retinue.tools.edits import replace_text


def refusal(data: bytes, old: bytes, new: bytes = b"new") -> str:
    with pytest.raises(ToolFailure) as caught:
        replace_text("a.py", data, old, new, all=False)
    return str(caught.value)


def test_one_match() -> None:
    assert replace_text("f", b"a b c", b"b", b"x", all=False) == b"a x c"
    assert replace_text("f", b"\xff b", b"b", b"", all=False) == b"\xff "


def test_all_matches() -> None:
    assert replace_text("f", b"b b", b"b", b"x", all=True) == b"x x"


def test_several_matches() -> None:
    assert refusal(b"x\n1\nx\n", b"x") == (
        "old_text is in 'a.py' 2 times, at lines 1, 3. Add lines around it to make it unique,"
        " or send all=true."
    )
    assert "at lines 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, …." in refusal(b"x\n" * 20, b"x")
    assert "2 times" in refusal(b"aaa", b"aa")


@pytest.mark.parametrize(
    ("data", "old", "new", "after"),
    [
        (b"a\r\nb\r\n", b"a\nb", b"c\nd", b"c\r\nd\r\n"),
        (b"a\r\nb\r\n", b"b", b"c\nd", b"a\r\nc\r\nd\r\n"),
        (b"a\r\nb\r\n", b"a\r\nb", b"c\r\nd", b"c\r\nd\r\n"),
        (b"a\nb\n", b"a\r\nb", b"c\r\nd", b"c\nd\n"),
        (b"a\r\nb\nc\n", b"a\nb", b"x\ny", b"x\r\ny\nc\n"),
        (b"a\r\nb\nc\n", b"b\nc", b"x\ny", b"a\r\nx\ny\n"),
    ],
)
def test_line_endings_are_kept(data: bytes, old: bytes, new: bytes, after: bytes) -> None:
    assert replace_text("f", data, old, new, all=False) == after


def test_text_not_found() -> None:
    code = b"def f():\n\treturn compute(1)\n\n\nclass A:\n    pass\n"
    assert refusal(code, b"def f():\n    return compute(1)") == (
        "old_text is not in 'a.py'. Line 1 differs only in whitespace: \"def f():\"."
        " Copy the spaces and tabs exactly."
    )
    assert refusal(code, b"  return compute(1)") == (
        "old_text is not in 'a.py'. Line 2 differs only in whitespace: \"\\treturn compute(1)\"."
        " Copy the spaces and tabs exactly."
    )
    assert refusal(code, b"return compute(2)") == (
        "old_text is not in 'a.py'. Closest is line 2: \"\\treturn compute(1)\"."
    )
    assert refusal(code, b"class A:\n    x = 1") == (
        "old_text is not in 'a.py'. Its first line is line 5, but the lines after it differ;"
        " read the file again."
    )
    assert refusal(code, b"zzzzzzzzzzzz") == (
        "old_text is not in 'a.py'. No line is like its first one; read the file again."
    )
    assert refusal(b"", b"x") == "old_text is not in 'a.py'. Read the file first."


def test_edits_that_change_nothing() -> None:
    assert refusal(b"x", b"") == (
        "old_text is empty; use write_file to create or replace a whole file."
    )
    assert refusal(b"x", b"x", b"x") == (
        "old_text and new_text are the same; nothing would change."
    )


@given(st.binary(max_size=40), st.binary(min_size=1, max_size=4), st.binary(max_size=4))
def test_only_the_unique_match_is_replaced(data: bytes, old: bytes, new: bytes) -> None:
    if b"\r" in data + old + new or old == new:
        return
    places = [i for i in range(len(data)) if data.startswith(old, i)]
    if len(places) == 1:
        at = places[0]
        assert (
            replace_text("f", data, old, new, all=False) == data[:at] + new + data[at + len(old) :]
        )
    else:
        with pytest.raises(ToolFailure):
            replace_text("f", data, old, new, all=False)


@given(st.lists(st.text("ab", max_size=3)), st.text("ab\n", min_size=1, max_size=4))
def test_crlf_file_keeps_crlf(lines: list[str], new: str) -> None:
    data = "".join(f"{line}\r\n" for line in [*lines, "needle"]).encode()
    after = replace_text("f", data, b"needle", new.encode(), all=False)
    assert after.count(b"\n") == after.count(b"\r\n") == len(lines) + 1 + new.count("\n")
