from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from retinue.errors import GitError, WorkspaceError
from retinue.workspace.changes import changes, contents, described, problems
from retinue.workspace.merge import merge_trees
from retinue.workspace.private_git import Depot
from retinue.workspace.snapshot import MAX_FILE_BYTES, users_tree
from retinue.workspace.steps import Entry, again, keep, kept, patch, store, without

if TYPE_CHECKING:
    from tests.conftest import Repo

REF = "refs/retinue/r/steps/1"


def tree(repo: Repo, depot: Depot, files: dict[str, str]) -> str:
    for path in repo.files():
        (repo.root / path).unlink()
    for path, text in files.items():
        repo.write(path, text)
    return users_tree(depot).tree


def step(repo: Repo, depot: Depot, before: dict[str, str], after: dict[str, str]) -> str:
    first, second = tree(repo, depot, before), tree(repo, depot, after)
    return keep(depot, REF, changes(depot, first, second), "what was done")


def plain(repo: Repo, depot: Depot, name: str) -> dict[str, str]:
    return {path: text.split(" ", 1)[1] for path, text in repo.listed(depot, name).items()}


LINES = "".join(f"{number}\n" for number in range(1, 11))


def test_a_step_is_taken_back_and_made_again_beside_later_edits(repo: Repo) -> None:
    depot = repo.init().depot()
    commit = step(
        repo,
        depot,
        {"a": LINES, "other": "x", "moved": LINES * 2},
        {"a": LINES.replace("2\n", "two\n"), "other": "x", "new": "n", "elsewhere": LINES * 2},
    )
    later = {"a": LINES.replace("2\n", "two\n").replace("9\n", "nine\n"), "other": "y"}
    now = tree(repo, depot, {**later, "new": "n", "elsewhere": LINES * 2, "mine": "1"})
    undone = without(depot, commit, now)
    assert undone.conflicts == ()
    expected = {"a": LINES.replace("9\n", "nine\n"), "other": "y", "moved": LINES * 2, "mine": "1"}
    assert plain(repo, depot, undone.tree) == expected
    assert again(depot, commit, undone.tree).tree == now


def test_a_step_never_touches_files_that_only_look_like_its_own(repo: Repo) -> None:
    """What it removed is like a file of the user's, which was not renamed from it."""
    depot = repo.init().depot()
    before, after = {"a": LINES, "b": LINES + "b\n"}, {"b": LINES + "b\n"}
    commit = step(repo, depot, before, after)
    assert plain(repo, depot, without(depot, commit, tree(repo, depot, after)).tree) == before
    commit = step(repo, depot, {"a": LINES}, {"a": LINES.replace("2\n", "two\n")})
    now = tree(repo, depot, {"mine": LINES.replace("2\n", "two\n")})
    undone = without(depot, commit, now)
    assert [side.path for side in undone.conflicts] == ["a"]
    assert plain(repo, depot, undone.tree)["mine"] == LINES.replace("2\n", "two\n")
    now = tree(repo, depot, {"mine": LINES})
    assert plain(repo, depot, again(depot, commit, now).tree)["mine"] == LINES


def test_a_step_that_made_a_folder_of_a_file_is_taken_back(repo: Repo) -> None:
    depot = repo.init().depot()
    before, after = {"d": "1", "z": "1"}, {"d/x": "2", "z": "1"}
    commit = step(repo, depot, before, after)
    undone = without(depot, commit, tree(repo, depot, after | {"z": "2"}))
    assert plain(repo, depot, undone.tree) == before | {"z": "2"}
    assert plain(repo, depot, again(depot, commit, undone.tree).tree) == after | {"z": "2"}


def test_a_later_edit_of_the_same_lines_is_in_the_way(repo: Repo) -> None:
    depot = repo.init().depot()
    commit = step(repo, depot, {"a": "1\n", "b": "1"}, {"a": "2\n", "b": "1", "new": "1\n"})
    now = tree(repo, depot, {"a": "3\n", "b": "1", "new": "2\n"})
    assert [side.path for side in without(depot, commit, now).conflicts] == ["a", "new"]


def test_what_is_kept_lasts_when_the_users_repository_is_gone(repo: Repo) -> None:
    repo.init().commit({"a": "1\n", "b": "2\n"})
    depot = repo.depot()
    commit = step(repo, depot, {"a": "1\n", "b": "2\n"}, {"a": "changed\n"})
    repo.git("update-ref", "-d", "HEAD")
    repo.git("rm", "-rqf", "--cached", ".")
    repo.git("reflog", "expire", "--expire=now", "--all")
    repo.git("prune", "--expire=now")
    assert plain(repo, depot, f"{commit}^") == {"a": "1\n", "b": "2\n"}
    assert b"-1\n+changed\n" in patch(depot, commit)


def test_a_step_with_a_file_too_large_to_keep_is_not_undone_by_halves(repo: Repo) -> None:
    repo.init()
    with (repo.root / "large").open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    repo.commit({"a": "1"})
    depot = repo.depot()
    before = users_tree(depot).tree
    now = tree(repo, depot, {"a": "2"})
    commit = keep(depot, REF, changes(depot, before, now), "x")
    for rewritten in (without, again):
        with pytest.raises(WorkspaceError, match="'large' was too large to be kept"):
            rewritten(depot, commit, now)
    assert b"-1\n" in patch(depot, commit)


def test_names_and_contents_of_any_bytes(repo: Repo) -> None:
    depot = repo.init().depot()
    files = [
        Entry(os.fsdecode(b"caf\xe9"), 0o100644, b"\0\xff"),
        Entry('qu"o\\te\n', 0o100755, b""),
        Entry("link", 0o120000, b"target"),
        Entry("dir/sp ace", 0o100644, b"done\nget-mark :1\n"),
    ]
    commit = store(depot, REF, [], files, "message\ndone\n")
    assert repo.listed(depot, commit) == {
        file.path: f"{file.mode:o} {file.data.decode('latin-1')}" for file in files
    }
    assert repo.listed(depot, f"{commit}^") == {}


def test_the_same_step_is_the_same_commit(repo: Repo) -> None:
    depot = repo.init().depot()
    first = store(depot, REF, [], [Entry("a", 0o100644, b"1")], "x")
    assert store(depot, REF, [], [Entry("a", 0o100644, b"1")], "x") == first
    assert [(one.run_id, one.kind, one.name) for one in kept(depot)] == [("r", "steps", "1")]
    assert kept(depot, "other") == []


def test_changes_are_told_with_lines_and_hashes(repo: Repo) -> None:
    depot = repo.init().depot()
    before, after = (
        tree(repo, depot, {"a": "1\n2\n", "b": "x"}),
        tree(repo, depot, {"a": "1\n3\n4\n"}),
    )
    found = changes(depot, before, after)
    files = described(found, contents(depot, found))
    assert [str(file) for file in files] == ["a (+2/-1 lines)", "b (-1 line, removed)"]
    assert files[0].before_sha256 != files[0].after_sha256
    assert (files[1].gone, files[1].after_sha256) == (True, None)


def test_what_was_pruned_is_told(repo: Repo) -> None:
    depot = repo.init().depot()
    before, after = tree(repo, depot, {"a": "1"}), tree(repo, depot, {"a": "2"})
    found = changes(depot, before, after)
    blob = found[0].new_id
    os.unlink(os.path.join(depot.path, "objects", blob[:2], blob[2:]))
    with pytest.raises(GitError, match=f"{blob} is gone: the repository that had it was pruned"):
        contents(depot, found)


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
    depot = repo.init().depot()
    commit = store(depot, REF, [], [Entry(name, 0o120000, target.encode())], "x")
    found = changes(depot, f"{commit}^", commit)
    assert problems(found, contents(depot, found)) == ([] if problem is None else [problem])


def test_repositories_may_not_be_integrated(repo: Repo) -> None:
    depot = repo.init().depot()
    entry = b"160000 commit 1111111111111111111111111111111111111111\tsub\n"
    after = depot.ask(["mktree", "--missing"], stdin=entry).decode().strip()
    before = depot.ask(["mktree"], stdin=b"").decode().strip()
    found = changes(depot, before, after)
    assert problems(found, contents(depot, found)) == [
        "'sub' is a repository inside the repository"
    ]


def test_a_merge_names_both_sides(repo: Repo) -> None:
    depot = repo.init().depot()
    base = tree(repo, depot, {"a": "1\n", "b": "1\n"})
    ours = tree(repo, depot, {"a": "2\n", "b": "2\n"})
    theirs = tree(repo, depot, {"a": "3\n", "new": "n"})
    merged = merge_trees(depot, base=base, ours=ours, theirs=theirs)
    sides = {side.path: side for side in merged.conflicts}
    assert sorted(sides) == ["a", "b"]
    assert depot.ask(["cat-file", "blob", sides["a"].ours]) == b"2\n"
    assert depot.ask(["cat-file", "blob", sides["a"].theirs]) == b"3\n"
    assert sides["b"].theirs == ""
    assert "<<<<<<<" in plain(repo, depot, merged.tree)["a"]


def test_a_merge_that_cannot_be_made(repo: Repo) -> None:
    from retinue.workspace.merge import merge

    depot = repo.init().depot()
    with pytest.raises(GitError, match="git merge-tree failed"):
        merge(depot, "nothing", "nobody")
