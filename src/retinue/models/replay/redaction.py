"""Replaces secrets and the project's directory in recordings by marks.

Secrets are the values of variables whose names say so, texts with the form of a key, and user names
and passwords in URLs. They stay hidden. The mark of the project's directory is replaced by the
directory in which the recording is replayed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

PROJECT = "⟨project⟩"
HIDDEN = "⟨hidden⟩"

# Only forms that nothing but a secret has: a file name taken for a secret could not be replayed.
_SECRET_PATTERNS = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    r"|\bsk-(?=[\w-]*\d)[\w-]{20,}"  # OpenAI, Anthropic, and many who copy them
    r"|\b(?:xai|pplx|nvapi)-[\w-]{30,}"
    r"|\b(?:gh[pousr]|github_pat|gsk|hf|npm|r8)_\w{30,}"
    r"|\b[rs]k_live_\w{20,}"
    r"|\bglpat-[\w-]{20,}"
    r"|\bpypi-[\w-]{50,}"
    r"|\bxox[abeprs]-[\w-]{10,}"
    r"|\bA[KS]IA[0-9A-Z]{16}\b"
    r"|\bAIza[\w-]{35,}"
    r"|\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]{8,}"  # a JSON web token
    r"|(?<=[Bb]earer )[\w.~+/-]{16,}=*"
    r"|(?<=uthorization: Basic )[\w+/]{8,}=*"
    r"|(?:(?<=[?&]key=)|(?<=[?&]api_key=)|(?<=[?&]api-key=)|(?<=[?&]apikey=)|(?<=[?&]token=)"
    r"|(?<=[?&]access_token=)|(?<=-[Aa]pi-[Kk]ey: ))[\w.~%+/-]{12,}=*"
    r"|(?<=://)[^\s/@\"'⟨]+(?=@)",
    re.DOTALL,
)


class Redaction:
    """`secrets` are values by the names that the marks show."""

    def __init__(self, *, directory: str = "", secrets: Mapping[str, str] | None = None) -> None:
        marks = {value: f"⟨hidden {name}⟩" for name, value in (secrets or {}).items()}
        patterns = {value: re.escape(value) for value in marks}
        if len(directory) > 1:
            marks[directory] = PROJECT
            # `/home/me/app` is no part of `/home/me/app2` or `/home/me/app.old`.
            patterns[directory] = re.escape(directory) + r"(?![\w-]|\.\w)"
        longest_first = sorted(patterns, key=len, reverse=True)
        self._known = re.compile("|".join(patterns[value] for value in longest_first))
        self._marks = marks
        self._directory = directory

    def redact(self, value: Any) -> Any:
        """Copy a tree of dicts, lists and scalars with marks in its texts."""
        return map_texts(value, self._redact_text)

    def restore(self, value: Any) -> Any:
        """Copy a tree with this project's directory in place of its mark."""
        return map_texts(value, lambda text: text.replace(PROJECT, self._directory or PROJECT))

    def _redact_text(self, text: str) -> str:
        if not text.isascii():
            # Half a surrogate pair, say from a file name, has no UTF-8 and cannot be written.
            text = text.encode("utf-8", "replace").decode()
        if self._marks:
            text = self._known.sub(lambda found: self._marks[found[0]], text)
        return _SECRET_PATTERNS.sub(HIDDEN, text)


def map_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Copy a tree of dicts, lists and scalars with its texts changed. Keys are kept."""
    match value:
        case str():
            return change(value)
        case dict():
            return {key: map_texts(item, change) for key, item in value.items()}
        case list() | tuple():
            return [map_texts(item, change) for item in value]
        case _:
            return value
