"""The user's key: signs what this user's retinue has written into a project."""

from __future__ import annotations

import hashlib
import os
import secrets
from contextlib import suppress
from pathlib import Path

KEY_BYTES = 32


class UserKey:
    """Key in a file, which is created at the first use."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._key: bytes | None = None

    def sign(self, text: str) -> str:
        """Signature of `text`; empty if the key file cannot be created."""
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
        create_once(self._file, secrets.token_bytes(KEY_BYTES))
        return self._read()


def create_once(file: Path, content: bytes) -> None:
    """Create a file that only the user can read. If several processes do, the first one wins."""
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = file.with_name(f"{file.name}.{os.getpid()}.{secrets.token_hex(4)}")
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as opened:
        opened.write(content)
    try:
        with suppress(FileExistsError):
            os.link(draft, file)
    finally:
        draft.unlink()
