"""A conversation as Markdown."""

from __future__ import annotations

from collections.abc import Iterable

from retinue.interfaces.view.conversation_entries import Entry, Frame, ReplyEntry, UserEntry
from retinue.interfaces.view.styled_text import plain_text

WIDTH = 100


def exported(entries: Iterable[Entry]) -> str:
    """What was said in full; what was done for it in blocks between."""
    parts = ["# Conversation"]
    for entry in entries:
        match entry:
            case UserEntry():
                parts.append("## You\n\n" + entry.text.strip())
            case ReplyEntry():
                parts.append(entry.text.strip())
            case _:
                text = plain_text(entry.lines(WIDTH, Frame(0.0), full=True))
                # A fence longer than any in the text: what agents did may hold code of its own.
                fence = "`" * max(3, _longest_run(text) + 1)
                parts.append(f"{fence}text\n{text}\n{fence}")
    return "\n\n".join(part for part in parts if part) + "\n"


def _longest_run(text: str) -> int:
    longest = current = 0
    for char in text:
        current = current + 1 if char == "`" else 0
        longest = max(longest, current)
    return longest
