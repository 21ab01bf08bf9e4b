"""Lines that the user typed before, stored in a file of the project."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

MAX_LINES = 500


class InputHistory:
    """Typed lines, oldest first. A file that cannot be read or written is treated as empty."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines = _read(path)
        self._position = len(self._lines)
        self._draft = ""

    def add(self, text: str) -> None:
        if not self._lines or self._lines[-1] != text:
            self._lines.append(text)
            self._append_to_file(text)
        self._position = len(self._lines)
        self._draft = ""

    def earlier(self, current: str) -> str | None:
        """The line before, or None. `later` returns to `current`, the text being typed."""
        if self._position == 0:
            return None
        if self._position == len(self._lines):
            self._draft = current
        self._position -= 1
        return self._lines[self._position]

    def latest_first(self) -> list[str]:
        """All lines, each once."""
        return list(dict.fromkeys(reversed(self._lines)))

    def later(self) -> str | None:
        if self._position >= len(self._lines):
            return None
        self._position += 1
        if self._position == len(self._lines):
            return self._draft
        return self._lines[self._position]

    def _append_to_file(self, text: str) -> None:
        try:
            with open(_open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab") as file:
                file.write(msgspec.json.encode(text) + b"\n")
        except OSError:
            pass  # The project has no state directory yet, or is not writable.


def _open(path: Path, flags: int) -> int:
    """A descriptor of the file. A symbolic link in a cloned project could point anywhere."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _read(path: Path) -> list[str]:
    try:
        with open(_open(path, os.O_RDONLY), "rb") as file:
            lines = file.read().splitlines()[-MAX_LINES:]
    except OSError:
        return []
    kept = []
    for line in lines:
        try:
            kept.append(msgspec.json.decode(line, type=str))
        except msgspec.DecodeError:
            continue
    return kept
