"""The definitions and names that the index keeps of one source file."""

from __future__ import annotations

import re
from collections import Counter

import msgspec

MIN_NAME_CHARS = 3
MAX_NAMES = 3_000
"""Distinct names of one file that are counted; generated tables have more."""
_WORD = re.compile(rf"[^\W\d]\w{{{MIN_NAME_CHARS - 1},}}")


class Definition(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One definition. `scope` is the name of the class or module around it; lines count from 1."""

    name: str
    kind: str
    line: int
    end: int
    signature: str
    scope: str = ""
    public: bool = False
    documented: bool = False


class ParsedFile(msgspec.Struct, frozen=True):
    definitions: list[Definition]
    names: dict[str, int]
    """How often the code uses each name. Definitions, comments and strings do not count."""


def count_names(code: str, definitions: list[Definition]) -> dict[str, int]:
    """How often each word of `code` occurs, less its own definitions."""
    counts = Counter(_WORD.findall(code))
    counts.subtract(d.name for d in definitions)
    return {name: n for name, n in counts.most_common(MAX_NAMES) if n > 0}
