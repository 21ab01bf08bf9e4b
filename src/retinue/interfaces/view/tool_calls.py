"""Tool calls as text: a short summary, the edit that a call asks for, and its output."""

from __future__ import annotations

from typing import Any

import msgspec

from retinue.domain.events import ToolDenied, ToolFinished
from retinue.domain.plural import plural
from retinue.interfaces.view.formatting import one_line, printable_lines
from retinue.interfaces.view.styled_text import Line, Tone, hard_wrap, styled

# The first of these arguments that a call has is the one that a summary shows. The list covers our
# own tools and usual names in other people's tools.
SUMMARY_ARGUMENTS = (
    "command", "path", "file_path", "pattern", "query", "url", "task", "plan", "question", "text",
    "job_ids", "id", "name",
)  # fmt: skip
MAX_LINE_CHARS = 200
MAX_EDIT_LINES = 40


def call_text(tool: str, arguments: str) -> str:
    """Summary of a call: `read_file src/a.py`. Shows all arguments if none is in the list."""
    decoded = decode_object(arguments)
    if decoded is None:
        return one_line(f"{tool} {arguments[:MAX_LINE_CHARS]}")
    summary = next((decoded[name] for name in SUMMARY_ARGUMENTS if decoded.get(name)), None)
    if summary is None:
        summary = ", ".join(f"{name}={_shortened(value)}" for name, value in decoded.items())
    return one_line(f"{tool} {_shortened(summary)}")


def answer_text(fact: ToolFinished | ToolDenied) -> str:
    """The answer to a call as people read it: without advice for the model, and without marks."""
    return fact.shown or fact.content.removeprefix("[ERROR] ").removeprefix("[DENIED] ")


def edit_lines(tool: str, arguments: str, width: int, limit: int = MAX_EDIT_LINES) -> list[Line]:
    """Removed and added lines of a call that edits a file; empty for other calls."""
    if tool not in ("edit_file", "write_file"):
        return []
    decoded = decode_object(arguments)
    if decoded is None:
        return []
    lines: list[Line] = []
    for name, sign, tone in (
        ("old_text", "- ", Tone.REMOVED),
        ("new_text", "+ ", Tone.ADDED),
        ("content", "+ ", Tone.ADDED),
    ):
        for text in printable_lines(str(decoded.get(name) or "")):
            lines += hard_wrap(styled(("  " + sign + text, tone)), width)
    if decoded.get("content") == "":
        lines.append(styled(("  (empty file)", Tone.DIM)))
    if len(lines) > limit:
        more = plural(len(lines) - limit, "more line")
        lines = [
            *lines[:limit],
            styled((f"  … {more}", Tone.DIM)),
        ]
    return lines


def output_lines(
    output: str, width: int, *, limit: int | None = None, tone: Tone = Tone.DIM
) -> list[Line]:
    """Output of a call, indented. With a limit, a last line counts the lines left out."""
    lines = printable_lines(output)
    shown = [
        styled("    ", part)
        for text in lines[:limit]
        for part in hard_wrap(styled((text, tone)), width - 4)
    ]
    if limit is not None and len(lines) > limit:
        more = plural(len(lines) - limit, "more line")
        shown.append(styled((f"    … {more}", Tone.DIM)))
    return shown


def decode_object(arguments: str) -> dict[str, Any] | None:
    try:
        decoded = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        return None
    return decoded if isinstance(decoded, dict) else None


def _shortened(value: Any) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text[:MAX_LINE_CHARS]
