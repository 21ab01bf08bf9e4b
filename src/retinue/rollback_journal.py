"""Recognizes a forged rollback journal, which would make SQLite delete another file."""

from __future__ import annotations

import os

_ROLLBACK_MAGIC = bytes.fromhex("d9d505f920a163d7")
"""Eight bytes at the beginning of each header, and after the name of a super-journal."""


def would_delete_a_file(database: str) -> bool:
    """Whether SQLite's recovery of the database would delete another file.

    A rollback journal can end with the name of a "super-journal", which SQLite deletes. SQLite
    writes none for us, but one that came with a cloned project could name any file of the user.
    """
    try:
        # A link, which SQLite refuses, and a pipe, which would block, are not opened.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        fd = os.open(f"{database}-journal", flags)
    except OSError:
        return False
    with open(fd, "rb") as file:
        size = os.fstat(fd).st_size
        return os.pread(file.fileno(), 8, max(0, size - 8)) == _ROLLBACK_MAGIC and size > 8
