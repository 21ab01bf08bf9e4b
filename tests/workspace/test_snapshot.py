from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from retinue.errors import GitError, WorkspaceError
from retinue.workspace import snapshot
from retinue.workspace.snapshot import snapshot_user_tree
from retinue.workspace.user_file_tree import UserFileTree

if TYPE_CHECKING:
    from tests.conftest import Repo


def seen(repo: Repo, directory: Path | None = None) -> dict[str, str]:
    """The snapshot of the user's tree; taking it must not change the user's repository."""
    before, files = repo.git_dir(), repo.files()
    private_git = repo.private_git(directory)
    first, second = snapshot_user_tree(private_git), snapshot_user_tree(private_git)
    assert first == second
    assert repo.git_dir() == before
    assert repo.files() == files
    return repo.listed(private_git, first.tree)


def test_committed_changed_new_and_removed_files(repo: Repo) -> None:
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


def test_ignored_files_stay_out_and_tracked_files_stay_in(repo: Repo) -> None:
    (repo.config / "git").mkdir()
    (repo.config / "git" / "ignore").write_text("*.swp\n")
    repo.init().commit({".gitignore": ".env\nbuild/\n"})
    repo.write(".git/info/exclude", "private\n")
    for path in (".env", "build/x", "private", "a.swp", "sub/.env"):
        repo.write(path, "secret")
    repo.write("build/tracked", "1")
    repo.git("add", "-f", "build/tracked")
    assert seen(repo) == {".gitignore": "100644 .env\nbuild/\n", "build/tracked": "100644 1"}


def test_staged_files_are_taken_from_disk(repo: Repo) -> None:
    repo.init().commit({"a": "1"})
    repo.write("a", "staged")
    repo.git("add", "a")
    repo.write("a", "on disk")
    repo.write("b", "announced")
    repo.git("add", "-N", "b")
    assert seen(repo) == {"a": "100644 on disk", "b": "100644 announced"}


def test_unfinished_merge(repo: Repo) -> None:
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


def test_links_and_executables(repo: Repo) -> None:
    repo.init().commit({"tool": "#!"})
    (repo.root / "tool").chmod(0o755)
    (repo.root / "link").symlink_to("/etc/passwd")
    (repo.root / "folder").symlink_to(".git")
    assert seen(repo) == {
        "tool": "100755 #!",
        "link": "120000 /etc/passwd",
        "folder": "120000 .git",
    }


def test_folder_that_became_a_file_and_link_that_became_a_folder(repo: Repo) -> None:
    repo.init().commit({"d/x": "1"})
    (repo.root / "link").symlink_to("d")
    repo.commit()
    (repo.root / "link").unlink()
    (repo.root / "d" / "x").unlink()
    (repo.root / "d").rmdir()
    repo.write("d", "file")
    repo.write("link/y", "2")
    assert seen(repo) == {"d": "100644 file", "link/y": "100644 2"}


@pytest.mark.parametrize("ignored", [False, True])
@pytest.mark.parametrize("has_same_name", [False, True])
def test_folder_that_became_a_link_to_a_folder(
    repo: Repo, has_same_name: bool, ignored: bool
) -> None:
    patterns = "d\n" if ignored else ""
    repo.init().commit({"d/sub/x": "1", "e/y": "2", ".gitignore": "old\n"})
    repo.write("e/sub/x" if has_same_name else "e/z", "3")
    repo.write(".gitignore", patterns)
    (repo.root / "d" / "sub" / "x").unlink()
    (repo.root / "d" / "sub").rmdir()
    (repo.root / "d").rmdir()
    (repo.root / "d").symlink_to("e")
    assert seen(repo) == {
        ".gitignore": f"100644 {patterns}",
        "e/y": "100644 2",
        ("e/sub/x" if has_same_name else "e/z"): "100644 3",
        **({} if ignored else {"d": "120000 e"}),
    }


def test_names_that_are_not_utf8(repo: Repo) -> None:
    repo.init()
    for name in (b"caf\xe9", b"new\nline", b'quo"te', b"-n", b":(top)x", b"back\\slash", b"*"):
        repo.write(os.fsdecode(name), "x")
    found = {os.fsencode(path) for path in seen(repo)}
    expected = {b"caf\xe9", b"new\nline", b'quo"te', b"-n", b":(top)x", b"back\\slash", b"*"}
    assert found == expected


def test_special_files_are_left_out(repo: Repo) -> None:
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


def test_too_many_untracked_files_are_an_error(repo: Repo) -> None:
    repo.init()
    for number in range(snapshot.MAX_NEW_BYTES // snapshot.MAX_FILE_BYTES + 1):
        with (repo.root / f"large{number}").open("wb") as file:
            file.truncate(snapshot.MAX_FILE_BYTES)
    with pytest.raises(
        WorkspaceError, match=r"too many files that git does not track .*\.gitignore"
    ):
        snapshot_user_tree(repo.private_git())


def test_nested_repositories_are_left_out(repo: Repo) -> None:
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


def test_submodule_stays_at_the_committed_state(repo: Repo, tmp_path: Path) -> None:
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


def test_sparse_checkout_has_everything(repo: Repo) -> None:
    repo.init().commit({"in/a": "1", "out/b": "2", "top": "3"})
    repo.git("sparse-checkout", "set", "--cone", "--sparse-index", "in")
    assert not (repo.root / "out").exists()
    repo.write("in/a", "changed")
    assert seen(repo) == {"in/a": "100644 changed", "out/b": "100644 2", "top": "100644 3"}


def test_line_endings_are_converted_by_the_users_settings(repo: Repo) -> None:
    repo.init().git("config", "core.autocrlf", "true")
    repo.commit({".gitattributes": "*.bat eol=crlf\n*.bin -text\n", "a.txt": "1\r\n2\r\n"})
    repo.write("b.txt", "1\r\n")
    repo.write("c.bat", "1\r\n")
    repo.write("d.bin", "1\r\n")
    found = seen(repo)
    assert (found["a.txt"], found["b.txt"]) == ("100644 1\n2\n", "100644 1\n")
    assert (found["c.bat"], found["d.bin"]) == ("100644 1\n", "100644 1\r\n")


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n"


def test_pointer_files_of_large_files(repo: Repo) -> None:
    repo.init().commit({".gitattributes": "*.bin filter=lfs -text\n", "a.bin": POINTER})
    assert seen(repo)["a.bin"] == f"100644 {POINTER}"


def test_files_marked_assume_unchanged(repo: Repo) -> None:
    repo.init().commit({"a": "1", "b": "1"})
    repo.git("update-index", "--assume-unchanged", "a")
    repo.write("a", "changed")
    assert seen(repo)["a"] == "100644 changed"


def test_split_index(repo: Repo) -> None:
    repo.init().commit({"a": "1", "b": "1"})
    repo.git("update-index", "--split-index")
    repo.write("c", "2")
    repo.git("add", "c")
    assert seen(repo) == {"a": "100644 1", "b": "100644 1", "c": "100644 2"}


def test_change_in_the_same_tick_is_seen(repo: Repo) -> None:
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


def test_sha256_objects(repo: Repo) -> None:
    repo.init("--object-format=sha256").commit({"a": "1"})
    repo.write("b", "2")
    assert seen(repo) == {"a": "100644 1", "b": "100644 2"}


def test_snapshot_of_a_subfolder_has_the_whole_repository(repo: Repo) -> None:
    repo.init().commit({"packages/api/a": "1", "shared/b": "1"})
    assert seen(repo, repo.root / "packages" / "api") == {
        "packages/api/a": "100644 1",
        "shared/b": "100644 1",
    }


def test_linked_worktree(repo: Repo) -> None:
    repo.init().commit({"a": "1"})
    linked = repo.root.parent / "linked"
    repo.git("worktree", "add", "-q", str(linked))
    (linked / "b").write_text("2")
    assert seen(repo, linked) == {"a": "100644 1", "b": "100644 2"}


def test_same_tree_makes_the_same_commit(repo: Repo) -> None:
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


def test_broken_index_is_an_error(repo: Repo) -> None:
    repo.init().commit({"a": "1"})
    repo.write(".git/index", "nonsense")
    with pytest.raises(GitError, match="index file"):
        snapshot_user_tree(repo.private_git())


async def test_later_snapshots_see_later_writes(
    repo: Repo, file_tree_at: Callable[[Path], UserFileTree]
) -> None:
    repo.init().commit({"a": "0"})
    file_tree = file_tree_at(repo.root)
    tree = await file_tree.snapshot(None)
    for number in range(1, 12):
        # The same size and modification time as before.
        file = repo.write("a" if number % 2 else "new", str(number % 10))
        os.utime(file, (1, 1))
        before, tree = tree, await file_tree.snapshot(None)
        assert tree != before
        assert await file_tree.snapshot(None) == tree
    (repo.root / "new").unlink()
    assert await file_tree.snapshot(None) != tree
    repo.git("add", "-A")
    assert repo.listed(repo.private_git(), await file_tree.snapshot(None)) == {"a": "100644 1"}
