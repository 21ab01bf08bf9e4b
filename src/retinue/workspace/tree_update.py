"""Updating a file tree by a merge: undo, redo, and the work of an agent."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager

import msgspec

from retinue.ports.file_tree import ApplyResult, ChangeRecorder
from retinue.workspace.apply import ApplyRefused, apply
from retinue.workspace.merge import MergedTree, merge_trees
from retinue.workspace.private_git import PrivateGit
from retinue.workspace.recorded_changes import change_ref
from retinue.workspace.snapshot import Snapshot
from retinue.workspace.tree_diff import describe_changes, diff_trees, find_problems, read_blobs

# The user may edit files meanwhile: an update that finds such an edit is computed again.
_ATTEMPTS = 3


class TreeOnDisk(msgspec.Struct, frozen=True):
    """A file tree on disk: how to take a snapshot of it, and how to lock it against our own writes.

    `staging_parent` is a folder on the same file system that no agent can write.
    """

    private_git: PrivateGit
    top: str
    staging_parent: str
    take_snapshot: Callable[[], Snapshot]
    lock: Callable[[], AbstractContextManager[None]]


class Update(msgspec.Struct, frozen=True):
    """`paths` are the changed paths, relative to the top of the tree."""

    result: ApplyResult
    paths: tuple[str, ...] = ()


def update_tree(
    on_disk: TreeOnDisk,
    compute: Callable[[PrivateGit, str], MergedTree],
    display_path: Callable[[str], str],
    recorder: ChangeRecorder | None,
    message: str,
) -> Update:
    """Replace the tree by what `compute` makes of its current snapshot.

    `display_path` turns a path from the top into one for the user. Conflicts and forbidden changes
    are refused: then nothing is changed, and the result names them.
    """
    private_git = on_disk.private_git
    refused: tuple[str, ...] = ()
    for _ in range(_ATTEMPTS):
        with on_disk.lock():
            current = on_disk.take_snapshot().tree
            merged = compute(private_git, current)
            if merged.conflicts:
                paths = tuple(display_path(conflict.path) for conflict in merged.conflicts)
                return Update(ApplyResult(refused=paths))
            diff = diff_trees(private_git, current, merged.tree)
            if not diff:
                return Update(ApplyResult())
            blobs = read_blobs(private_git, diff)
            if problems := find_problems(diff, blobs):
                return Update(ApplyResult(refused=tuple(problems)))
            number = ref = None
            if recorder is not None:
                number = recorder.next_number()
                ref = change_ref(recorder.run_id, number)
            try:
                commit = apply(
                    private_git,
                    on_disk.top,
                    diff,
                    staging_parent=on_disk.staging_parent,
                    ref=ref,
                    message=message,
                )
            except ApplyRefused as error:
                refused = (str(error),)
                if error.rescued:
                    break  # The message of another attempt would not name the rescued files.
                continue
        files = describe_changes(diff, blobs, display_path)
        if recorder is not None and number is not None and commit is not None:
            recorder.record(number, commit, files)
        return Update(
            ApplyResult(commit=commit or "", files=files), tuple(entry.path for entry in diff)
        )
    return Update(ApplyResult(refused=refused))


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
