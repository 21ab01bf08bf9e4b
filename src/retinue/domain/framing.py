"""Text from elsewhere, marked as data so that it cannot pass for words of ours.

A frame's tag carries a piece of the hash of what it holds, so that the text inside cannot contain
the line that ends it; nothing has to be escaped, and the same text has the same frame, as stable
prompts need.
"""

from __future__ import annotations

import hashlib
import re

# What our own blocks begin with: `[a3: OK]`, `[ERROR]`, `[completed] …`.
_MARKER = re.compile(
    r"^(\s*)\[(?=[\w.-]+: (?:OK|ERROR|NOT FOUND)\]|ERROR\]|DENIED\]|completed\])", re.MULTILINE
)


def frame(text: str, *, kind: str, source: str) -> str:
    """`text` between lines that only we can write."""
    tag = f"{kind}-{hashlib.sha256(text.encode('utf-8', 'replace')).hexdigest()[:8]}"
    name = source.replace('"', "'").replace("\n", " ")
    return f'<{tag} from="{name}">\n{text}\n</{tag}>'


def defused(text: str) -> str:
    """`text` with every line that looks like a marker of ours made to look like what it is."""
    return _MARKER.sub(r"\1\\[", text)
