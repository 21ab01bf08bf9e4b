"""What shows that a run was begun by this user on this machine.

A journal lies in the project, and a project may be somebody else's: one that brought a journal
along could have whatever tools it likes run by `resume`. So each run begins with a seal that only
who has the user's own key can make.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from contextlib import suppress
from pathlib import Path

KEY_BYTES = 32


class UserKey:
    """Makes seals with the key in a file, which is made when it is needed first."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._key: bytes | None = None

    def sign(self, text: str) -> str:
        """The seal of a run; "" where the user has no place for a key."""
        if self._key is None:
            with suppress(OSError):
                self._key = self._read() or self._make()
        if self._key is None:
            return ""
        return hashlib.blake2b(text.encode(), key=self._key, digest_size=16).hexdigest()

    def _read(self) -> bytes | None:
        with suppress(FileNotFoundError):
            key = self._file.read_bytes()
            return key if len(key) == KEY_BYTES else None
        return None

    def _make(self) -> bytes | None:
        self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft = self._file.with_name(f"{self._file.name}.{os.getpid()}")
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(secrets.token_bytes(KEY_BYTES))
        try:
            # Of two processes that make one, the first has made it.
            with suppress(FileExistsError):
                os.link(draft, self._file)
        finally:
            draft.unlink()
        return self._read()
