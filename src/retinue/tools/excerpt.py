"""Excerpts: as much of a text as a model should get at once, with a note about the rest."""

from __future__ import annotations

from collections.abc import Sequence

from retinue.errors import ToolFailure

MAX_BYTES = 16_000
_SNIFFED_BYTES = 8192


def excerpt(path: str, data: bytes, start: int | None, end: int | None) -> str:
    """Lines `start` to `end` (from 1, both included), as far as they fit in MAX_BYTES.

    A file that fits is returned unchanged. A shorter excerpt ends with a note in brackets.
    """
    if b"\0" in data[:_SNIFFED_BYTES]:
        first = data[:8].hex(" ")
        return f"[Binary file of {len(data):,} bytes, not shown; it begins with {first}.]"
    if not data:
        return "[The file is empty.]"
    text = data.decode("utf-8", "replace")
    if start is None and end is None and len(data) <= MAX_BYTES // 3:
        return text
    # Valid UTF-8 from here on. Each invalid byte has become three bytes.
    data = text.encode()
    if start is None and end is None and len(data) <= MAX_BYTES:
        return text
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    return _range(path, lines, data.endswith(b"\n"), start, end)


def _range(
    path: str, lines: list[bytes], ends_in_newline: bool, start: int | None, end: int | None
) -> str:
    total = len(lines)
    first = max(start or 1, 1)
    last = total if end is None else min(end, total)
    if first > total:
        raise ToolFailure(f"'{path}' has {total:,} lines; start={first} is past its end.")
    if end is not None and end < first:
        raise ToolFailure(f"end={end} is before start={first}.")
    size = 0
    stop = first - 1
    while stop < last and size + len(lines[stop]) + 1 <= MAX_BYTES:
        size += len(lines[stop]) + 1
        stop += 1
    if stop == first - 1:
        # Not even one line fits.
        line = lines[stop]
        rest = f"; read on with start={first + 1}" if first < total else ""
        shown = f"the first {MAX_BYTES:,} of {len(line):,} bytes"
        head = line[:MAX_BYTES].decode("utf-8", "ignore")
        return f"{head}\n[line {first:,} of {total:,}, {shown}{rest}]"
    body = b"\n".join(lines[first - 1 : stop]).decode()
    if stop < total or ends_in_newline:
        body += "\n"
    if first == 1 and stop == total:
        return body
    gap = "" if body.endswith("\n") else "\n"
    rest = f"; read on with start={stop + 1}" if stop < last else ""
    return f"{body}{gap}[lines {first:,}-{stop:,} of {total:,}{rest}]"


def lines_that_fit(lines: Sequence[str], max_bytes: int) -> list[str]:
    """The first lines that fit into `max_bytes` with their line endings."""
    left = max_bytes
    for count, line in enumerate(lines):
        left -= len(line.encode("utf-8", "replace")) + 1
        if left < 0:
            return list(lines[:count])
    return list(lines)
