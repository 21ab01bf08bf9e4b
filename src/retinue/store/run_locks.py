"""Locks on runs as files, through which other processes send messages to the owner of a run.

The process that works on a run keeps one file locked. The kernel releases the lock when the process
ends, for whatever reason, so no process works on a run with an unlocked file. Other processes
append lines to the file; the owner notices new lines by the file's size, which takes a microsecond
to read. Lines are signed with the user's key, because a line can answer for the user.
"""

from __future__ import annotations

import fcntl
import hmac
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from retinue.errors import RunError

MAX_READ_BYTES = 64 * 1024
LOCK_TRIES, LOCK_RETRY_S = 5, 0.01
MAX_LOOKS = 1_000
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class FileRunLock:
    """A `RunLock` on one file. Without a file it receives no messages."""

    def __init__(self, run_locks: FileRunLocks, run_id: str, file: int | None) -> None:
        self._run_locks = run_locks
        self._run_id = run_id
        self._file = file
        # Messages to an earlier owner are not meant for this one.
        self._read_bytes = 0 if file is None else os.fstat(file).st_size

    def received(self) -> Sequence[str]:
        if self._file is None or os.fstat(self._file).st_size == self._read_bytes:
            return ()
        data = os.pread(self._file, MAX_READ_BYTES, self._read_bytes)
        whole_lines = data[: data.rfind(b"\n") + 1]
        self._read_bytes += len(whole_lines)
        lines = whole_lines.decode("utf-8", "replace").split("\n")[:-1]
        signed = (line.partition(" ") for line in lines)
        return [
            message
            for signature, _, message in signed
            if hmac.compare_digest(
                signature.encode(), self._run_locks.signature(self._run_id, message).encode()
            )
        ]

    def release(self) -> None:
        self._run_locks.forget(self._run_id)
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _lock(file: int) -> None:
    """Lock a file; BlockingIOError if another process keeps it locked."""
    tries, looks = LOCK_TRIES, MAX_LOOKS
    while tries and looks:
        with suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        try:
            # `is_held` of another process shares its lock, which a busy machine may prolong.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            fcntl.flock(file, fcntl.LOCK_UN)
            looks -= 1
        except BlockingIOError:
            tries -= 1  # An owner, or `_sweep` of another process for a moment.
        time.sleep(LOCK_RETRY_S)
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


class FileRunLocks:
    """`RunLocks` in one folder, which is created when the first lock is acquired."""

    def __init__(self, folder: Path, sign: Callable[[str], str] = lambda _: "") -> None:
        """`sign` returns the user's signature of a text; without it, messages are not signed."""
        self._folder = folder
        self._sign = sign
        self._mine: set[str] = set()
        self._swept = False

    def acquire(self, run_id: str) -> FileRunLock:
        if run_id in self._mine:
            raise RunError(f"This process already works on run {run_id}.")
        file = None
        # The file system may have no locks, or refuse to let us write.
        with suppress(OSError):
            self._folder.mkdir(exist_ok=True)
            self._sweep()
            file = self._locked(run_id)
        self._mine.add(run_id)
        return FileRunLock(self, run_id, file)

    def _locked(self, run_id: str) -> int:
        """The file of a run, locked. Raises RunError where another process holds the lock."""
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
            # The owner removes the file on release: a lock on a removed file locks out no process.
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file), os.stat(self._folder / run_id)):
                    return file
            os.close(file)

    def _sweep(self) -> None:
        """Remove, once, the files that killed processes left."""
        if self._swept:
            return
        self._swept = True
        for name in os.listdir(self._folder):
            with suppress(OSError):
                file = self._open(name, _FILE)
                try:
                    # A process that has created the file and not locked it yet notices that it is
                    # gone, and creates it again.
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    (self._folder / name).unlink()
                finally:
                    os.close(file)

    def forget(self, run_id: str) -> None:
        self._mine.discard(run_id)
        with suppress(OSError):
            (self._folder / run_id).unlink()

    def is_held(self, run_id: str) -> bool:
        return run_id in self._mine or self._append(run_id, b"")

    def send(self, run_id: str, message: str) -> bool:
        return self._append(run_id, f"{self.signature(run_id, message)} {message}\n".encode())

    def signature(self, run_id: str, message: str) -> str:
        return self._sign(f"message {run_id} {message}")

    def _append(self, run_id: str, data: bytes) -> bool:
        """Write to the file of a run if another process holds its lock."""
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
        """Open the file of a run without following a link that a project may have planted."""
        folder = os.open(self._folder, _FOLDER)
        try:
            return os.open(run_id, flags, 0o600, dir_fd=folder)
        finally:
            os.close(folder)
