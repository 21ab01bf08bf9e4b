from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.errors import ToolFailure
from retinue.tools.excerpt import MAX_BYTES, excerpt, lines_that_fit

NOTE = re.compile(r"\[lines [^\]]*\]$")


def test_file_that_fits_is_unchanged() -> None:
    text = "\ufeffa\r\nb\n\n c"
    assert excerpt("f", text.encode(), None, None) == text
    text = "x" * (MAX_BYTES - 1) + "\n"
    assert excerpt("f", text.encode(), None, None) == text


def test_ranges() -> None:
    data = b"one\ntwo\nthree\n"
    assert excerpt("f", data, 2, 2) == "two\n[lines 2-2 of 3]"
    assert excerpt("f", data, 2, None) == "two\nthree\n[lines 2-3 of 3]"
    assert excerpt("f", data, None, 1) == "one\n[lines 1-1 of 3]"
    assert excerpt("f", data, 0, 99) == "one\ntwo\nthree\n"
    assert excerpt("f", b"one\ntwo", 2, None) == "two\n[lines 2-2 of 2]"


def test_long_file_is_cut() -> None:
    data = b"".join(b"line %5d\n" % i for i in range(1, 5001))
    first = excerpt("f", data, None, None)
    assert first.endswith("line  1454\n[lines 1-1,454 of 5,000; read on with start=1455]")
    again = excerpt("f", data, 1455, 2000)
    assert again.startswith("line  1455\n")
    assert again.endswith("[lines 1,455-2,000 of 5,000]")


def test_long_line_is_cut() -> None:
    data = b"x" * 50_000 + b"\nnext\n"
    shown = excerpt("f", data, None, None)
    assert shown == "x" * 16_000 + (
        "\n[line 1 of 2, the first 16,000 of 50,000 bytes; read on with start=2]"
    )
    assert excerpt("f", data, 2, None) == "next\n[lines 2-2 of 2]"


def test_invalid_ranges() -> None:
    with pytest.raises(ToolFailure) as caught:
        excerpt("src/f", b"a\nb\n", 7, None)
    assert str(caught.value) == "'src/f' has 2 lines; start=7 is past its end."
    with pytest.raises(ToolFailure, match=r"end=1 is before start=2\."):
        excerpt("f", b"a\nb\n", 2, 1)


def test_binary_files() -> None:
    assert excerpt("f", b"", None, None) == "[The file is empty.]"
    assert excerpt("f", b"\x89PNG\0\0\0\0\0", None, None) == (
        "[Binary file of 9 bytes, not shown; it begins with 89 50 4e 47 00 00 00 00.]"
    )


@given(st.binary(max_size=200) | st.binary(max_size=50).map(lambda b: b * 500))
def test_excerpt_never_exceeds_the_limit(data: bytes) -> None:
    assert len(excerpt("f", data, None, None).encode()) <= MAX_BYTES + 200


@given(
    st.lists(st.text("ab é\r", max_size=12).map(lambda s: s * 300), min_size=1, max_size=30),
    st.booleans(),
)
def test_ranges_reassemble_the_file(lines: list[str], ends_in_newline: bool) -> None:
    text = "\n".join(lines) + ("\n" if ends_in_newline else "")
    if not text:
        return
    start: int | None = None
    parts: list[str] = []
    for _ in range(len(lines) + 2):
        shown = excerpt("f", text.encode(), start, None)
        found = re.search(r"start=(\d+)\]$", shown)
        parts.append(NOTE.sub("", shown))
        if found is None:
            break
        start = int(found[1])
    # A note begins a line, so the last line gets an end even if it had none.
    assert "".join(parts) in (text, f"{text}\n")


def test_lines_that_fit() -> None:
    assert lines_that_fit(["aa", "é", "b"], 8) == ["aa", "é", "b"]
    assert lines_that_fit(["aa", "é", "b"], 7) == ["aa", "é"]
    assert lines_that_fit(["aa"], 2) == []
