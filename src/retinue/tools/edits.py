"""Text replacement for `edit_file`, with hints for a model that quotes the text wrongly."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator

from retinue.errors import ToolFailure

_HINT_LINES = 2_000
_HINT_CHARS = 200
_MAX_LINES_NAMED = 10


def replace_text(path: str, data: bytes, old: bytes, new: bytes, *, all: bool) -> bytes:
    """Replace `old` by `new` in `data`, with the line endings of the file.

    ToolFailure if `old` does not occur, or occurs more than once without `all`.
    """
    if not old:
        raise ToolFailure(
            "old_text is empty; use write_file to create or replace a whole file.",
            shown="old_text is empty.",
        )
    old, new = _match_line_endings(data, old, new)
    if old == new:
        raise ToolFailure("old_text and new_text are the same; nothing would change.")
    places = list(_offsets(data, old))
    if not places:
        raise ToolFailure(_not_found_message(path, data, old))
    if len(places) > 1 and not all:
        numbers = ", ".join(str(data.count(b"\n", 0, at) + 1) for at in places[:_MAX_LINES_NAMED])
        more = ", …" if len(places) > _MAX_LINES_NAMED else ""
        found = f"old_text is in '{path}' {len(places)} times, at lines {numbers}{more}."
        advice = "Add lines around it to make it unique, or send all=true."
        raise ToolFailure(f"{found} {advice}", shown=found)
    return data.replace(old, new)


def _match_line_endings(data: bytes, old: bytes, new: bytes) -> tuple[bytes, bytes]:
    """Models write \\n. Convert to \\r\\n if the file uses it; leave files that mix both alone."""
    ends = data.count(b"\n")
    windows = data.count(b"\r\n")
    if ends and windows == ends:
        return _crlf(old), _crlf(new)
    if not windows and b"\r\n" in old:
        return old.replace(b"\r\n", b"\n"), new.replace(b"\r\n", b"\n")
    if old not in data and _crlf(old) in data:
        return _crlf(old), _crlf(new)
    return old, new


def _crlf(text: bytes) -> bytes:
    return text.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")


def _offsets(data: bytes, old: bytes) -> Iterator[int]:
    # Overlapping occurrences count: `aa` is not unique in `aaa`.
    at = data.find(old)
    while at >= 0:
        yield at
        at = data.find(old, at + 1)


def _not_found_message(path: str, data: bytes, old: bytes) -> str:
    said = f"old_text is not in '{path}'."
    lines = data.decode("utf-8", "replace").splitlines()
    wanted = [line for line in old.decode("utf-8", "replace").splitlines() if line.strip()]
    if not wanted or not lines:
        return f"{said} Read the file first."
    at = _find_ignoring_space(lines, wanted)
    if at is not None:
        return (
            f"{said} Line {at + 1} differs only in whitespace: {_quote(lines[at])}."
            " Copy the spaces and tabs exactly."
        )
    first = wanted[0].strip()[:_HINT_CHARS]
    near = [line.strip()[:_HINT_CHARS] for line in lines[:_HINT_LINES]]
    close = difflib.get_close_matches(first, near, n=1)
    if not close:
        return f"{said} No line is like its first one; read the file again."
    at = near.index(close[0])
    if close[0] == first and len(wanted) > 1:
        return (
            f"{said} Its first line is line {at + 1}, but the lines after it differ; read the file"
            " again."
        )
    return f"{said} Closest is line {at + 1}: {_quote(lines[at])}."


def _find_ignoring_space(lines: list[str], wanted: list[str]) -> int | None:
    """Index of the first wanted line, if spaces, tabs and blank lines are ignored."""
    squeezed = [(at, "".join(line.split())) for at, line in enumerate(lines)]
    present = [(at, text) for at, text in squeezed if text]
    target = ["".join(line.split()) for line in wanted]
    for i in range(len(present) - len(target) + 1):
        if all(present[i + k][1] == text for k, text in enumerate(target)):
            return present[i][0]
    return None


def _quote(line: str) -> str:
    # As JSON, which makes tabs visible.
    clipped = line if len(line) <= _HINT_CHARS else line[:_HINT_CHARS] + "…"
    return json.dumps(clipped, ensure_ascii=False)


def unified_diff(path: str, before: bytes | None, after: bytes) -> str:
    """The change from `before` to `after` as a unified diff; `before` is None for a new file."""
    old = (before or b"").decode(errors="replace").splitlines()
    new = after.decode(errors="replace").splitlines()
    source = "/dev/null" if before is None else f"a/{path}"
    lines = difflib.unified_diff(old, new, source, f"b/{path}", lineterm="")
    # A new empty file has no lines, but is a change.
    return "\n".join(lines) or f"--- {source}\n+++ b/{path}"
