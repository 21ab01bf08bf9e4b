"""Three-way merges of commits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from retinue.errors import GitError
from retinue.workspace.merge import merge_trees

if TYPE_CHECKING:
    from tests.conftest import Repo


def test_conflict_names_both_sides(repo: Repo) -> None:
    private_git = repo.init().private_git()
    base = repo.snapshot_of(private_git, {"a": "1\n", "b": "1\n"})
    ours = repo.snapshot_of(private_git, {"a": "2\n", "b": "2\n"})
    theirs = repo.snapshot_of(private_git, {"a": "3\n", "new": "n"})
    merged = merge_trees(private_git, base=base, ours=ours, theirs=theirs)
    sides = {side.path: side for side in merged.conflicts}
    assert sorted(sides) == ["a", "b"]
    assert private_git.run(["cat-file", "blob", sides["a"].ours]) == b"2\n"
    assert private_git.run(["cat-file", "blob", sides["a"].theirs]) == b"3\n"
    assert sides["b"].theirs == ""
    assert "<<<<<<<" in repo.listed(private_git, merged.tree)["a"]


def test_merge_of_an_unknown_commit_is_an_error(repo: Repo) -> None:
    from retinue.workspace.merge import merge

    private_git = repo.init().private_git()
    with pytest.raises(GitError, match="git merge-tree failed"):
        merge(private_git, "nothing", "nobody")
