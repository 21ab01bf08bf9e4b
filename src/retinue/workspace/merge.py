"""Three-way merges of commits and git trees, without touching any work tree."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

import msgspec

from retinue.domain.result import Conflict
from retinue.errors import GitError
from retinue.workspace.git import run_git
from retinue.workspace.private_git import PrivateGit


class MergedTree(msgspec.Struct, frozen=True):
    """`tree` has the changes of both sides; files in `conflicts` have conflict markers."""

    tree: str
    conflicts: tuple[Conflict, ...] = ()


def merge(private_git: PrivateGit, ours: str, theirs: str) -> MergedTree:
    """Merge two commits that have a common ancestor."""
    options = ["--write-tree", "-z", "--no-messages"]
    done = run_git(private_git.repository(), ["merge-tree", *options, ours, theirs])
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


def merge_all(
    merge: Callable[[PrivateGit, str, str], MergedTree],
    commits: Iterable[str],
    private_git: PrivateGit,
    tree: str,
) -> MergedTree:
    """`tree` after `merge` (`revert` or `reapply`) of each commit; stops at the first conflict."""
    merged = MergedTree(tree)
    for commit in commits:
        merged = merge(private_git, commit, merged.tree)
        if merged.conflicts:
            break
    return merged


def merge_work(base: str, commit: str, private_git: PrivateGit, tree: str) -> MergedTree:
    """`tree` with the changes from `base` to `commit`."""
    before, after = private_git.tree_of(base), private_git.tree_of(commit)
    if tree == before:
        return MergedTree(after)
    return merge_trees(private_git, base=before, ours=tree, theirs=after)


def _parse_conflicts(entries: list[str]) -> tuple[Conflict, ...]:
    """Parse lines of `mode id stage<TAB>path`; stages 1, 2 and 3 are base, ours and theirs."""
    found: dict[str, dict[str, str]] = {}
    for entry in entries:
        about, _, path = entry.partition("\t")
        if path:
            _, blob, stage = about.split(" ")
            found.setdefault(path, {})[stage] = blob
    return tuple(
        Conflict(path=path, ours=blobs.get("2", ""), theirs=blobs.get("3", ""))
        for path, blobs in sorted(found.items())
    )
