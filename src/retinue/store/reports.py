"""Write the reports of children to files in the project."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from contextlib import suppress
from pathlib import Path

from retinue.domain.paths import is_project_file
from retinue.threads import in_thread_shielded

# Files are written when the journal pauses: a new file costs 26 µs then. While the journal calls
# fsync, which flushes every new file too, one costs ten times as much.
PAUSE_S = 1.0
LATEST_S = 30.0
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class FileReports:
    """`Reports` as files, written by a thread, many at a time."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._folders: dict[str, int] = {}
        self._pending: deque[tuple[str, str]] = deque()
        self._writing: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._last = 0.0
        self._write_lock = threading.Lock()

    def keep(self, path: str, text: str) -> None:
        # The path may be from a run that somebody else has recorded in a shared store.
        if not is_project_file(path):
            return
        self._pending.append((path, text))
        loop = asyncio.get_running_loop()
        self._last = loop.time()
        if self._timer is None:
            self._timer = loop.call_later(PAUSE_S, self._write_when_idle, self._last + LATEST_S)

    async def aclose(self) -> None:
        """Write what is pending, even if cancelled, and let go of the folders."""
        if self._timer is not None:
            self._timer.cancel()
        try:
            if self._pending or self._writing is not None:
                # Shielded: a thread that still wrote would take the folders for open.
                await in_thread_shielded(self._write)
        finally:
            for folder in self._folders.values():
                os.close(folder)
            self._folders.clear()

    def _write_when_idle(self, deadline: float) -> None:
        """Start writing after a pause, or when the oldest report has waited long enough."""
        loop = asyncio.get_running_loop()
        start_at = min(self._last + PAUSE_S, deadline)
        if loop.time() >= start_at:
            self._start()
        else:
            self._timer = loop.call_at(start_at, self._write_when_idle, deadline)

    def _start(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._pending and (self._writing is None or self._writing.done()):
            self._writing = asyncio.get_running_loop().run_in_executor(None, self._write)

    def _write(self) -> None:
        with self._write_lock:
            while self._pending:
                name, text = self._pending.popleft()
                # A report is a convenience: the journal holds everything in it.
                with suppress(OSError):
                    self._replace(name, text.encode("utf-8", "replace"))

    def _replace(self, path: str, data: bytes) -> None:
        """Write the file without following a link that a project may have planted."""
        parent, name = os.path.split(path)
        file = os.open(name, _WRITE, 0o644, dir_fd=self._folder(parent))
        try:
            while data:
                data = data[os.write(file, data) :]
        finally:
            os.close(file)

    def _folder(self, path: str) -> int:
        """A descriptor of a folder in the project, which is created if it is missing."""
        if path not in self._folders:
            if path:
                parent, name = os.path.split(path)
                parent_fd = self._folder(parent)
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=parent_fd)
                self._folders[path] = os.open(name, _FOLDER, dir_fd=parent_fd)
            else:
                self._folders[path] = os.open(self._root, _FOLDER)
        return self._folders[path]
