"""Marks foreign text as data, so that a model does not take it for our words.

The tag of a frame contains a part of the hash of the text inside, and that text does not contain
the tag. So nothing has to be escaped. The same text always has the same frame, which keeps prompts
stable.
"""

from __future__ import annotations

import hashlib
import re

TAG_DIGITS = 8
# The beginnings of our own blocks: `[a3: OK]`, `[ERROR]`, `[completed] …`, `[check: …]`.
_MARKER = re.compile(
    r"\s*\[(?:[^\]]*:\s*(?:OK|ERROR|NOT FOUND)\s*\]|[\s\[]*(?:ERROR|DENIED|completed)\s*\]"
    r"|\s*(?:(?:check|unverified)\s*:|cut after\b|its changes were\b))",
    re.IGNORECASE,
)


def frame(text: str, *, kind: str, source: str) -> str:
    """`text` between two tags that it cannot contain."""
    digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
    digits = TAG_DIGITS
    # An attacker who tries four billion texts finds one that contains a part of its own hash.
    while f"{kind}-{digest[:digits]}" in text:
        digits += TAG_DIGITS
    tag = f"{kind}-{digest[:digits]}"
    name = one_line(source.replace('"', "'"))
    return f'<{tag} from="{name}">\n{text}\n</{tag}>'


def one_line(text: str) -> str:
    """`text` as a part of one line: every character that is not printable becomes a space."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else " " for char in text)


def defused(text: str) -> str:
    """`text` with a backslash in every line that looks like the beginning of one of our blocks."""
    if "[" not in text:
        return text
    return "".join(
        line.replace("[", "\\[", 1) if _MARKER.match(_visible(line)) else line
        for line in text.splitlines(keepends=True)
    )


def _visible(line: str) -> str:
    """`line` as people see it, without characters that have no width."""
    if "[" not in line:
        return line
    return "".join(c if c.isprintable() else " " if c.isspace() else "" for c in line)
