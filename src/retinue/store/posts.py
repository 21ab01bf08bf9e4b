"""Where the process that works on a run can be reached by others, and whether it is still there.

Each run under way has a file that its process keeps locked. The kernel lets go of the lock
whatever becomes of the process, so a file that is not locked is nobody's. Others write lines to its
end; that there are new ones is seen by its size, which costs a microsecond to ask for.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from retinue.errors import RunError

LONGEST_BYTES = 64 * 1024
LOOKS, LOOK_S = 5, 0.01
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class FilePost:
    """Implements the port `RunLock`. Without a file it hears nothing, and the run goes on."""

    def __init__(self, posts: FilePosts, run_id: str, file: int | None) -> None:
        self._posts = posts
        self._run_id = run_id
        self._file = file
        # What was said to an earlier owner was not meant for this one.
        self._heard_bytes = 0 if file is None else os.fstat(file).st_size

    def heard(self) -> Sequence[str]:
        if self._file is None or os.fstat(self._file).st_size == self._heard_bytes:
            return ()
        data = os.pread(self._file, LONGEST_BYTES, self._heard_bytes)
        whole = data[: data.rfind(b"\n") + 1]
        self._heard_bytes += len(whole)
        return whole.decode("utf-8", "replace").splitlines()

    def leave(self) -> None:
        self._posts.forget(self._run_id)
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _lock(file: int) -> None:
    """Lock a file; BlockingIOError if somebody keeps it locked."""
    for _ in range(LOOKS):
        with suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        # It may be somebody who just looks whether it is locked, which takes a moment.
        time.sleep(LOOK_S)
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


class FilePosts:
    """Implements the port `RunLocks` in one folder, which is made when it is needed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._mine: set[str] = set()
        self._swept = False

    def take(self, run_id: str) -> FilePost:
        if run_id in self._mine:
            raise RunError(f"Run {run_id} is being worked on already.")
        file = None
        # A file system may know neither locks nor our rights.
        with suppress(OSError):
            self._folder.mkdir(exist_ok=True)
            self._sweep()
            file = self._locked(run_id)
        self._mine.add(run_id)
        return FilePost(self, run_id, file)

    def _locked(self, run_id: str) -> int:
        """The file of a run, locked. Raises RunError where another process has it."""
        while True:
            file = self._open(run_id, _FILE | os.O_CREAT)
            try:
                _lock(file)
            except BlockingIOError:
                os.close(file)
                raise RunError(
                    f"Another process works on run {run_id}; `retinue watch {run_id}` follows it,"
                    f" and `retinue cancel {run_id}` stops it."
                ) from None
            except OSError:
                os.close(file)
                raise
            # Its owner removes it when it leaves: a lock on what is gone keeps nobody out.
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file), os.stat(self._folder / run_id)):
                    return file
            os.close(file)

    def _sweep(self) -> None:
        """Remove, once, what processes have left that were killed."""
        if self._swept:
            return
        self._swept = True
        for name in os.listdir(self._folder):
            with suppress(OSError):
                file = self._open(name, _FILE)
                try:
                    # Who has just made it and not locked it yet sees that it is gone, and makes it
                    # again.
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    (self._folder / name).unlink()
                finally:
                    os.close(file)

    def forget(self, run_id: str) -> None:
        self._mine.discard(run_id)
        with suppress(OSError):
            (self._folder / run_id).unlink()

    def held(self, run_id: str) -> bool:
        return run_id in self._mine or self._say(run_id, b"")

    def send(self, run_id: str, words: str) -> bool:
        return self._say(run_id, f"{words}\n".encode())

    def _say(self, run_id: str, data: bytes) -> bool:
        """Write to the file of a run if somebody holds it."""
        with suppress(OSError):
            file = self._open(run_id, _FILE)
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                os.write(file, data)
                return True
            finally:
                os.close(file)
        return False

    def _open(self, run_id: str, flags: int) -> int:
        """The file of a run, never through a link: a project may have put one in the way."""
        folder = os.open(self._folder, _FOLDER)
        try:
            return os.open(run_id, flags, 0o600, dir_fd=folder)
        finally:
            os.close(folder)
