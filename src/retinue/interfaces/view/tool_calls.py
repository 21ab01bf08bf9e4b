"""A tool call in a few words: the tool, and the argument that says most."""

from __future__ import annotations

from typing import Any

import msgspec

from retinue.domain.approval import ApprovalRequest
from retinue.interfaces.view.formatting import UNSHOWN, one_line

# Looked for in this order. Names that all tools of a kind share, and those of other people's tools.
TELLING = (
    "command", "path", "file_path", "pattern", "query", "url", "task", "plan", "question", "text",
    "job_ids", "id", "name",
)  # fmt: skip
LONGEST = 200
MOST_LINES = 40


def call_text(tool: str, arguments: str) -> str:
    """`read_file src/a.py`; all arguments where none of them is known to say most."""
    given = _decoded(arguments)
    if given is None:
        return one_line(f"{tool} {arguments[:LONGEST]}")
    told = next((given[name] for name in TELLING if given.get(name)), None)
    if told is None:
        told = ", ".join(f"{name}={_short(value)}" for name, value in given.items())
    return one_line(f"{tool} {_short(told)}")


def wish_lines(wish: ApprovalRequest, most: int = MOST_LINES) -> list[str]:
    """Who wants what, in full: nobody should say yes to what they have not seen.

    A line of a command is a line here, since it is another command. Of what is too long the end is
    shown as well as the beginning, and how much is not.
    """
    head, *lines = _seen(f"{wish.path} wants {wish.tool}: {wish.detail}").split("\n")
    lines = [head, *(f"  {line}" for line in lines)]
    shown = [part for line in lines for part in _parts(line)]
    if len(shown) <= most:
        return lines
    half = most // 2
    return [*shown[:half], f"  [… {len(shown) - 2 * half:,} lines not shown …]", *shown[-half:]]


def _seen(text: str) -> str:
    text = text.expandtabs(4).replace("\r\n", "\n")
    return "".join(c if c.isprintable() or c == "\n" else UNSHOWN for c in text)


def _parts(line: str) -> list[str]:
    return [line[at : at + LONGEST] for at in range(0, len(line), LONGEST)] or [line]


def _decoded(arguments: str) -> dict[str, Any] | None:
    try:
        given = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        return None
    return given if isinstance(given, dict) else None


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text[:LONGEST]
