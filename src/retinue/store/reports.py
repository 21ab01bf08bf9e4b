"""Reports of steps, as files in the project."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from contextlib import suppress
from pathlib import Path

# Written in a pause, since a new file costs 26 µs then, and ten times as much while the journal
# keeps calling fsync beside it, which has to write every new file out as well.
PAUSE_S = 1.0
LATEST_S = 30.0
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class FileReports:
    """Implements the port `Reports`. Files are written by a thread, many at a time."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._folders: dict[str, int] = {}
        self._pending: deque[tuple[str, str]] = deque()
        self._writing: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._last = 0.0

    def keep(self, path: str, text: str) -> None:
        self._pending.append((path, text))
        loop = asyncio.get_running_loop()
        self._last = loop.time()
        if self._timer is None:
            self._timer = loop.call_later(PAUSE_S, self._look, self._last + LATEST_S)

    async def drained(self) -> None:
        self._begin()
        while self._writing is not None:
            writing, self._writing = self._writing, None
            await writing
            if self._pending:
                self._begin()

    def _look(self, at_the_latest: float) -> None:
        """Begin if nothing has come for a while, or if it has been long enough."""
        loop = asyncio.get_running_loop()
        begin_at = min(self._last + PAUSE_S, at_the_latest)
        if loop.time() >= begin_at:
            self._begin()
        else:
            self._timer = loop.call_at(begin_at, self._look, at_the_latest)

    def _begin(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._pending and (self._writing is None or self._writing.done()):
            self._writing = asyncio.get_running_loop().run_in_executor(None, self._write)

    def _write(self) -> None:
        while self._pending:
            name, text = self._pending.popleft()
            # A report is a convenience: everything in it is in the journal.
            with suppress(OSError):
                self._replace(name, text.encode("utf-8", "replace"))

    def _replace(self, path: str, data: bytes) -> None:
        """Write the file without going through a link: a project may have put one in the way."""
        above, name = os.path.split(path)
        file = os.open(name, _WRITE, 0o644, dir_fd=self._folder(above))
        try:
            while data:
                data = data[os.write(file, data) :]
        finally:
            os.close(file)

    def _folder(self, path: str) -> int:
        """A descriptor of a folder in the project, made where it is missing."""
        if path not in self._folders:
            if path:
                above, name = os.path.split(path)
                inside = self._folder(above)
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=inside)
                self._folders[path] = os.open(name, _FOLDER, dir_fd=inside)
            else:
                self._folders[path] = os.open(self._root, _FOLDER)
        return self._folders[path]

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for folder in self._folders.values():
            os.close(folder)
        self._folders.clear()
