from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from retinue.domain.cleanup_report import DAY_S
from retinue.workspace.cleanup import (
    MAX_STALE,
    clean_changes,
    clean_copies,
    clean_daily,
    clean_objects,
)
from retinue.workspace.copies import LOCK, make_copy
from retinue.workspace.recorded_changes import (
    FileState,
    change_ref,
    list_changes,
    record_files,
    unified_diff,
)
from retinue.workspace.snapshot import snapshot_user_tree
from retinue.workspace.user_file_tree import UserFileTree

if TYPE_CHECKING:
    from tests.conftest import Repo


def left_behind(parent: Path, name: str, *, days: float) -> Path:
    """A copy whose process is gone."""
    folder = parent / name
    folder.mkdir(parents=True)
    (folder / LOCK).touch()
    (folder / "data").write_bytes(b"x" * 1000)
    then = time.time() - days * DAY_S
    os.utime(folder, (then, then))
    return folder


def test_old_unused_copies_are_removed(repo: Repo, tmp_path: Path) -> None:
    repo.init().commit({"a": "1"})
    private_git, parent = repo.private_git(), tmp_path / "worktrees"
    used = make_copy(
        private_git, str(parent / "used"), private_git.commit(snapshot_user_tree(private_git).tree)
    )
    old, new = left_behind(parent, "old", days=8), left_behind(parent, "new", days=1)
    report = clean_copies(str(parent), older_s=7 * DAY_S, dry_run=True)
    assert (report.items, report.expired_items) == (3, 1)
    assert report.size_bytes > report.expired_bytes >= 1000
    assert old.exists()
    assert clean_copies(str(parent), older_s=7 * DAY_S) == report
    assert (old.exists(), new.exists(), os.path.exists(used.top)) == (False, True, True)
    clean_copies(str(parent), older_s=0)
    assert (new.exists(), os.path.exists(used.top)) == (False, True)
    used.remove()


def test_at_most_max_stale_copies_are_kept(tmp_path: Path) -> None:
    folders = [left_behind(tmp_path, f"c{n}", days=(60 - n) / 24) for n in range(MAX_STALE + 2)]
    assert clean_copies(str(tmp_path), older_s=7 * DAY_S).expired_items == 2
    assert [folder.exists() for folder in folders[:3]] == [False, False, True]


def test_changes_of_old_runs_are_removed_with_their_objects(repo: Repo) -> None:
    repo.init().commit({"a": "1"})
    private_git = repo.private_git()
    for run_id in ("old", "new"):
        after = FileState("a", 0o100644, f"by {run_id}\n".encode())
        record_files(private_git, change_ref(run_id, 1), [], [after], "x")
    then = time.time() - 100 * DAY_S
    for folder, _, files in os.walk(private_git.path):
        for name in files:
            os.utime(os.path.join(folder, name), (then, then))
    (fresh,) = [one for one in list_changes(private_git) if one.run_id == "new"]
    os.utime(os.path.join(private_git.path, change_ref("new", 1)))
    report = clean_changes(private_git, older_s=90 * DAY_S)
    assert (report.items, report.expired_items) == (2, 1)
    assert list_changes(private_git) == [fresh]
    report = clean_objects(private_git, older_s=14 * DAY_S)
    assert (
        report.expired_items == 3
    )  # a commit, a tree and a blob; what was before is the other's too
    assert b"+by new" in unified_diff(private_git, fresh.commit)
    assert clean_objects(private_git, older_s=14 * DAY_S).expired_items == 0


async def test_cleanup_keeps_the_objects_of_the_tree_without_a_user_repository(
    repo: Repo, tmp_path: Path
) -> None:
    repo.write("a", "1\n")
    (repo.root / ".retinue").mkdir()
    file_tree = UserFileTree(
        str(repo.root),
        state_folder=str(repo.root / ".retinue"),
        worktrees=str(tmp_path / "worktrees"),
        home=str(repo.home),
        config_home=str(repo.config),
        seal=str,
    )
    await file_tree.snapshot(None)
    # The file must be older than the index, or git would read it again.
    then = time.time() - 100
    os.utime(repo.root / "a", (then, then))
    await file_tree.snapshot(None)
    await file_tree.clean(0.0, dry_run=False)
    base = await file_tree.snapshot(None)
    copy = await file_tree.copy(base, name="x", directory=str(repo.root))
    assert copy.workspace(str(repo.root)).read("a", max_bytes=9) == b"1\n"
    await copy.remove()


def test_daily_cleanup_runs_once_a_day(repo: Repo, tmp_path: Path) -> None:
    repo.init().commit({"a": "1"})
    private_git, parent = repo.private_git(), tmp_path / "worktrees"
    first = left_behind(parent, "first", days=8)
    clean_daily(private_git, str(parent))
    second = left_behind(parent, "second", days=8)
    clean_daily(private_git, str(parent))
    assert (first.exists(), second.exists()) == (False, True)
    then = time.time() - 2 * DAY_S
    os.utime(os.path.join(private_git.path, "swept"), (then, then))
    clean_daily(private_git, str(parent))
    assert not second.exists()
