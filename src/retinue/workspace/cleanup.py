"""Cleanup of files: working copies that were left behind, recorded changes, and git objects.

A copy in use is locked and never removed. A copy that a killed process left behind is kept for a
while, for the work in it. Recorded changes expire with the age of their run. Git objects that no
recorded change needs are states that runs started from. A running agent may still need such a
state, so only old objects are removed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress

from retinue.domain.cleanup_report import DAY_S, CleanupReport
from retinue.errors import WorkspaceError
from retinue.processes.removal import remove_folder
from retinue.workspace.copies import stale_copies
from retinue.workspace.git import git_output
from retinue.workspace.private_git import PrivateGit
from retinue.workspace.recorded_changes import ROOT, delete_ref, list_changes, ref_of

COPIES_S = 7 * DAY_S
CHANGES_S = 90 * DAY_S
OBJECTS_S = 14 * DAY_S
MAX_STALE = 20
_STAMP_FILE = "swept"


def clean_daily(private_git: PrivateGit, worktrees: str) -> None:
    """Remove what exceeds the default ages, at most once a day. Never raises."""
    stamp = os.path.join(private_git.path, _STAMP_FILE)
    with suppress(FileNotFoundError):
        if time.time() - os.stat(stamp).st_mtime < DAY_S:
            return
    # A failed cleanup must not stop a run: `clean_files` raises the error.
    with suppress(OSError, WorkspaceError):
        with open(stamp, "wb"):
            os.utime(stamp)
        remove_old_copies(worktrees)
        clean_changes(private_git, older_s=CHANGES_S)
        _prune(private_git, OBJECTS_S)


def remove_old_copies(worktrees: str) -> None:
    """Remove copies that exceed the default age or number."""
    for folder in _old_copies(worktrees, COPIES_S):
        remove_folder(folder)


def clean_files(
    private_git: PrivateGit, worktrees: str, *, older_s: float | None, dry_run: bool
) -> list[CleanupReport]:
    """Clean copies, changes and objects. Without `older_s` each kind has its default age."""
    ages = (COPIES_S, CHANGES_S, OBJECTS_S)
    copies_s, changes_s, objects_s = ages if older_s is None else (older_s,) * 3
    return [
        clean_copies(worktrees, older_s=copies_s, dry_run=dry_run),
        clean_changes(private_git, older_s=changes_s, dry_run=dry_run),
        clean_objects(private_git, older_s=objects_s, dry_run=dry_run),
    ]


def clean_copies(worktrees: str, *, older_s: float, dry_run: bool = False) -> CleanupReport:
    """Remove copies that were left behind and are older, or exceed MAX_STALE."""
    sizes = {folder: _size(folder) for folder in _folders(worktrees)}
    old = _old_copies(worktrees, older_s)
    if not dry_run:
        for folder in old:
            remove_folder(folder)
    return CleanupReport(
        kind="copies of trees",
        items=len(sizes),
        size_bytes=sum(sizes.values()),
        expired_items=len(old),
        expired_bytes=sum(sizes.get(folder, 0) for folder in old),
    )


def _old_copies(worktrees: str, older_s: float) -> list[str]:
    stale, before = stale_copies(worktrees), time.time() - older_s
    surplus = len(stale) - MAX_STALE
    return [folder for i, (since, folder) in enumerate(stale) if since <= before or i < surplus]


def clean_changes(
    private_git: PrivateGit, *, older_s: float, dry_run: bool = False
) -> CleanupReport:
    """Remove the recorded changes of runs that are older: those runs cannot be undone any more.

    `clean_objects` then frees the disk space.
    """
    before = time.time() - older_s
    changes = list_changes(private_git)
    old = {
        run_id
        for run_id in dict.fromkeys(change.run_id for change in changes)
        if _latest_mtime(os.path.join(private_git.path, ROOT, run_id)) <= before
    }
    gone = [change for change in changes if change.run_id in old]
    if not dry_run:
        for change in gone:
            delete_ref(private_git, ref_of(change))
    return CleanupReport(
        kind="changes that can be undone", items=len(changes), expired_items=len(gone)
    )


def clean_objects(
    private_git: PrivateGit, *, older_s: float, dry_run: bool = False
) -> CleanupReport:
    """Remove git objects that are older and that no recorded change needs."""
    objects = os.path.join(private_git.path, "objects")
    items, size_bytes = sum(1 for _ in _files(objects)), _size(objects)
    listed = _prune(private_git, older_s, "--dry-run").decode().splitlines()
    names = [line.split(" ", 1)[0] for line in listed]
    expired_bytes = sum(_file_size(os.path.join(objects, name[:2], name[2:])) for name in names)
    if not dry_run:
        _prune(private_git, older_s)
    return CleanupReport(
        kind="versions of files",
        items=items,
        size_bytes=size_bytes,
        expired_items=len(names),
        expired_bytes=expired_bytes,
    )


def _prune(private_git: PrivateGit, older_s: float, *options: str) -> bytes:
    # Without a user repository this is the only index, and its objects must stay.
    repository = private_git.repository(os.path.join(private_git.path, "index"), borrow=False)
    return git_output(repository, ["prune", *options, f"--expire={int(time.time() - older_s)}"])


def _folders(parent: str) -> Iterator[str]:
    with suppress(FileNotFoundError), os.scandir(parent) as entries:
        yield from [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]


def _files(folder: str) -> Iterator[str]:
    for where, _, files in os.walk(folder):
        yield from (os.path.join(where, name) for name in files)


def _size(folder: str) -> int:
    return sum(map(_file_size, _files(folder)))


def _file_size(path: str) -> int:
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0


def _latest_mtime(folder: str) -> float:
    """Time of the last write to a ref below a folder."""
    return max((os.stat(path).st_mtime for path in _files(folder)), default=0.0)
