"""Three-way merges of commits and trees, in no tree of anybody's."""

from __future__ import annotations

import os

import msgspec

from retinue.errors import GitError
from retinue.workspace.git import run_git
from retinue.workspace.private_git import PrivateGit


class PathConflict(msgspec.Struct, frozen=True, kw_only=True):
    """A path that could not be merged, with the blob of each side; "" where one has none."""

    path: str
    base: str = ""
    ours: str = ""
    theirs: str = ""


class MergedTree(msgspec.Struct, frozen=True):
    """`tree` has both sides; where that was impossible, it has markers and `conflicts` says so."""

    tree: str
    conflicts: tuple[PathConflict, ...] = ()


def merge(private_git: PrivateGit, ours: str, theirs: str) -> MergedTree:
    """Merge two commits that have a common ancestor."""
    where = private_git.repository(
        private_git.top, os.path.join(private_git.path, "tmp", "no-index")
    )
    done = run_git(where, ["merge-tree", "--write-tree", "-z", "--no-messages", ours, theirs])
    # 1 is a conflict, and also a name that means nothing; only a merge has something to show.
    if not done.stdout:
        said = done.stderr.decode("utf-8", "backslashreplace").strip()
        raise GitError(f"git merge-tree failed in {private_git.top}: {said}")
    tree, *conflicted = os.fsdecode(done.stdout).split("\0")[:-1]
    return MergedTree(tree, _parse_conflicts(conflicted))


def merge_trees(private_git: PrivateGit, *, base: str, ours: str, theirs: str) -> MergedTree:
    """Merge two trees that were made from a third.

    Before 2.40, `merge-tree` cannot be told the base: it finds it as what two commits come from.
    """
    root = private_git.commit(base)
    sides = (private_git.commit(tree, parents=[root]) for tree in (ours, theirs))
    return merge(private_git, *sides)


def _parse_conflicts(entries: list[str]) -> tuple[PathConflict, ...]:
    """Lines of `mode id stage<TAB>path`, where the stages 1, 2 and 3 are base, ours and theirs."""
    found: dict[str, dict[str, str]] = {}
    for entry in entries:
        about, _, path = entry.partition("\t")
        if path:
            _, blob, stage = about.split(" ")
            found.setdefault(path, {})[("base", "ours", "theirs")[int(stage) - 1]] = blob
    return tuple(PathConflict(path=path, **blobs) for path, blobs in sorted(found.items()))
