"""Texts with NUL bytes, which Postgres does not store: escaped, and restored when they are read."""

from __future__ import annotations

_ESCAPE = "\uf8ff"  # a private character, itself escaped where a text has it


def escape(text: str) -> str:
    if "\0" not in text and _ESCAPE not in text:
        return text
    return text.replace(_ESCAPE, _ESCAPE + "1").replace("\0", _ESCAPE + "0")


def unescape(text: str) -> str:
    if _ESCAPE not in text:
        return text
    return text.replace(_ESCAPE + "0", "\0").replace(_ESCAPE + "1", _ESCAPE)
