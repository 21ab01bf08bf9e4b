"""A project as a dictionary of files, with tools that answer like retinue's own.

Training needs some hundred thousand tool calls, on a machine without git. `tests/training` compares
these tools with the real ones.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable
from typing import Any

from retinue.workspace.glob import matcher

MAX_FILES_FOUND = 200
MAX_MATCHES = 100
MAX_MATCH_CHARS = 300
READ_TOOLS = ("list_dir", "find_files", "read_file", "search_files")
WRITE_TOOLS = ("edit_file", "write_file")
SPAWN_TOOLS = ("spawn_agent", "spawn_await")


class Refused(Exception):
    """The message that the model gets after `[ERROR]`."""


class Project:
    """Files by path. Calls change `files`."""

    def __init__(self, name: str, files: dict[str, str]) -> None:
        self.name = name
        self.files = dict(files)

    def call(self, name: str, arguments: str) -> str:
        """The answer to a call of a file tool."""
        try:
            given = json.loads(arguments)
            return str(_TOOLS[name](self, **given))
        except Refused as error:
            return f"[ERROR] {error}"
        except (ValueError, TypeError, KeyError):
            return f"[ERROR] {name}: the arguments are wrong."

    def list_dir(self, path: str = ".") -> str:
        inside = _inside(path)
        if inside in self.files:
            raise Refused(f"'{path}' is a file; use read_file.")
        start = f"{inside}/" if inside else ""
        entries = {}
        for file, text in self.files.items():
            if file.startswith(start):
                entry, slash, _ = file.removeprefix(start).partition("/")
                entries[entry] = f"{entry}/" if slash else f"{entry} ({len(text.encode()):,} bytes)"
        if not entries:
            raise self._missing(path)
        return "\n".join(entries[name] for name in sorted(entries))

    def find_files(self, pattern: str, path: str = ".") -> str:
        matches = matcher(pattern)
        found = [file for file in self._under(path) if matches(file)]
        if not found:
            return f"[No file matches '{pattern}'.]"
        return _lines(found, MAX_FILES_FOUND, "the pattern or the path")

    def read_file(self, path: str, start: int | None = None, end: int | None = None) -> str:
        text = self._text(path)
        if start is None and end is None:
            return text or "[The file is empty.]"
        lines = text.splitlines()
        first, last = max(start or 1, 1), min(end or len(lines), len(lines))
        body = "\n".join(lines[first - 1 : last])
        return f"{body}\n[lines {first:,}-{last:,} of {len(lines):,}]"

    def search_files(self, pattern: str, path: str = ".", glob: str | None = None) -> str:
        try:
            expression = re.compile(pattern)
        except re.error as error:
            raise Refused(f"The pattern is not a regular expression: {error}.") from None
        if _inside(path) and not list(self._under(path)):
            raise self._missing(path)
        hits = []
        for file in self._under(path):
            if glob is not None and not matcher(glob)(file):
                continue
            for number, line in enumerate(self.files[file].split("\n"), 1):
                if expression.search(line):
                    text = line if len(line) <= MAX_MATCH_CHARS else line[:MAX_MATCH_CHARS] + "…"
                    hits.append(f"{file}:{number}: {text}")
            if len(hits) > MAX_MATCHES:
                break
        if not hits:
            return f"[No line matches '{pattern}'.]"
        return _lines(hits, MAX_MATCHES, "the pattern, path or glob")

    def edit_file(self, path: str, old_text: str, new_text: str, all: bool = False) -> str:
        text = self._text(path)
        if not old_text:
            raise Refused("old_text is empty; use write_file to create or replace a whole file.")
        if old_text == new_text:
            raise Refused("old_text and new_text are the same; nothing would change.")
        count = text.count(old_text)
        if not count:
            raise Refused(_not_found(path, text, old_text))
        if count > 1 and not all:
            places = [m.start() for m in re.finditer(re.escape(old_text), text)]
            numbers = ", ".join(str(text.count("\n", 0, at) + 1) for at in places[:10])
            more = ", …" if len(places) > 10 else ""
            raise Refused(
                f"old_text is in '{path}' {count} times, at lines {numbers}{more}. Add lines"
                " around it to make it unique, or send all=true."
            )
        self.files[_inside(path)] = text.replace(old_text, new_text)
        return f"Edited {path} ({_counts(text, self.files[_inside(path)])})."

    def write_file(self, path: str, content: str) -> str:
        before = self.files.get(_inside(path))
        self.files[_inside(path)] = content
        new = ", new file" if before is None else ""
        return f"Wrote {path} ({_counts(before or '', content)}{new})."

    def _text(self, path: str) -> str:
        inside = _inside(path)
        if inside in self.files:
            return self.files[inside]
        if any(file.startswith(f"{inside}/") for file in self.files) or not inside:
            raise Refused(f"'{path}' is a directory; use list_dir.")
        raise self._missing(path)

    def _under(self, path: str) -> list[str]:
        inside = _inside(path)
        if inside in self.files:
            return [inside]
        return sorted(f for f in self.files if not inside or f.startswith(f"{inside}/"))

    def _missing(self, path: str) -> Refused:
        parts = _inside(path).split("/")
        for depth, part in enumerate(parts):
            names = self._names("".join(f"{folder}/" for folder in parts[:depth]))
            if part in names:
                continue
            missing = "/".join(parts[: depth + 1])
            where = "" if depth == len(parts) - 1 else f": there is no '{missing}'"
            close = difflib.get_close_matches(part, names, n=1, cutoff=0.65)
            hint = "Use list_dir or find_files to see what is there."
            if close:
                hint = f"Did you mean '{'/'.join([*parts[:depth], close[0]])}'?"
            return Refused(f"No file '{path}'{where}. {hint}")
        return Refused(f"No file '{path}'.")

    def _names(self, start: str) -> list[str]:
        """What is in a folder; `start` is its path with a slash, or empty."""
        inside = [file.removeprefix(start) for file in self.files if file.startswith(start)]
        return list(dict.fromkeys(file.partition("/")[0] for file in inside))


def _inside(path: str) -> str:
    if path.startswith("/") or ".." in path.split("/"):
        raise Refused(f"'{path}' leads outside the workspace. Use a path relative to it.")
    return "/".join(part for part in path.split("/") if part not in ("", "."))


def _lines(found: list[str], limit: int, to_narrow: str) -> str:
    if len(found) <= limit:
        return "\n".join(found)
    note = f"[the first {limit}; there are more: narrow {to_narrow}]"
    return "\n".join([*found[:limit], note])


def _counts(before: str, after: str) -> str:
    old, new = before.splitlines(), after.splitlines()
    diff = list(difflib.unified_diff(old, new, n=0, lineterm=""))[2:]
    added = sum(line.startswith("+") for line in diff)
    removed = sum(line.startswith("-") for line in diff)
    if added and removed:
        return f"+{added}/-{removed} lines"
    count, sign = (added, "+") if added else (removed, "-")
    return f"{sign}{count} line{'' if count == 1 else 's'}"


def _not_found(path: str, text: str, old_text: str) -> str:
    said = f"old_text is not in '{path}'."
    lines = text.splitlines()
    first = next((line.strip() for line in old_text.splitlines() if line.strip()), "")
    near = [line.strip() for line in lines]
    close = difflib.get_close_matches(first, near[:300], n=1)
    if not close:
        return f"{said} No line is like its first one; read the file again."
    at = near.index(close[0])
    return f'{said} Closest is line {at + 1}: "{close[0]}".'


_TOOLS: dict[str, Callable[..., Any]] = {
    name: getattr(Project, name) for name in (*READ_TOOLS, *WRITE_TOOLS)
}
