from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from retinue.errors import GitError, WorkspaceError
from retinue.workspace import snapshot
from retinue.workspace.file_trees import UserFileTree
from retinue.workspace.snapshot import snapshot_user_tree

if TYPE_CHECKING:
    from tests.conftest import Repo


def seen(repo: Repo, directory: Path | None = None) -> dict[str, str]:
    """The snapshot of the user's tree; nothing of theirs may have changed by it."""
    before, files = repo.git_dir(), repo.files()
    private_git = repo.private_git(directory)
    first, second = snapshot_user_tree(private_git), snapshot_user_tree(private_git)
    assert first == second
    assert repo.git_dir() == before
    assert repo.files() == files
    return repo.listed(private_git, first.tree)


def test_what_is_committed_changed_new_and_removed(repo: Repo) -> None:
    repo.init().commit({"same": "1", "changed": "1", "gone": "1", "d/deep": "1"})
    repo.write("changed", "2")
    repo.write("new/file", "3")
    (repo.root / "gone").unlink()
    assert seen(repo) == {
        "same": "100644 1",
        "changed": "100644 2",
        "new/file": "100644 3",
        "d/deep": "100644 1",
    }


def test_before_the_first_commit_and_before_the_first_add(repo: Repo) -> None:
    repo.init().write("a", "1")
    assert seen(repo) == {"a": "100644 1"}
    repo.git("add", "a")
    repo.write("b", "2")
    assert seen(repo) == {"a": "100644 1", "b": "100644 2"}


def test_what_is_ignored_stays_out_and_what_is_tracked_stays_in(repo: Repo) -> None:
    (repo.config / "git").mkdir()
    (repo.config / "git" / "ignore").write_text("*.swp\n")
    repo.init().commit({".gitignore": ".env\nbuild/\n"})
    repo.write(".git/info/exclude", "private\n")
    for path in (".env", "build/x", "private", "a.swp", "sub/.env"):
        repo.write(path, "secret")
    repo.write("build/tracked", "1")
    repo.git("add", "-f", "build/tracked")
    assert seen(repo) == {".gitignore": "100644 .env\nbuild/\n", "build/tracked": "100644 1"}


def test_what_is_only_staged_is_seen_as_it_is_on_disk(repo: Repo) -> None:
    repo.init().commit({"a": "1"})
    repo.write("a", "staged")
    repo.git("add", "a")
    repo.write("a", "on disk")
    repo.write("b", "announced")
    repo.git("add", "-N", "b")
    assert seen(repo) == {"a": "100644 on disk", "b": "100644 announced"}


def test_a_merge_under_way(repo: Repo) -> None:
    repo.init().commit({"a": "1\n", "b": "1\n"})
    repo.git("checkout", "-q", "-b", "other")
    repo.commit({"a": "2\n"})
    repo.git("checkout", "-q", "-")
    repo.commit({"a": "3\n"})
    with pytest.raises(AssertionError):
        repo.git("merge", "other")
    found = seen(repo)
    assert "<<<<<<< HEAD\n3\n" in found["a"]
    assert found["b"] == "100644 1\n"


def test_links_and_programs(repo: Repo) -> None:
    repo.init().commit({"tool": "#!"})
    (repo.root / "tool").chmod(0o755)
    (repo.root / "link").symlink_to("/etc/passwd")
    (repo.root / "folder").symlink_to(".git")
    assert seen(repo) == {
        "tool": "100755 #!",
        "link": "120000 /etc/passwd",
        "folder": "120000 .git",
    }


def test_a_folder_that_became_a_file_and_a_link_that_became_a_folder(repo: Repo) -> None:
    repo.init().commit({"d/x": "1"})
    (repo.root / "link").symlink_to("d")
    repo.commit()
    (repo.root / "link").unlink()
    (repo.root / "d" / "x").unlink()
    (repo.root / "d").rmdir()
    repo.write("d", "file")
    repo.write("link/y", "2")
    assert seen(repo) == {"d": "100644 file", "link/y": "100644 2"}


def test_names_that_are_no_text(repo: Repo) -> None:
    repo.init()
    for name in (b"caf\xe9", b"new\nline", b'quo"te', b"-n", b":(top)x", b"back\\slash", b"*"):
        repo.write(os.fsdecode(name), "x")
    found = {os.fsencode(path) for path in seen(repo)}
    expected = {b"caf\xe9", b"new\nline", b'quo"te', b"-n", b":(top)x", b"back\\slash", b"*"}
    assert found == expected


def test_what_is_no_file_is_left_out(repo: Repo) -> None:
    repo.init().commit({"was_a_file": "1"})
    (repo.root / "was_a_file").unlink()
    os.mkfifo(repo.root / "was_a_file")
    os.mkfifo(repo.root / "pipe")
    private_git = repo.private_git()
    taken = snapshot_user_tree(private_git)
    assert taken.left_out == ("was_a_file",)
    assert repo.listed(private_git, taken.tree) == {"was_a_file": "100644 1"}


def test_large_files_are_left_out(repo: Repo) -> None:
    repo.init().commit({"a": "1"})
    with (repo.root / "huge").open("wb") as file:
        file.truncate(snapshot.MAX_FILE_BYTES + 1)
    private_git = repo.private_git()
    taken = snapshot_user_tree(private_git)
    assert taken.left_out == ("huge",)
    assert repo.listed(private_git, taken.tree) == {"a": "100644 1"}


def test_too_much_that_git_does_not_know(repo: Repo) -> None:
    repo.init()
    for number in range(snapshot.MAX_NEW_BYTES // snapshot.MAX_FILE_BYTES + 1):
        with (repo.root / f"large{number}").open("wb") as file:
            file.truncate(snapshot.MAX_FILE_BYTES)
    with pytest.raises(
        WorkspaceError, match=r"too many files that git does not track .*\.gitignore"
    ):
        snapshot_user_tree(repo.private_git())


def test_repositories_inside(repo: Repo) -> None:
    repo.init().commit({"a": "1"})
    for name in ("empty", "used"):
        inner = repo.root / name
        inner.mkdir()
        repo.git("init", "-q", at=inner)
        (inner / "file").write_text("x")
    repo.git("add", "file", at=repo.root / "used")
    repo.git("commit", "-q", "-m", "x", at=repo.root / "used")
    private_git = repo.private_git()
    taken = snapshot_user_tree(private_git)
    assert taken.nested == ("empty", "used")
    assert repo.listed(private_git, taken.tree) == {"a": "100644 1"}


def test_a_submodule_is_what_the_user_has_committed(repo: Repo, tmp_path: Path) -> None:
    library = tmp_path / "library"
    library.mkdir()
    repo.git("init", "-q", at=library)
    repo.git("commit", "-q", "--allow-empty", "-m", "1", at=library)
    repo.init().git("submodule", "add", "-q", str(library), "lib")
    repo.commit({"a": "1"})
    first = repo.git("rev-parse", "HEAD", at=repo.root / "lib").strip()
    repo.git("commit", "-q", "--allow-empty", "-m", "2", at=repo.root / "lib")
    repo.write("lib/new", "x")
    assert seen(repo)["lib"] == f"160000 {first}"


def test_a_sparse_checkout_has_everything(repo: Repo) -> None:
    repo.init().commit({"in/a": "1", "out/b": "2", "top": "3"})
    repo.git("sparse-checkout", "set", "--cone", "--sparse-index", "in")
    assert not (repo.root / "out").exists()
    repo.write("in/a", "changed")
    assert seen(repo) == {"in/a": "100644 changed", "out/b": "100644 2", "top": "100644 3"}


def test_line_endings_are_converted_as_the_user_has_it(repo: Repo) -> None:
    repo.init().git("config", "core.autocrlf", "true")
    repo.commit({".gitattributes": "*.bat eol=crlf\n*.bin -text\n", "a.txt": "1\r\n2\r\n"})
    repo.write("b.txt", "1\r\n")
    repo.write("c.bat", "1\r\n")
    repo.write("d.bin", "1\r\n")
    found = seen(repo)
    assert (found["a.txt"], found["b.txt"]) == ("100644 1\n2\n", "100644 1\n")
    assert (found["c.bat"], found["d.bin"]) == ("100644 1\n", "100644 1\r\n")


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n"


def test_a_large_file_that_git_has_a_pointer_for(repo: Repo) -> None:
    repo.init().commit({".gitattributes": "*.bin filter=lfs -text\n", "a.bin": POINTER})
    assert seen(repo)["a.bin"] == f"100644 {POINTER}"


def test_files_that_git_was_told_not_to_look_at(repo: Repo) -> None:
    repo.init().commit({"a": "1", "b": "1"})
    repo.git("update-index", "--assume-unchanged", "a")
    repo.write("a", "changed")
    assert seen(repo)["a"] == "100644 changed"


def test_an_index_in_two_parts(repo: Repo) -> None:
    repo.init().commit({"a": "1", "b": "1"})
    repo.git("update-index", "--split-index")
    repo.write("c", "2")
    repo.git("add", "c")
    assert seen(repo) == {"a": "100644 1", "b": "100644 1", "c": "100644 2"}


def test_a_change_in_the_same_moment_as_the_last_look(repo: Repo) -> None:
    repo.init().commit({"a": "1"})
    for number in range(20):
        repo.write("a", f"{number:02}")
        repo.git("add", "a")
        private_git = repo.private_git()
        snapshot_user_tree(private_git)
        repo.write("a", f"{number + 50:02}")
        assert (
            repo.listed(private_git, snapshot_user_tree(private_git).tree)["a"]
            == f"100644 {number + 50:02}"
        )


def test_objects_of_another_kind(repo: Repo) -> None:
    repo.init("--object-format=sha256").commit({"a": "1"})
    repo.write("b", "2")
    assert seen(repo) == {"a": "100644 1", "b": "100644 2"}


def test_a_folder_inside_of_a_repository_is_seen_with_all_around_it(repo: Repo) -> None:
    repo.init().commit({"packages/api/a": "1", "shared/b": "1"})
    assert seen(repo, repo.root / "packages" / "api") == {
        "packages/api/a": "100644 1",
        "shared/b": "100644 1",
    }


def test_a_linked_worktree(repo: Repo) -> None:
    repo.init().commit({"a": "1"})
    linked = repo.root.parent / "linked"
    repo.git("worktree", "add", "-q", str(linked))
    (linked / "b").write_text("2")
    assert seen(repo, linked) == {"a": "100644 1", "b": "100644 2"}


def test_the_same_tree_makes_the_same_commit(repo: Repo) -> None:
    repo.init().commit({"a": "1"})
    private_git = repo.private_git()
    tree = snapshot_user_tree(private_git).tree
    assert private_git.commit(tree, message="x") == private_git.commit(tree, message="x")


def test_without_a_repository(repo: Repo) -> None:
    repo.write("a", "1")
    repo.write("node_modules/x", "1")
    repo.write(".gitignore", "ignored\n")
    repo.write("ignored", "1")
    assert seen(repo) == {"a": "100644 1", ".gitignore": "100644 ignored\n"}
    repo.write("a", "2")
    repo.write("late", "1")
    assert seen(repo)["late"] == "100644 1"
    repo.write(".gitignore", "late\n")
    assert seen(repo) == {
        "a": "100644 2",
        ".gitignore": "100644 late\n",
        "ignored": "100644 1",
    }


def test_a_broken_index_is_an_error_that_says_so(repo: Repo) -> None:
    repo.init().commit({"a": "1"})
    repo.write(".git/index", "nonsense")
    with pytest.raises(GitError, match="index file"):
        snapshot_user_tree(repo.private_git())


async def test_who_looks_again_sees_what_was_written_meanwhile(
    repo: Repo, file_tree_at: Callable[[Path], UserFileTree]
) -> None:
    repo.init().commit({"a": "0"})
    file_tree = file_tree_at(repo.root)
    tree = await file_tree.snapshot(None)
    for number in range(1, 12):
        # As large as before, and as old.
        file = repo.write("a" if number % 2 else "new", str(number % 10))
        os.utime(file, (1, 1))
        before, tree = tree, await file_tree.snapshot(None)
        assert tree != before
        assert await file_tree.snapshot(None) == tree
    (repo.root / "new").unlink()
    assert await file_tree.snapshot(None) != tree
    repo.git("add", "-A")
    assert repo.listed(repo.private_git(), await file_tree.snapshot(None)) == {"a": "100644 1"}
