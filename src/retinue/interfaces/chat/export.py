"""Exports a conversation as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable

from retinue.interfaces.view.conversation_entries import Entry, Frame, ReplyEntry, UserEntry
from retinue.interfaces.view.styled_text import plain_text

WIDTH = 100


def conversation_markdown(entries: Iterable[Entry]) -> str:
    """Messages and replies in full; tool calls, agents and notices as code blocks."""
    parts = ["# Conversation"]
    for entry in entries:
        match entry:
            case UserEntry():
                parts.append("## You\n\n" + entry.text.strip())
            case ReplyEntry():
                parts.append(entry.text.strip())
            case _:
                text = plain_text(entry.lines(WIDTH, Frame(0.0), full=True))
                # Longer than any fence in the text, which may contain code blocks of its own.
                longest = max(map(len, re.findall("`+", text)), default=0)
                fence = "`" * max(3, longest + 1)
                parts.append(f"{fence}text\n{text}\n{fence}")
    return "\n\n".join(part for part in parts if part) + "\n"
