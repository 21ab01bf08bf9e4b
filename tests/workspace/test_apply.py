"""Changes are applied as a whole or not at all, and no concurrent edit is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from retinue.errors import WorkspaceError
from retinue.workspace.apply import ApplyRefused, apply, recover_interrupted
from retinue.workspace.private_git import PrivateGit
from retinue.workspace.recorded_changes import list_changes
from retinue.workspace.snapshot import snapshot_user_tree
from retinue.workspace.tree_diff import DiffEntry, diff_trees

if TYPE_CHECKING:
    from tests.conftest import Repo


def rewrite(repo: Repo, files: dict[str, str]) -> None:
    """Make these the only files of the work tree."""
    for path in repo.files():
        (repo.root / path).unlink()
    for folder, folders, _ in os.walk(repo.root, topdown=False):
        for name in folders:
            inner = Path(folder, name)
            if ".git" not in inner.parts and ".retinue" not in inner.parts:
                inner.rmdir()
    for path, text in files.items():
        repo.write(path, text)


def difference(
    repo: Repo, private_git: PrivateGit, before: dict[str, str], after: dict[str, str]
) -> list[DiffEntry]:
    """The difference between two states. The files are left in the first."""
    rewrite(repo, after)
    wanted = snapshot_user_tree(private_git).tree
    rewrite(repo, before)
    return diff_trees(private_git, snapshot_user_tree(private_git).tree, wanted)


def bring(
    repo: Repo, private_git: PrivateGit, changed: list[DiffEntry], ref: str | None = None
) -> None:
    apply(
        private_git,
        str(repo.root),
        changed,
        staging_parent=os.path.join(private_git.path, "tmp"),
        ref=ref,
    )


BEFORE = {"a": "1", "b/c": "1", "b/d": "1", "gone/deep/x": "1", "f": "1"}
AFTER = {"a": "2", "b/c": "1", "b/d": "2", "new/deep/y": "2", "f/now/a/folder": "2"}


def test_files_are_added_changed_moved_and_removed(repo: Repo) -> None:
    repo.init()
    private_git = repo.private_git()
    changed = difference(repo, private_git, BEFORE, AFTER)
    bring(repo, private_git, changed)
    assert {path: text.split(" ", 1)[1] for path, text in repo.files().items()} == AFTER
    assert not (repo.root / "gone").exists()
    assert os.listdir(os.path.join(private_git.path, "tmp")) == []


def test_folder_becomes_a_file(repo: Repo) -> None:
    repo.init()
    private_git = repo.private_git()
    changed = difference(repo, private_git, {"d/x": "1", "d/e/y": "1"}, {"d": "file"})
    bring(repo, private_git, changed)
    assert (repo.root / "d").read_text() == "file"


def test_rights_and_links(repo: Repo) -> None:
    repo.init()
    private_git = repo.private_git()
    rewrite(repo, {"tool": "1", "private": "2", "l": "x"})
    (repo.root / "tool").chmod(0o755)
    (repo.root / "l").unlink()
    (repo.root / "l").symlink_to("tool")
    wanted = snapshot_user_tree(private_git).tree
    (repo.root / "l").unlink()
    rewrite(repo, {"tool": "1", "private": "1", "l": "x"})
    (repo.root / "private").chmod(0o600)
    bring(repo, private_git, diff_trees(private_git, snapshot_user_tree(private_git).tree, wanted))
    assert (repo.root / "tool").stat().st_mode & 0o777 == 0o755
    assert (repo.root / "private").stat().st_mode & 0o777 == 0o600
    assert (repo.root / "private").read_text() == "2"
    assert os.readlink(repo.root / "l") == "tool"


def test_line_endings_are_written_as_the_user_has_them(repo: Repo) -> None:
    repo.init().git("config", "core.autocrlf", "true")
    repo.write(".gitattributes", "*.bat eol=crlf\n")
    private_git = repo.private_git()
    changed = difference(
        repo,
        private_git,
        {".gitattributes": "*.bat eol=crlf\n", "a.txt": "1\r\n", "b.bat": "1\n"},
        {".gitattributes": "*.bat eol=crlf\n", "a.txt": "2\r\n", "b.bat": "2\n"},
    )
    bring(repo, private_git, changed)
    assert (repo.root / "a.txt").read_bytes() == b"2\r\n"
    assert (repo.root / "b.bat").read_bytes() == b"2\r\n"


def refused(repo: Repo, private_git: PrivateGit, changed: list[DiffEntry]) -> str:
    """Why a change was refused; the files must be as before."""
    before = repo.files()
    with pytest.raises(ApplyRefused) as refusal:
        bring(repo, private_git, changed, "refs/retinue/r/steps/1")
    assert repo.files() == before
    assert os.listdir(os.path.join(private_git.path, "tmp")) == []
    assert list_changes(private_git) == []
    return str(refusal.value)


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        (lambda root: (root / "f").write_text("mine"), "'f' was changed meanwhile"),
        (lambda root: (root / "gone/deep/x").write_text("mine"), "'gone/deep/x' was changed"),
        (lambda root: (root / "b/d").unlink(), "'b/d' was removed meanwhile"),
        (
            lambda root: ((root / "b/d").unlink(), (root / "b/d").mkdir()),
            "'b/d' has become a folder",
        ),
        (
            lambda root: ((root / "b/d").unlink(), (root / "b/d").symlink_to("c")),
            "'b/d' was changed meanwhile",
        ),
        (
            lambda root: ((root / "b").rename(root / "moved"), (root / "b").symlink_to("moved")),
            "'b/d' is behind a link",
        ),
        (
            lambda root: (root / "new").write_text("mine"),
            "'new/deep/y' is behind a link or a file",
        ),
        (lambda root: (root / "new").symlink_to("/tmp"), "'new/deep/y' is behind a link"),
    ],
)
def test_concurrent_edit_refuses_the_whole_change(repo: Repo, edit: object, why: str) -> None:
    repo.init()
    private_git = repo.private_git()
    changed = difference(repo, private_git, BEFORE, AFTER)
    assert callable(edit)
    edit(repo.root)
    assert refused(repo, private_git, changed).startswith(why)


def test_ignored_file_is_not_overwritten(repo: Repo) -> None:
    repo.init()
    private_git = repo.private_git()
    changed = difference(repo, private_git, {"a": "1"}, {"a": "2", ".env": "made up"})
    repo.write(".gitignore", ".env\n")
    repo.write(".env", "KEY=1")
    assert refused(repo, private_git, changed) == (
        "'.env' exists already, and was not part of the snapshot"
    )


def test_folder_with_an_ignored_file_is_not_replaced(repo: Repo) -> None:
    repo.init()
    private_git = repo.private_git()
    changed = difference(repo, private_git, {"d/x": "1"}, {"d": "2"})
    repo.write(".gitignore", "cache\n")
    repo.write("d/cache", "x")
    assert refused(repo, private_git, changed).startswith("'d' exists already")


@pytest.mark.skipif(os.geteuid() == 0, reason="root can write everything")
def test_read_only_folder_is_refused(repo: Repo) -> None:
    repo.init()
    private_git = repo.private_git()
    changed = difference(repo, private_git, BEFORE, AFTER)
    before = repo.files()
    (repo.root / "b").chmod(0o500)
    try:
        with pytest.raises(WorkspaceError, match="'b/d' cannot be written"):
            bring(repo, private_git, changed)
        assert repo.files() == before
    finally:
        (repo.root / "b").chmod(0o700)


def test_file_that_is_written_all_the_time_loses_no_line(repo: Repo) -> None:
    """An editor saves by renaming, as fast as it can, while changes are applied."""
    repo.init()
    private_git = repo.private_git()
    there = difference(repo, private_git, {"a": "1", "b": "1"}, {"a": "2", "b": "2"})
    back = difference(repo, private_git, {"a": "2", "b": "2"}, {"a": "1", "b": "1"})
    rewrite(repo, {"a": "1", "b": "1"})
    saved: list[str] = []
    stop = threading.Event()

    def edit() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            temporary = repo.root.parent / "saving"
            temporary.write_text(f"edit {number}")
            temporary.rename(repo.root / "b")
            saved.append(f"edit {number}")

    editor = threading.Thread(target=edit)
    outcomes = set()
    for step in range(40):
        if step == 5:
            editor.start()
        try:
            bring(repo, private_git, (there, back)[step % 2])
            outcomes.add("done")
        except ApplyRefused:
            outcomes.add("refused")
            # The whole change was refused: `a` is not ahead of `b`.
            assert (repo.root / "a").read_text() == "2"
    stop.set()
    editor.join()
    assert outcomes == {"done", "refused"}
    assert (repo.root / "b").read_text() == saved[-1]


def test_file_that_cannot_be_put_back_is_rescued(repo: Repo) -> None:
    """A program appends as fast as it can; while the file is moved aside, it makes another."""
    repo.init()
    private_git = repo.private_git()
    changed = difference(repo, private_git, {"d/b": "1\n"}, {"d/b": "2\n"})
    lines: list[str] = []
    stop = threading.Event()

    def edit() -> None:
        while not stop.is_set():
            with (repo.root / "d" / "b").open("a") as file:
                file.write(f"edit {len(lines)}\n")
            lines.append(f"edit {len(lines)}")

    editor = threading.Thread(target=edit)
    editor.start()
    while not lines:
        pass
    told = ""
    while "could not be put back" not in told:
        with pytest.raises(ApplyRefused) as refusal:
            bring(repo, private_git, changed)
        told = str(refusal.value)
    stop.set()
    editor.join()
    (folder,) = (repo.root / ".retinue" / "rescued").iterdir()
    assert told == (
        f"'d/b' was changed meanwhile; files that could not be put back are in {folder}"
    )
    saved = (folder / "d" / "b").read_text() + (repo.root / "d" / "b").read_text()
    assert sorted(saved.splitlines()) == sorted(["1", *lines])
    assert os.listdir(os.path.join(private_git.path, "tmp")) == []


def test_unwritable_staging_folder_is_an_error(repo: Repo, tmp_path: Path) -> None:
    repo.init()
    private_git = repo.private_git()
    changed = difference(repo, private_git, {"a": "1"}, {"a": "2"})
    beside = tmp_path / "nowhere"
    with pytest.raises(WorkspaceError, match=f"{beside} cannot be written"):
        apply(private_git, str(repo.root), changed, staging_parent=str(beside))


KILLED = """
import sys
from retinue.workspace.apply import apply
from retinue.workspace.tree_diff import diff_trees
from retinue.workspace.private_git import PrivateGit
from retinue.workspace.user_repository import find_user_repository
root, before, after = sys.argv[1:]
user_repository = find_user_repository(root, home="/", config_home="/")
git = PrivateGit(root + "/.retinue/git", user_repository, seal=str)
changed = diff_trees(git, before, after)
print("ready", flush=True)
sys.stdin.readline()
apply(git, root, changed, staging_parent=git.path + "/tmp", ref="refs/retinue/r/steps/1")
print("done", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("moved", "elsewhere"), [(500, False), (1999, False), (500, True)])
def test_interrupted_change_is_put_back(repo: Repo, moved: int, elsewhere: bool) -> None:
    repo.init()
    private_git = repo.private_git()
    before = {f"d{i}/{j}": f"{i}{j}" for i in range(10) for j in range(200)}
    after = {f"e{p}" if p.endswith("0") else p: f"new {text}" for p, text in before.items()}
    rewrite(repo, after)
    wanted = snapshot_user_tree(private_git).tree
    rewrite(repo, before)
    start = snapshot_user_tree(private_git).tree
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(repo.root), start, wanted],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.stdin.write(b"\n")
    process.stdin.flush()
    beside = Path(private_git.path, "tmp")
    while sum(len(os.listdir(old)) for old in beside.glob("apply-*/old")) < moved:
        assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.communicate()
    if elsewhere:
        repo.root = repo.root.rename(repo.root.with_name("renamed"))
        private_git = repo.private_git()
        beside = Path(private_git.path, "tmp")
    assert snapshot_user_tree(private_git).tree != start
    assert (
        len(recover_interrupted(private_git, str(beside)).paths) == len(before) + len(before) // 10
    )
    assert snapshot_user_tree(private_git).tree == start
    assert list_changes(private_git) == []
    assert os.listdir(beside) == []
