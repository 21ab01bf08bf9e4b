"""Text from elsewhere, marked as data so that it cannot pass for words of ours.

A frame's tag carries a piece of the hash of what it holds, and the text inside does not have that
tag; nothing has to be escaped, and the same text has the same frame, as stable prompts need.
"""

from __future__ import annotations

import hashlib
import re

TAG_DIGITS = 8
# What our own blocks begin with: `[a3: OK]`, `[ERROR]`, `[completed] …`, `[check: …]`.
_MARKER = re.compile(
    r"\s*\[(?:[^\]]*:\s*(?:OK|ERROR|NOT FOUND)\s*\]|[\s\[]*(?:ERROR|DENIED|completed)\s*\]"
    r"|\s*(?:(?:check|unverified)\s*:|cut after\b|its changes were\b))",
    re.IGNORECASE,
)


def frame(text: str, *, kind: str, source: str) -> str:
    """`text` between lines that only we can write."""
    digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
    digits = TAG_DIGITS
    # Who tries four billion texts finds one that holds a piece of its own hash.
    while f"{kind}-{digest[:digits]}" in text:
        digits += TAG_DIGITS
    tag = f"{kind}-{digest[:digits]}"
    name = one_line(source.replace('"', "'"))
    return f'<{tag} from="{name}">\n{text}\n</{tag}>'


def one_line(text: str) -> str:
    """`text` in one line that can be seen: somebody's name or reason, among words of ours."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else " " for char in text)


def defused(text: str) -> str:
    """`text` with every line that looks like a marker of ours made to look like what it is."""
    if "[" not in text:
        return text
    return "".join(
        line.replace("[", "\\[", 1) if _MARKER.match(_visible(line)) else line
        for line in text.splitlines(keepends=True)
    )


def _visible(line: str) -> str:
    """`line` as it is seen, without characters that take no room."""
    if "[" not in line:
        return line
    return "".join(c if c.isprintable() else " " if c.isspace() else "" for c in line)
