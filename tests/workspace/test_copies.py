from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from retinue.errors import WorkspaceError
from retinue.workspace.copies import CopyFolder, make_copy, stale_copies
from retinue.workspace.snapshot import snapshot_user_tree, take_snapshot

if TYPE_CHECKING:
    from tests.conftest import Repo


def copied(repo: Repo, name: str = "r-a1") -> CopyFolder:
    private_git = repo.private_git()
    base = private_git.commit(snapshot_user_tree(private_git).tree)
    return make_copy(private_git, str(repo.home / "worktrees" / name), base)


def test_copy_has_uncommitted_but_no_ignored_files(repo: Repo) -> None:
    repo.init().commit({"a": "1", ".gitignore": ".env\n", "d/tool": "#!"})
    repo.write(".env", "KEY=1")
    repo.write("new", "2")
    (repo.root / "d" / "tool").chmod(0o755)
    copy = copied(repo)
    top = Path(copy.top)
    assert top.name == repo.root.name
    assert sorted(os.listdir(top)) == [".git", ".gitignore", "a", "d", "new"]
    assert os.access(top / "d" / "tool", os.X_OK)
    assert take_snapshot(copy.repository).tree == copy.private_git.tree_of(copy.base)
    copy.remove()
    assert not Path(copy.folder).exists()


def test_git_in_the_copy_works_without_the_users_settings(repo: Repo) -> None:
    repo.init().commit({"a": "1\n"})
    repo.git("config", "remote.origin.url", "https://token@example.org/x")
    copy = copied(repo)
    top = Path(copy.top)
    assert repo.git("status", "--short", at=top) == ""
    (top / "a").write_text("2\n")
    assert "-1\n+2\n" in repo.git("diff", at=top)
    repo.git("commit", "-q", "-am", "mine", at=top)
    assert "token" not in repo.git("config", "--list", at=top)
    copy.remove()


def test_git_dir_of_the_copy_is_never_read(repo: Repo) -> None:
    repo.init().commit({"a": "1", "b": "1"})
    copy = copied(repo)
    top = Path(copy.top)
    repo.git("rm", "-q", "--cached", "a", at=top)
    (top / ".git" / "info" / "exclude").write_text("*\n")
    (top / "b").write_text("2")
    (top / "c").write_text("3")
    found = repo.listed(copy.private_git, take_snapshot(copy.repository).tree)
    assert found == {"a": "100644 1", "b": "100644 2", "c": "100644 3"}
    copy.remove()


def test_sparse_checkout_stays_sparse(repo: Repo) -> None:
    repo.init().commit({"in/a": "1", "out/b": "2"})
    repo.git("sparse-checkout", "set", "--cone", "in")
    copy = copied(repo)
    assert sorted(os.listdir(copy.top)) == [".git", "in"]
    (Path(copy.top) / "in" / "a").write_text("changed")
    found = repo.listed(copy.private_git, take_snapshot(copy.repository).tree)
    assert found == {"in/a": "100644 changed", "out/b": "100644 2"}
    copy.remove()


def test_copy_is_locked_while_its_process_lives(repo: Repo) -> None:
    repo.init().commit({"a": "1"})
    parent = repo.home / "worktrees"
    assert stale_copies(str(parent)) == []
    copy = copied(repo)
    assert stale_copies(str(parent)) == []
    # A copy that a process left behind: the same folder without its lock.
    left = parent / "r-a2"
    subprocess.run(["cp", "-r", copy.folder, str(left)], check=True)
    ((_, stale),) = stale_copies(str(parent))
    assert stale == str(left)
    copy.remove()


def test_unwritable_folder_is_an_error(repo: Repo) -> None:
    repo.init().commit({"a": "1"})
    (repo.home / "worktrees").write_text("in the way")
    with pytest.raises(WorkspaceError, match=r"worktrees/r-a1 cannot be made \(Not a directory\)"):
        copied(repo)


def test_snapshot_of_a_copy_that_was_removed_is_an_error(repo: Repo) -> None:
    repo.init().commit({"a": "1"})
    copy = copied(repo)
    copy.remove()
    with pytest.raises(WorkspaceError, match=r"r-a1 cannot be written \(No such file"):
        take_snapshot(copy.repository)


def test_failed_copy_leaves_nothing_behind(repo: Repo) -> None:
    private_git = repo.init().private_git()
    folder = repo.home / "worktrees" / "r-a1"
    with pytest.raises(WorkspaceError, match="git read-tree failed"):
        make_copy(private_git, str(folder), "nothing")
    assert not folder.exists()


def test_dependency_folders_of_the_original_are_shared(repo: Repo) -> None:
    repo.init().commit({".gitignore": "node_modules/\n.venv/\nsecret/\n", "web/app/a.js": "1"})
    for path in ("node_modules/x", ".venv/bin/python", "web/app/node_modules/y", "secret/key"):
        repo.write(path, "ignored")
    copy = copied(repo)
    folders = ("node_modules", ".venv", "web/app/node_modules")
    assert copy.share_dependencies(copy.top, str(repo.root)) == folders
    assert not (Path(copy.top) / "secret").exists()
    # Another process that opens the copy finds the mount points.
    assert copy.share_dependencies(copy.top, str(repo.root)) == folders
    assert take_snapshot(copy.repository).tree == copy.private_git.tree_of(copy.base)
    # What is there already is not covered.
    (Path(copy.top) / ".venv" / "own").write_text("x")
    (Path(copy.top) / "node_modules").rmdir()
    (Path(copy.top) / "node_modules").symlink_to(".")
    assert copy.share_dependencies(copy.top, str(repo.root)) == ("web/app/node_modules",)
    copy.remove()


def test_tracked_dependency_folders_are_not_shared(repo: Repo) -> None:
    repo.init().commit({"venv/a": "1"})
    copy = copied(repo)
    assert copy.share_dependencies(copy.top, str(repo.root)) == ()
    copy.remove()


@pytest.mark.skipif(os.geteuid() == 0, reason="root can write everything")
def test_copy_with_read_only_folders_is_removed(repo: Repo) -> None:
    repo.init().commit({"a": "1"})
    copy = copied(repo)
    folder = Path(copy.top, "built", "cache")
    folder.mkdir(parents=True)
    (folder / "x").write_text("1")
    folder.chmod(0o000)
    folder.parent.chmod(0o500)
    copy.remove()
    assert not Path(copy.folder).exists()
