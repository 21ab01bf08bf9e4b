"""What was typed before, kept with the project."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

MOST = 500


class History:
    """Lines in the order of typing. A file that cannot be read or written is none."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines = _read(path)
        self._position = len(self._lines)
        self._draft = ""

    def add(self, text: str) -> None:
        if not self._lines or self._lines[-1] != text:
            self._lines.append(text)
            self._write(text)
        self._position = len(self._lines)
        self._draft = ""

    def earlier(self, current: str) -> str | None:
        """The line before; None if there is none. What is being typed can be come back to."""
        if self._position == 0:
            return None
        if self._position == len(self._lines):
            self._draft = current
        self._position -= 1
        return self._lines[self._position]

    def later(self) -> str | None:
        if self._position >= len(self._lines):
            return None
        self._position += 1
        if self._position == len(self._lines):
            return self._draft
        return self._lines[self._position]

    def _write(self, text: str) -> None:
        try:
            with open(_opened(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab") as file:
                file.write(msgspec.json.encode(text) + b"\n")
        except OSError:
            pass  # There is no project yet, or it is not ours to write in.


def _opened(path: Path, flags: int) -> int:
    """A descriptor. A project that somebody cloned could have it written anywhere by a link."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _read(path: Path) -> list[str]:
    try:
        with open(_opened(path, os.O_RDONLY), "rb") as file:
            lines = file.read().splitlines()[-MOST:]
    except OSError:
        return []
    kept = []
    for line in lines:
        try:
            kept.append(msgspec.json.decode(line, type=str))
        except msgspec.DecodeError:
            continue
    return kept
