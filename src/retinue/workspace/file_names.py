"""File names: which are protected, and how to show any of them in text."""

from __future__ import annotations

import os
import unicodedata
from contextlib import suppress

from retinue.domain.paths import PROTECTED_NAMES

_MAX_QUOTED_CHARS = 200


def protected_name(path: str) -> str | None:
    """The first name in `path` that file tools must not enter; None if there is none.

    Case is ignored, since `.GIT` is `.git` on some file systems.
    """
    if path[:1] != "." and "/." not in path:
        return None  # Fast path: all protected names begin with a dot.
    return next((name for name in path.split("/") if name.casefold() in PROTECTED_NAMES), None)


def printable(path: str) -> str:
    """`path` as valid UTF-8 text without line breaks."""
    if path.isprintable():
        return path
    with suppress(UnicodeEncodeError):
        path = os.fsencode(path).decode("utf-8", "backslashreplace")
    return "".join(
        c
        if c.isprintable() or unicodedata.category(c) == "Zs"
        else c.encode("unicode_escape").decode()
        for c in path
    )


def quoted(path: str) -> str:
    """`path` for an error message: printable, in quotes, and shortened."""
    text = printable(path)
    if len(text) > _MAX_QUOTED_CHARS:
        text = text[: _MAX_QUOTED_CHARS // 2] + "…" + text[-_MAX_QUOTED_CHARS // 2 :]
    return f"'{text}'"
