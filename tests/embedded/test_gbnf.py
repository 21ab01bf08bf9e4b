from __future__ import annotations

import random
import re

import pytest

from retinue.embedded.gbnf import literal, one_of, part_of
from tests.embedded.gbnf import Grammar


@pytest.mark.parametrize(
    "texts", [["a"], ["a", "ab", "abc", "b"], ["x/y.py", "x/z", "x"], ['"', "\\", "\\n", "ü\n\t"]]
)
def test_one_of_these_texts(texts: list[str]) -> None:
    grammar = Grammar(f"root ::= {one_of(texts)}")
    written = [text.replace("\\", "\\\\").replace('"', '\\"') for text in texts]
    written = [text.replace("\n", "\\n").replace("\t", "\\t") for text in written]
    for text in written:
        assert grammar.admits(text)
        assert not grammar.admits(text + "x")
        assert text[:-1] in written or not grammar.admits(text[:-1])


def test_exactly_the_parts_of_texts() -> None:
    draw = random.Random(1)
    for _ in range(40):
        texts = [
            "".join(
                draw.choice(["ab", "a", " ", "-", "é", "\\"]) for _ in range(draw.randint(1, 9))
            )
            for _ in range(draw.randint(1, 3))
        ]
        grammar = Grammar("root ::= some-0\n" + "\n".join(part_of("some", texts)))
        split = [re.findall(r"\w+|\W", text, re.ASCII) for text in texts]
        parts = {
            "".join(pieces[start:end]).replace("\\", "\\\\")
            for pieces in split
            for start in range(len(pieces))
            for end in range(start + 1, len(pieces) + 1)
        }
        for part in parts:
            assert grammar.admits(part)
            for other in (f"{part}a", part[1:], f"-{part}", f"{part} "):
                assert grammar.admits(other) == (other in parts)


def test_a_text_that_is_too_long_is_not_listed() -> None:
    assert list(part_of("some", ["a b " * 9_000])) == ["some-0 ::= part+"]
    assert list(part_of("some", [])) == ["some-0 ::= part+"]


def test_literal() -> None:
    assert literal('say \\"hi\\"') == '"say \\\\\\"hi\\\\\\""'
