"""Reports of steps, as files in the project."""

from __future__ import annotations

import asyncio
from pathlib import Path


class FileReports:
    """Implements the port `Reports`. Files are written by a thread, many at a time."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._folders: set[Path] = set()
        self._pending: list[tuple[str, str]] = []
        self._writing: asyncio.Future[None] | None = None

    def keep(self, path: str, text: str) -> None:
        self._pending.append((path, text))
        if self._writing is None or self._writing.done():
            self._writing = asyncio.get_running_loop().run_in_executor(None, self._write)

    async def drained(self) -> None:
        while self._writing is not None:
            writing, self._writing = self._writing, None
            await writing
            if self._pending and self._writing is None:
                self._writing = asyncio.get_running_loop().run_in_executor(None, self._write)

    def _write(self) -> None:
        while self._pending:
            name, text = self._pending.pop(0)
            try:
                self._replace(self._root / name, text.encode("utf-8", "replace"))
            except OSError:
                # A report is a convenience: everything in it is in the journal.
                continue

    def _replace(self, path: Path, data: bytes) -> None:
        if path.parent not in self._folders:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._folders.add(path.parent)
        with open(path, "wb", buffering=0) as file:
            file.write(data)
