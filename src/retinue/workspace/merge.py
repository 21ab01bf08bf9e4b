"""Three-way merges of commits and git trees, without touching any work tree."""

from __future__ import annotations

import os

import msgspec

from retinue.errors import GitError
from retinue.workspace.git import run_git
from retinue.workspace.private_git import PrivateGit


class PathConflict(msgspec.Struct, frozen=True, kw_only=True):
    """A path that could not be merged, with the blob of each side ("" if a side has no file)."""

    path: str
    base: str = ""
    ours: str = ""
    theirs: str = ""


class MergedTree(msgspec.Struct, frozen=True):
    """`tree` has the changes of both sides; files in `conflicts` have conflict markers."""

    tree: str
    conflicts: tuple[PathConflict, ...] = ()


def merge(private_git: PrivateGit, ours: str, theirs: str) -> MergedTree:
    """Merge two commits that have a common ancestor."""
    options = ["--write-tree", "-z", "--no-messages"]
    done = run_git(private_git.without_index(), ["merge-tree", *options, ours, theirs])
    # Exit code 1 means a conflict or an unknown commit; only a conflict has output.
    if not done.stdout:
        raise GitError(f"git merge-tree failed in {private_git.top}: {done.error}")
    tree, *conflicted = os.fsdecode(done.stdout).split("\0")[:-1]
    return MergedTree(tree, _parse_conflicts(conflicted))


def merge_trees(private_git: PrivateGit, *, base: str, ours: str, theirs: str) -> MergedTree:
    """Merge two trees that were made from a third.

    Before git 2.40, `merge-tree` takes no base: it uses the common ancestor of two commits.
    """
    root = private_git.commit(base)
    sides = (private_git.commit(tree, parents=[root]) for tree in (ours, theirs))
    return merge(private_git, *sides)


def _parse_conflicts(entries: list[str]) -> tuple[PathConflict, ...]:
    """Parse lines of `mode id stage<TAB>path`; stages 1, 2 and 3 are base, ours and theirs."""
    found: dict[str, dict[str, str]] = {}
    for entry in entries:
        about, _, path = entry.partition("\t")
        if path:
            _, blob, stage = about.split(" ")
            found.setdefault(path, {})[("base", "ours", "theirs")[int(stage) - 1]] = blob
    return tuple(PathConflict(path=path, **blobs) for path, blobs in sorted(found.items()))
