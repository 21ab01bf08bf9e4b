"""The differences between two git trees, path by path, and which of them may not be applied."""

from __future__ import annotations

import posixpath
import stat
from collections.abc import Callable, Mapping, Sequence

import msgspec

from retinue.domain.paths import inside
from retinue.domain.protected_paths import NOTHING_PROTECTED, ProtectedPaths
from retinue.domain.result import FileChange
from retinue.workspace.file_changes import describe_change
from retinue.workspace.file_names import printable, protected_name, quoted
from retinue.workspace.git import small_blobs, split_paths
from retinue.workspace.private_git import PrivateGit

# Larger files are not read into memory, so their lines are not counted and not hashed.
_MAX_DESCRIBED_BYTES = 8 * 1024 * 1024

GITLINK = 0o160000


class DiffEntry(msgspec.Struct, frozen=True):
    """One changed path. Modes are git's (0 if there is no file); ids are those of blobs."""

    path: str
    old_mode: int
    new_mode: int
    old_id: str
    new_id: str

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of the blobs before and after, if there are any."""
        sides = ((self.old_mode, self.old_id), (self.new_mode, self.new_id))
        return tuple(blob for mode, blob in sides if mode and not is_gitlink(mode))


def is_link(mode: int) -> bool:
    return stat.S_ISLNK(mode)


def is_gitlink(mode: int) -> bool:
    return mode == GITLINK


def diff_trees(private_git: PrivateGit, before: str, after: str) -> list[DiffEntry]:
    """The differences between two trees or commits, sorted by path."""
    raw = ["diff-tree", "-r", "-z", "--raw", "--no-renames", "--no-ext-diff", before, after]
    parts = split_paths(private_git.run(raw))
    found = []
    for about, path in zip(parts[::2], parts[1::2], strict=True):
        old_mode, new_mode, old_id, new_id, _ = about.lstrip(":").split(" ")
        found.append(DiffEntry(path, int(old_mode, 8), int(new_mode, 8), old_id, new_id))
    return found


def read_blobs(
    private_git: PrivateGit, changed: Sequence[DiffEntry], *, max_bytes: int = _MAX_DESCRIBED_BYTES
) -> dict[str, bytes]:
    """The contents of the changed blobs by id, without large ones. GitError if one is missing."""
    wanted = dict.fromkeys(blob for change in changed for blob in change.ids)
    return small_blobs(private_git.repository(), wanted, max_bytes=max_bytes) if wanted else {}


def describe_changes(
    changed: Sequence[DiffEntry],
    blobs: Mapping[str, bytes],
    display_path: Callable[[str], str] = str,
) -> tuple[FileChange, ...]:
    """The changes for users and receipts, with line counts and hashes."""
    return tuple(_describe(change, blobs, display_path(change.path)) for change in changed)


def _describe(change: DiffEntry, blobs: Mapping[str, bytes], path: str) -> FileChange:
    before, after = blobs.get(change.old_id), blobs.get(change.new_id)
    known = len(change.ids) == (before is not None) + (after is not None)
    found = describe_change(path, before, after, counted=known)
    # A large file is there although its content is not.
    return msgspec.structs.replace(found, new=not change.old_mode, gone=not change.new_mode)


def find_problems(
    changed: Sequence[DiffEntry],
    blobs: Mapping[str, bytes],
    protected: ProtectedPaths = NOTHING_PROTECTED,
    top: str = "/",
) -> list[str]:
    """Why changes must not be applied: one sentence for each forbidden change.

    `top` is the folder of the user that the tree is from.
    """
    found = []
    for change in changed:
        path, name = change.path, quoted(change.path)
        if off_limits := protected_name(path):
            found.append(f"{name} is off limits: it is in {quoted(off_limits)}")
        elif refusal := protected.refusal(top, path):
            found.append(printable(refusal))
        elif is_gitlink(change.new_mode) or is_gitlink(change.old_mode):
            found.append(f"{name} is a repository inside the repository")
        elif is_link(change.new_mode):
            target = blobs[change.new_id].decode("utf-8", "surrogateescape")
            leads_to = inside(posixpath.join(posixpath.dirname(path), target), "/")
            if target.startswith("/"):
                found.append(f"{name} is a link to an absolute path, {quoted(target)}")
            elif leads_to is None:
                found.append(f"{name} is a link that leaves the project, to {quoted(target)}")
            elif off_limits := protected_name(leads_to):
                found.append(f"{name} is a link into {quoted(off_limits)}")
    return found
