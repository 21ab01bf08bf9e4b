"""Exports a conversation as Markdown, or as a page for browsers."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape

from retinue.interfaces.view.conversation_entries import Entry, Frame, ReplyEntry, UserEntry
from retinue.interfaces.view.formatting import without_controls
from retinue.interfaces.view.markdown_blocks import markdown_html
from retinue.interfaces.view.styled_text import plain_text

WIDTH = 100
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 50rem; margin: 2rem auto; }}
pre {{ overflow-x: auto; padding: .75rem; border: 1px solid #8884; border-radius: 4px; }}
code {{ font-size: .875em; }}
h2 {{ border-top: 1px solid #8884; padding-top: 1rem; }}
td, th {{ border: 1px solid #8884; padding: .25rem .5rem; }}
table {{ border-collapse: collapse; }}
</style>
</head>
<body>
{body}</body>
</html>
"""


def conversation_html(markdown: str, title: str) -> str:
    """The exported Markdown as a page that needs no server, no script and no network."""
    return PAGE.format(title=escape(title), body=markdown_html(markdown))


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
