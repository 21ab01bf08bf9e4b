"""Texts with NUL bytes, which Postgres does not store: escaped, and restored when they are read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_ESCAPE = "\uf8ff"  # a private character, itself escaped where a text has it


def escape(text: str) -> str:
    if "\0" not in text and _ESCAPE not in text:
        return text
    return text.replace(_ESCAPE, _ESCAPE + "1").replace("\0", _ESCAPE + "0")


def unescape_column(row: Sequence[Any], column: int) -> tuple[Any, ...]:
    return (*row[:column], unescape(row[column]), *row[column + 1 :])


def unescape(text: str) -> str:
    if _ESCAPE not in text:
        return text
    return text.replace(_ESCAPE + "0", "\0").replace(_ESCAPE + "1", _ESCAPE)
