"""Three-way merges of commits and trees, in no tree of anybody's."""

from __future__ import annotations

import os

import msgspec

from retinue.errors import GitError
from retinue.workspace.git import git
from retinue.workspace.private_git import Depot


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """A path that could not be merged, with the blob of each side; "" where one has none."""

    path: str
    base: str = ""
    ours: str = ""
    theirs: str = ""


class Merged(msgspec.Struct, frozen=True):
    """`tree` has both sides; where that was impossible, it has markers and `conflicts` says so."""

    tree: str
    conflicts: tuple[Side, ...] = ()


def merge(depot: Depot, ours: str, theirs: str) -> Merged:
    """Merge two commits that have a common ancestor."""
    where = depot.at(depot.source.top, os.path.join(depot.path, "tmp", "no-index"))
    done = git(where, ["merge-tree", "--write-tree", "-z", "--no-messages", ours, theirs])
    # 1 is a conflict, and also a name that means nothing; only a merge has something to show.
    if not done.stdout:
        said = done.stderr.decode("utf-8", "backslashreplace").strip()
        raise GitError(f"git merge-tree failed in {depot.source.top}: {said}")
    tree, *conflicted = os.fsdecode(done.stdout).split("\0")[:-1]
    return Merged(tree, _sides(conflicted))


def merge_trees(depot: Depot, *, base: str, ours: str, theirs: str) -> Merged:
    """Merge two trees that were made from a third.

    Before 2.40, `merge-tree` cannot be told the base: it finds it as what two commits come from.
    """
    root = depot.commit(base)
    sides = (depot.commit(tree, parents=[root]) for tree in (ours, theirs))
    return merge(depot, *sides)


def _sides(entries: list[str]) -> tuple[Side, ...]:
    """Lines of `mode id stage<TAB>path`, where the stages 1, 2 and 3 are base, ours and theirs."""
    found: dict[str, dict[str, str]] = {}
    for entry in entries:
        about, _, path = entry.partition("\t")
        if path:
            _, blob, stage = about.split(" ")
            found.setdefault(path, {})[("base", "ours", "theirs")[int(stage) - 1]] = blob
    return tuple(Side(path=path, **blobs) for path, blobs in sorted(found.items()))
