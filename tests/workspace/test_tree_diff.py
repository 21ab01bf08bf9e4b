"""Differences between trees: what is reported, and what may not be applied."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from retinue.errors import GitError
from retinue.workspace.recorded_changes import (
    FileState,
    record_files,
)
from retinue.workspace.tree_diff import describe_changes, diff_trees, find_problems, read_blobs

if TYPE_CHECKING:
    from tests.conftest import Repo


def test_changes_are_described_with_lines_and_hashes(repo: Repo) -> None:
    private_git = repo.init().private_git()
    before, after = (
        repo.snapshot_of(private_git, {"a": "1\n2\n", "b": "x"}),
        repo.snapshot_of(private_git, {"a": "1\n3\n4\n"}),
    )
    found = diff_trees(private_git, before, after)
    files = describe_changes(found, read_blobs(private_git, found))
    assert [str(file) for file in files] == ["a (+2/-1 lines)", "b (-1 line, removed)"]
    assert files[0].before_sha256 != files[0].after_sha256
    assert (files[1].gone, files[1].after_sha256) == (True, None)


def test_pruned_object_is_an_error(repo: Repo) -> None:
    private_git = repo.init().private_git()
    before, after = (
        repo.snapshot_of(private_git, {"a": "1"}),
        repo.snapshot_of(private_git, {"a": "2"}),
    )
    found = diff_trees(private_git, before, after)
    blob = found[0].new_id
    os.unlink(os.path.join(private_git.path, "objects", blob[:2], blob[2:]))
    with pytest.raises(GitError, match=f"{blob} is gone: your repository was pruned"):
        read_blobs(private_git, found)


def test_damaged_object_is_an_error(repo: Repo) -> None:
    private_git = repo.init().private_git()
    before, after = (
        repo.snapshot_of(private_git, {"a": "1"}),
        repo.snapshot_of(private_git, {"a": "2", "b": "3" * 100}),
    )
    found = diff_trees(private_git, before, after)
    blob = found[0].new_id
    path = os.path.join(private_git.path, "objects", blob[:2], blob[2:])
    os.chmod(path, 0o600)
    os.truncate(path, 1)
    with pytest.raises(GitError, match=blob):
        read_blobs(private_git, found)


def test_contents_of_large_files_are_not_read(repo: Repo) -> None:
    private_git = repo.init().private_git()
    before, after = (
        repo.snapshot_of(private_git, {}),
        repo.snapshot_of(private_git, {"a": "1" * 11, "b": "\n2\n", "c": ""}),
    )
    found = diff_trees(private_git, before, after)
    assert sorted(read_blobs(private_git, found, max_bytes=10).values()) == [b"", b"\n2\n"]


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
def test_links_that_leave_the_project_are_problems(
    repo: Repo, name: str, target: str, problem: str | None
) -> None:
    private_git = repo.init().private_git()
    commit = record_files(
        private_git, "refs/retinue/r/steps/1", [], [FileState(name, 0o120000, target.encode())], "x"
    )
    found = diff_trees(private_git, f"{commit}^", commit)
    assert find_problems(found, read_blobs(private_git, found)) == (
        [] if problem is None else [problem]
    )


def test_nested_repositories_are_problems(repo: Repo) -> None:
    private_git = repo.init().private_git()
    entry = b"160000 commit 1111111111111111111111111111111111111111\tsub\n"
    after = private_git.run(["mktree", "--missing"], stdin=entry).decode().strip()
    before = private_git.run(["mktree"], stdin=b"").decode().strip()
    found = diff_trees(private_git, before, after)
    assert find_problems(found, read_blobs(private_git, found)) == [
        "'sub' is a repository inside the repository"
    ]
