from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from retinue.errors import GitError, WorkspaceError
from retinue.workspace.merge import merge_trees
from retinue.workspace.private_git import PrivateGit
from retinue.workspace.recorded_changes import (
    FileState,
    list_changes,
    reapply,
    record_diff,
    record_files,
    revert,
    unified_diff,
)
from retinue.workspace.snapshot import MAX_FILE_BYTES, snapshot_user_tree
from retinue.workspace.tree_diff import describe_changes, diff_trees, find_problems, read_blobs

if TYPE_CHECKING:
    from tests.conftest import Repo

REF = "refs/retinue/r/steps/1"


def tree(repo: Repo, private_git: PrivateGit, files: dict[str, str]) -> str:
    for path in repo.files():
        (repo.root / path).unlink()
    for path, text in files.items():
        repo.write(path, text)
    return snapshot_user_tree(private_git).tree


def step(repo: Repo, private_git: PrivateGit, before: dict[str, str], after: dict[str, str]) -> str:
    first, second = tree(repo, private_git, before), tree(repo, private_git, after)
    return record_diff(private_git, REF, diff_trees(private_git, first, second), "what was done")


def plain(repo: Repo, private_git: PrivateGit, name: str) -> dict[str, str]:
    return {path: text.split(" ", 1)[1] for path, text in repo.listed(private_git, name).items()}


LINES = "".join(f"{number}\n" for number in range(1, 11))


def test_a_step_is_taken_back_and_made_again_beside_later_edits(repo: Repo) -> None:
    private_git = repo.init().private_git()
    commit = step(
        repo,
        private_git,
        {"a": LINES, "other": "x", "moved": LINES * 2},
        {"a": LINES.replace("2\n", "two\n"), "other": "x", "new": "n", "elsewhere": LINES * 2},
    )
    later = {"a": LINES.replace("2\n", "two\n").replace("9\n", "nine\n"), "other": "y"}
    now = tree(repo, private_git, {**later, "new": "n", "elsewhere": LINES * 2, "mine": "1"})
    undone = revert(private_git, commit, now)
    assert undone.conflicts == ()
    expected = {"a": LINES.replace("9\n", "nine\n"), "other": "y", "moved": LINES * 2, "mine": "1"}
    assert plain(repo, private_git, undone.tree) == expected
    assert reapply(private_git, commit, undone.tree).tree == now


def test_a_step_never_touches_files_that_only_look_like_its_own(repo: Repo) -> None:
    """What it removed is like a file of the user's, which was not renamed from it."""
    private_git = repo.init().private_git()
    before, after = {"a": LINES, "b": LINES + "b\n"}, {"b": LINES + "b\n"}
    commit = step(repo, private_git, before, after)
    assert (
        plain(repo, private_git, revert(private_git, commit, tree(repo, private_git, after)).tree)
        == before
    )
    commit = step(repo, private_git, {"a": LINES}, {"a": LINES.replace("2\n", "two\n")})
    now = tree(repo, private_git, {"mine": LINES.replace("2\n", "two\n")})
    undone = revert(private_git, commit, now)
    assert [side.path for side in undone.conflicts] == ["a"]
    assert plain(repo, private_git, undone.tree)["mine"] == LINES.replace("2\n", "two\n")
    now = tree(repo, private_git, {"mine": LINES})
    assert plain(repo, private_git, reapply(private_git, commit, now).tree)["mine"] == LINES


def test_a_step_that_made_a_folder_of_a_file_is_taken_back(repo: Repo) -> None:
    private_git = repo.init().private_git()
    before, after = {"d": "1", "z": "1"}, {"d/x": "2", "z": "1"}
    commit = step(repo, private_git, before, after)
    undone = revert(private_git, commit, tree(repo, private_git, after | {"z": "2"}))
    assert plain(repo, private_git, undone.tree) == before | {"z": "2"}
    assert plain(repo, private_git, reapply(private_git, commit, undone.tree).tree) == after | {
        "z": "2"
    }


def test_a_later_edit_of_the_same_lines_is_in_the_way(repo: Repo) -> None:
    private_git = repo.init().private_git()
    commit = step(repo, private_git, {"a": "1\n", "b": "1"}, {"a": "2\n", "b": "1", "new": "1\n"})
    now = tree(repo, private_git, {"a": "3\n", "b": "1", "new": "2\n"})
    assert [side.path for side in revert(private_git, commit, now).conflicts] == ["a", "new"]


def test_what_is_kept_lasts_when_the_users_repository_is_gone(repo: Repo) -> None:
    repo.init().commit({"a": "1\n", "b": "2\n"})
    private_git = repo.private_git()
    commit = step(repo, private_git, {"a": "1\n", "b": "2\n"}, {"a": "changed\n"})
    repo.git("update-ref", "-d", "HEAD")
    repo.git("rm", "-rqf", "--cached", ".")
    repo.git("reflog", "expire", "--expire=now", "--all")
    repo.git("prune", "--expire=now")
    assert plain(repo, private_git, f"{commit}^") == {"a": "1\n", "b": "2\n"}
    assert b"-1\n+changed\n" in unified_diff(private_git, commit)


def test_a_step_with_a_file_too_large_to_keep_is_not_undone_by_halves(repo: Repo) -> None:
    repo.init()
    with (repo.root / "large").open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    repo.commit({"a": "1"})
    private_git = repo.private_git()
    before = snapshot_user_tree(private_git).tree
    now = tree(repo, private_git, {"a": "2"})
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


def test_the_same_step_is_the_same_commit(repo: Repo) -> None:
    private_git = repo.init().private_git()
    first = record_files(private_git, REF, [], [FileState("a", 0o100644, b"1")], "x")
    assert record_files(private_git, REF, [], [FileState("a", 0o100644, b"1")], "x") == first
    assert [(one.run_id, one.kind, one.name) for one in list_changes(private_git)] == [
        ("r", "steps", "1")
    ]
    assert list_changes(private_git, "other") == []


def test_changes_are_told_with_lines_and_hashes(repo: Repo) -> None:
    private_git = repo.init().private_git()
    before, after = (
        tree(repo, private_git, {"a": "1\n2\n", "b": "x"}),
        tree(repo, private_git, {"a": "1\n3\n4\n"}),
    )
    found = diff_trees(private_git, before, after)
    files = describe_changes(found, read_blobs(private_git, found))
    assert [str(file) for file in files] == ["a (+2/-1 lines)", "b (-1 line, removed)"]
    assert files[0].before_sha256 != files[0].after_sha256
    assert (files[1].gone, files[1].after_sha256) == (True, None)


def test_what_was_pruned_is_told(repo: Repo) -> None:
    private_git = repo.init().private_git()
    before, after = tree(repo, private_git, {"a": "1"}), tree(repo, private_git, {"a": "2"})
    found = diff_trees(private_git, before, after)
    blob = found[0].new_id
    os.unlink(os.path.join(private_git.path, "objects", blob[:2], blob[2:]))
    with pytest.raises(GitError, match=f"{blob} is gone: your repository was pruned"):
        read_blobs(private_git, found)


@pytest.mark.parametrize(
    ("name", "target", "problem"),
    [
        ("a", "b", None),
        ("d/a", "../b", None),
        ("d/a", "../../b", "'d/a' is a link that leaves the project, to '../../b'"),
        ("a", "/etc/passwd", "'a' is a link to an absolute path, '/etc/passwd'"),
        ("a", "x/../../b", "'a' is a link that leaves the project, to 'x/../../b'"),
        ("a", ".git/hooks", "'a' is a link into '.git'"),
        ("d/.RETINUE/x", "b", "'d/.RETINUE/x' is off limits: it is in '.RETINUE'"),
    ],
)
def test_links_that_may_not_be_integrated(
    repo: Repo, name: str, target: str, problem: str | None
) -> None:
    private_git = repo.init().private_git()
    commit = record_files(private_git, REF, [], [FileState(name, 0o120000, target.encode())], "x")
    found = diff_trees(private_git, f"{commit}^", commit)
    assert find_problems(found, read_blobs(private_git, found)) == (
        [] if problem is None else [problem]
    )


def test_repositories_may_not_be_integrated(repo: Repo) -> None:
    private_git = repo.init().private_git()
    entry = b"160000 commit 1111111111111111111111111111111111111111\tsub\n"
    after = private_git.run(["mktree", "--missing"], stdin=entry).decode().strip()
    before = private_git.run(["mktree"], stdin=b"").decode().strip()
    found = diff_trees(private_git, before, after)
    assert find_problems(found, read_blobs(private_git, found)) == [
        "'sub' is a repository inside the repository"
    ]


def test_a_merge_names_both_sides(repo: Repo) -> None:
    private_git = repo.init().private_git()
    base = tree(repo, private_git, {"a": "1\n", "b": "1\n"})
    ours = tree(repo, private_git, {"a": "2\n", "b": "2\n"})
    theirs = tree(repo, private_git, {"a": "3\n", "new": "n"})
    merged = merge_trees(private_git, base=base, ours=ours, theirs=theirs)
    sides = {side.path: side for side in merged.conflicts}
    assert sorted(sides) == ["a", "b"]
    assert private_git.run(["cat-file", "blob", sides["a"].ours]) == b"2\n"
    assert private_git.run(["cat-file", "blob", sides["a"].theirs]) == b"3\n"
    assert sides["b"].theirs == ""
    assert "<<<<<<<" in plain(repo, private_git, merged.tree)["a"]


def test_a_merge_that_cannot_be_made(repo: Repo) -> None:
    from retinue.workspace.merge import merge

    private_git = repo.init().private_git()
    with pytest.raises(GitError, match="git merge-tree failed"):
        merge(private_git, "nothing", "nobody")
