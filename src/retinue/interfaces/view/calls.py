"""A tool call in a few words: the tool, and the argument that says most."""

from __future__ import annotations

from typing import Any

import msgspec

from retinue.interfaces.view.figures import one_line

# Looked for in this order. Names that all tools of a kind share, and those of other people's tools.
TELLING = (
    "command", "path", "file_path", "pattern", "query", "url", "task", "plan", "question", "text",
    "job_ids", "id", "name",
)  # fmt: skip
LONGEST = 200


def call_text(tool: str, arguments: str) -> str:
    """`read_file src/a.py`; all arguments where none of them is known to say most."""
    given = _decoded(arguments)
    if given is None:
        return one_line(f"{tool} {arguments[:LONGEST]}")
    told = next((given[name] for name in TELLING if given.get(name)), None)
    if told is None:
        told = ", ".join(f"{name}={_short(value)}" for name, value in given.items())
    return one_line(f"{tool} {_short(told)}")


def _decoded(arguments: str) -> dict[str, Any] | None:
    try:
        given = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        return None
    return given if isinstance(given, dict) else None


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text[:LONGEST]
