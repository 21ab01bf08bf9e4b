"""Recorded changes: reverted and applied again beside later edits."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from retinue.errors import WorkspaceError
from retinue.workspace.private_git import PrivateGit
from retinue.workspace.recorded_changes import (
    FileState,
    delete_ref,
    list_changes,
    move_refs,
    reapply,
    record_diff,
    record_files,
    revert,
    unified_diff,
)
from retinue.workspace.snapshot import MAX_FILE_BYTES, snapshot_user_tree
from retinue.workspace.tree_diff import diff_trees

if TYPE_CHECKING:
    from tests.conftest import Repo

REF = "refs/retinue/r/steps/1"


def recorded(
    repo: Repo, private_git: PrivateGit, before: dict[str, str], after: dict[str, str]
) -> str:
    first, second = repo.snapshot_of(private_git, before), repo.snapshot_of(private_git, after)
    return record_diff(private_git, REF, diff_trees(private_git, first, second), "what was done")


def plain(repo: Repo, private_git: PrivateGit, name: str) -> dict[str, str]:
    return {path: text.split(" ", 1)[1] for path, text in repo.listed(private_git, name).items()}


LINES = "".join(f"{number}\n" for number in range(1, 11))


def test_change_is_reverted_and_reapplied_beside_later_edits(repo: Repo) -> None:
    private_git = repo.init().private_git()
    commit = recorded(
        repo,
        private_git,
        {"a": LINES, "other": "x", "moved": LINES * 2},
        {"a": LINES.replace("2\n", "two\n"), "other": "x", "new": "n", "elsewhere": LINES * 2},
    )
    later = {"a": LINES.replace("2\n", "two\n").replace("9\n", "nine\n"), "other": "y"}
    now = repo.snapshot_of(private_git, {**later, "new": "n", "elsewhere": LINES * 2, "mine": "1"})
    undone = revert(private_git, commit, now)
    assert undone.conflicts == ()
    expected = {"a": LINES.replace("9\n", "nine\n"), "other": "y", "moved": LINES * 2, "mine": "1"}
    assert plain(repo, private_git, undone.tree) == expected
    assert reapply(private_git, commit, undone.tree).tree == now


def test_revert_does_not_touch_similar_files(repo: Repo) -> None:
    """The removed file resembles another file of the user, which is no rename of it."""
    private_git = repo.init().private_git()
    before, after = {"a": LINES, "b": LINES + "b\n"}, {"b": LINES + "b\n"}
    commit = recorded(repo, private_git, before, after)
    assert (
        plain(
            repo,
            private_git,
            revert(private_git, commit, repo.snapshot_of(private_git, after)).tree,
        )
        == before
    )
    commit = recorded(repo, private_git, {"a": LINES}, {"a": LINES.replace("2\n", "two\n")})
    now = repo.snapshot_of(private_git, {"mine": LINES.replace("2\n", "two\n")})
    undone = revert(private_git, commit, now)
    assert [side.path for side in undone.conflicts] == ["a"]
    assert plain(repo, private_git, undone.tree)["mine"] == LINES.replace("2\n", "two\n")
    now = repo.snapshot_of(private_git, {"mine": LINES})
    assert plain(repo, private_git, reapply(private_git, commit, now).tree)["mine"] == LINES


def test_file_that_became_a_folder_is_reverted(repo: Repo) -> None:
    private_git = repo.init().private_git()
    before, after = {"d": "1", "z": "1"}, {"d/x": "2", "z": "1"}
    commit = recorded(repo, private_git, before, after)
    undone = revert(private_git, commit, repo.snapshot_of(private_git, after | {"z": "2"}))
    assert plain(repo, private_git, undone.tree) == before | {"z": "2"}
    assert plain(repo, private_git, reapply(private_git, commit, undone.tree).tree) == after | {
        "z": "2"
    }


def test_later_edit_of_the_same_lines_conflicts(repo: Repo) -> None:
    private_git = repo.init().private_git()
    commit = recorded(
        repo, private_git, {"a": "1\n", "b": "1"}, {"a": "2\n", "b": "1", "new": "1\n"}
    )
    now = repo.snapshot_of(private_git, {"a": "3\n", "b": "1", "new": "2\n"})
    assert [side.path for side in revert(private_git, commit, now).conflicts] == ["a", "new"]


def test_recorded_changes_survive_the_users_repository(repo: Repo) -> None:
    repo.init().commit({"a": "1\n", "b": "2\n"})
    private_git = repo.private_git()
    commit = recorded(repo, private_git, {"a": "1\n", "b": "2\n"}, {"a": "changed\n"})
    repo.git("update-ref", "-d", "HEAD")
    repo.git("rm", "-rqf", "--cached", ".")
    repo.git("reflog", "expire", "--expire=now", "--all")
    repo.git("prune", "--expire=now")
    assert plain(repo, private_git, f"{commit}^") == {"a": "1\n", "b": "2\n"}
    assert b"-1\n+changed\n" in unified_diff(private_git, commit)


def test_change_with_a_large_file_is_not_reverted_by_halves(repo: Repo) -> None:
    repo.init()
    with (repo.root / "large").open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    repo.commit({"a": "1"})
    private_git = repo.private_git()
    before = snapshot_user_tree(private_git).tree
    now = repo.snapshot_of(private_git, {"a": "2"})
    commit = record_diff(private_git, REF, diff_trees(private_git, before, now), "x")
    for rewritten in (revert, reapply):
        with pytest.raises(WorkspaceError, match="'large' was too large to be stored"):
            rewritten(private_git, commit, now)
    assert b"-1\n" in unified_diff(private_git, commit)


def test_names_and_contents_of_any_bytes(repo: Repo) -> None:
    private_git = repo.init().private_git()
    files = [
        FileState(os.fsdecode(b"caf\xe9"), 0o100644, b"\0\xff"),
        FileState('qu"o\\te\n', 0o100755, b""),
        FileState("link", 0o120000, b"target"),
        FileState("dir/sp ace", 0o100644, b"done\nget-mark :1\n"),
    ]
    commit = record_files(private_git, REF, [], files, "message\ndone\n")
    assert repo.listed(private_git, commit) == {
        file.path: f"{file.mode:o} {file.data.decode('latin-1')}" for file in files
    }
    assert repo.listed(private_git, f"{commit}^") == {}


@pytest.mark.parametrize("line_end", ["\r\n", "\r", "\x0b", "\x0c", "\x1c", "\x85", "\u2028"])
def test_a_command_with_any_line_end_hides_no_change(repo: Repo, line_end: str) -> None:
    private_git = repo.init().private_git()
    command = f"run touch a{line_end}touch b"
    commit = record_files(private_git, REF, [], [FileState("a", 0o100644, b"")], command)
    (change,) = list_changes(private_git, "r")
    assert (change.commit, change.number) == (commit, 1)
    assert change.title.startswith("run touch a")


def test_same_change_is_the_same_commit(repo: Repo) -> None:
    private_git = repo.init().private_git()
    first = record_files(private_git, REF, [], [FileState("a", 0o100644, b"1")], "x")
    assert record_files(private_git, REF, [], [FileState("a", 0o100644, b"1")], "x") == first
    assert [(one.run_id, one.kind, one.name) for one in list_changes(private_git)] == [
        ("r", "steps", "1")
    ]
    assert list_changes(private_git, "other") == []


def test_a_git_that_was_killed_locks_no_change(repo: Repo) -> None:
    """Its locks stay, and a project with them could not even be opened."""
    private_git = repo.init().private_git()
    undone = REF.replace("steps", "undone")

    def leave_locks() -> None:
        for name in (REF, undone, "packed-refs"):
            lock = Path(private_git.path, f"{name}.lock")
            lock.parent.mkdir(parents=True, exist_ok=True)
            lock.touch()

    leave_locks()
    commit = recorded(repo, private_git, {"a": "1"}, {"a": "2"})
    (change,) = list_changes(private_git)
    assert change.commit == commit
    leave_locks()
    move_refs(private_git, {"steps": "undone"}, [change])
    assert [one.kind for one in list_changes(private_git)] == ["undone"]
    leave_locks()
    delete_ref(private_git, undone)
    assert list_changes(private_git) == []
