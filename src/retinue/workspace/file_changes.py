"""Describes a change of a file from its content before and after."""

from __future__ import annotations

import hashlib
from collections import Counter

from retinue.domain.result import FileChange
from retinue.workspace.file_names import printable


def describe_change(
    path: str, before: bytes | None, after: bytes | None, *, counted: bool = True
) -> FileChange:
    """The change for users and receipts, with hashes, and if `counted` with numbers of lines.

    None is a file that does not exist.
    """
    added, removed = count_changed_lines(before or b"", after or b"") if counted else (0, 0)
    return FileChange(
        path=printable(path),
        added=added,
        removed=removed,
        new=before is None,
        gone=after is None,
        before_sha256=None if before is None else hashlib.sha256(before).hexdigest(),
        after_sha256=None if after is None else hashlib.sha256(after).hexdigest(),
    )


def count_changed_lines(before: bytes, after: bytes) -> tuple[int, int]:
    """How many lines were added, and how many removed.

    Lines are counted as multisets, which takes linear time, where a diff can be quadratic. The
    numbers are those of a diff, except that moved lines do not count.
    """
    old = Counter(before.splitlines(keepends=True))
    new = Counter(after.splitlines(keepends=True))
    return (new - old).total(), (old - new).total()
