"""Quick checks of a text, before anything in it is parsed."""

from __future__ import annotations

import re

THINK, THOUGHT = "<think>", "</think>"
_MARK = re.compile(r"<(?:[|｜]|tool|function|invoke|[\w-]+:)", re.I)
_BARE = re.compile(r"\s*(?:[\[{]|functools\[|call:|[\w.:/-]++[ \t]*+\n?[ \t]*+\{)")


def may_hold_calls(text: str) -> bool:
    """A quick check: False means that `text` certainly holds no call."""
    return (
        "```" in text
        or "~~~" in text
        or ("<" in text and _MARK.search(text) is not None)
        or "[TOOL_CALL" in text
        or "Action Input" in text
        or "=functions." in text
        or _BARE.match(text) is not None
    )


def is_encodable(text: str) -> bool:
    """False for a text with half a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
