"""Whether two processes see the same files: one writes tokens, the other looks for them."""

from __future__ import annotations

import os
import platform
import secrets
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

_PREFIX = ".host-token-"
_LEFT_AFTER_S = 86_400.0


class DiskToken(msgspec.Struct, frozen=True):
    """A file with a random content, which only a process on the same disk finds at this path."""

    path: str
    content: str


def machine_id() -> str:
    """The name of this machine until it restarts. All its containers have the same name."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return platform.node()


@contextmanager
def disk_tokens(folders: Iterable[Path]) -> Iterator[tuple[DiskToken, ...]]:
    """Write a token into each folder, for the time of the block."""
    tokens = []
    try:
        for folder in folders:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _remove_left(folder)
            content = secrets.token_hex(16)
            fd, path = tempfile.mkstemp(prefix=_PREFIX, dir=folder)
            with open(fd, "w", encoding="ascii") as file:
                file.write(content)
            tokens.append(DiskToken(path, content))
        yield tuple(tokens)
    finally:
        for token in tokens:
            with suppress(OSError):
                os.unlink(token.path)


def shares_disk(machine: str, tokens: Iterable[DiskToken]) -> bool:
    """Whether this process runs on that machine, and sees the files in which the tokens are.

    Both must be true: file locks work within one machine only, and containers of one machine may
    have different disks.
    """
    return machine == machine_id() and all(map(_is_here, tokens))


def _is_here(token: DiskToken) -> bool:
    try:
        return Path(token.path).read_text("ascii") == token.content
    except (OSError, UnicodeDecodeError):
        return False


def _remove_left(folder: Path) -> None:
    """Remove the tokens of processes that were killed."""
    for left in folder.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > _LEFT_AFTER_S:
                left.unlink()
