"""Exports a conversation as Markdown, or as a page for browsers."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape
from importlib.resources import files
from string import Template

from retinue.interfaces.view.conversation_entries import Entry, Frame, ReplyEntry, UserEntry
from retinue.interfaces.view.formatting import without_controls
from retinue.interfaces.view.markdown_blocks import markdown_html
from retinue.interfaces.view.styled_text import plain_text

WIDTH = 100


def conversation_html(markdown: str, title: str) -> str:
    """The exported Markdown as a page that needs no server, no script and no network."""
    page = (files(__package__) / "conversation.html").read_text("utf-8")
    return Template(page).substitute(title=escape(title), body=markdown_html(markdown))


def conversation_markdown(entries: Iterable[Entry], title: str) -> str:
    """Messages and replies in full; tool calls, agents and notices as code blocks.

    Without control characters: people show such files on terminals.
    """
    parts = [f"# {title}"]
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
    return without_controls("\n\n".join(part for part in parts if part)) + "\n"
