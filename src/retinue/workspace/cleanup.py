"""What is kept of trees and for how long: copies left behind, steps, and objects that nobody names.

A copy in use is locked and never touched. One that a killed process has left is kept for a while,
for the work in it. Steps go with the age of their run. Objects that no step needs are states that
runs began from; a run under way may still need them, so only old ones go.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress

from retinue.domain.cleanup_report import Chore
from retinue.errors import WorkspaceError
from retinue.workspace.copies import stale_copies
from retinue.workspace.git import git_output
from retinue.workspace.private_git import PrivateGit
from retinue.workspace.recorded_changes import ROOT, delete_ref, list_changes, ref_of
from retinue.workspace.removal import remove_folder

DAY_S = 24 * 3600.0
COPIES_S = 7 * DAY_S
STEPS_S = 90 * DAY_S
OBJECTS_S = 14 * DAY_S
MAX_STALE = 20
_STAMP_FILE = "swept"


def clean_daily(private_git: PrivateGit, worktrees: str) -> None:
    """What `clean` does, by itself and by the usual ages, at most once a day. Nothing raises."""
    stamp = os.path.join(private_git.path, _STAMP_FILE)
    with suppress(FileNotFoundError):
        if time.time() - os.stat(stamp).st_mtime < DAY_S:
            return
    # No work has to wait for tidiness: `clean` tells what is wrong.
    with suppress(OSError, WorkspaceError):
        with open(stamp, "wb"):
            os.utime(stamp)
        for folder in _old_copies(worktrees, COPIES_S):
            remove_folder(folder)
        clean_steps(private_git, older_s=STEPS_S)
        _prune(private_git, OBJECTS_S)


def clean_copies(worktrees: str, *, older_s: float, dry_run: bool = False) -> Chore:
    """Remove copies left behind that are older, or too many; with `dry_run`, only tell of them."""
    sizes = {folder: _size(folder) for folder in _folders(worktrees)}
    old = _old_copies(worktrees, older_s)
    if not dry_run:
        for folder in old:
            remove_folder(folder)
    return Chore(
        name="copies of trees",
        items=len(sizes),
        size_bytes=sum(sizes.values()),
        old_items=len(old),
        old_bytes=sum(sizes.get(folder, 0) for folder in old),
    )


def _old_copies(worktrees: str, older_s: float) -> list[str]:
    stale, before = list(stale_copies(worktrees)), time.time() - older_s
    surplus = len(stale) - MAX_STALE
    return [one.folder for i, one in enumerate(stale) if one.since <= before or i < surplus]


def clean_steps(private_git: PrivateGit, *, older_s: float, dry_run: bool = False) -> Chore:
    """Forget what can be undone of runs that are older; what that frees, `clean_objects` frees."""
    before = time.time() - older_s
    changes = list_changes(private_git)
    old = {
        run_id
        for run_id in dict.fromkeys(one.run_id for one in changes)
        if _latest_mtime(os.path.join(private_git.path, ROOT, run_id)) <= before
    }
    gone = [one for one in changes if one.run_id in old]
    if not dry_run:
        for one in gone:
            delete_ref(private_git, ref_of(one))
    return Chore(name="changes that can be undone", items=len(changes), old_items=len(gone))


def clean_objects(private_git: PrivateGit, *, older_s: float, dry_run: bool = False) -> Chore:
    """Remove objects that no step needs and that are older."""
    objects = os.path.join(private_git.path, "objects")
    items, size_bytes = sum(1 for _ in _files(objects)), _size(objects)
    listed = _prune(private_git, older_s, "--dry-run").decode().splitlines()
    names = [line.split(" ", 1)[0] for line in listed]
    old_bytes = sum(_file_size(os.path.join(objects, name[:2], name[2:])) for name in names)
    if not dry_run:
        _prune(private_git, older_s)
    return Chore(
        name="versions of files",
        items=items,
        size_bytes=size_bytes,
        old_items=len(names),
        old_bytes=old_bytes,
    )


def _prune(private_git: PrivateGit, older_s: float, *options: str) -> bytes:
    # Without a repository the depot's own index is the only one, and what it names must stay.
    index_file = os.path.join(private_git.path, "index")
    where = private_git.repository(private_git.top, index_file, borrow=False)
    return git_output(where, ["prune", *options, f"--expire={int(time.time() - older_s)}"])


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
    """When the last of the refs below a folder was written."""
    return max((os.stat(path).st_mtime for path in _files(folder)), default=0.0)
