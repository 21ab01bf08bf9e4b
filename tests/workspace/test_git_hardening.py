"""An agent that controls every byte of its copy cannot make our git run a program."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from retinue.workspace.file_trees import AgentWorkingCopy
from retinue.workspace.user_file_tree import UserFileTree

if TYPE_CHECKING:
    from tests.conftest import Repo

MARK = "planted-code-ran"


def script(folder: Path, mark: Path) -> Path:
    """A program that leaves a mark when it is run."""
    file = folder / "evil.sh"
    file.write_text(f"#!/bin/sh\ntouch {mark}\ncat\n")
    file.chmod(0o755)
    return file


def settings(evil: Path) -> str:
    """Git settings that would run a program."""
    return f"""
[core]
    repositoryformatversion = 0
    fsmonitor = {evil}
    hooksPath = {evil.parent}
    sshCommand = {evil}
    pager = {evil}
    editor = {evil}
    alternateRefsCommand = {evil}
    attributesFile = {evil.parent}/attributes
[filter "evil"]
    clean = {evil}
    smudge = {evil}
    process = {evil}
    required = true
[diff]
    external = {evil}
[diff "evil"]
    textconv = {evil}
    command = {evil}
[merge "evil"]
    driver = {evil} %A
[extensions]
    partialClone = evil
[remote "evil"]
    url = ext::{evil}
    promisor = true
[protocol "ext"]
    allow = always
"""


def hooks(folder: Path, evil: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("post-index-change", "post-checkout", "reference-transaction", "pre-commit"):
        shutil.copy(evil, folder / name)


def dot_git_file(top: Path, evil: Path) -> None:
    shutil.rmtree(top / ".git")
    planted = top / "elsewhere"
    make_git_dir(planted, evil)
    (top / ".git").write_text(f"gitdir: {planted}\n")


def own_git_dir(top: Path, evil: Path) -> None:
    (top / ".git" / "config").write_text(settings(evil))
    hooks(top / ".git" / "hooks", evil)


def make_git_dir(folder: Path, evil: Path) -> None:
    for name in ("objects", "refs/heads"):
        (folder / name).mkdir(parents=True)
    (folder / "HEAD").write_text("ref: refs/heads/main\n")
    (folder / "config").write_text(settings(evil))
    hooks(folder / "hooks", evil)


def nested_repository(top: Path, evil: Path) -> None:
    make_git_dir(top / "nested" / ".git", evil)
    (top / "nested" / "file").write_text("x")


def inside_a_tracked_folder(top: Path, evil: Path) -> None:
    make_git_dir(top / "src" / ".git", evil)
    (top / "src" / "a").write_text("changed")


def bare_shape(top: Path, evil: Path) -> None:
    make_git_dir(top / "bare", evil)


def the_top_as_a_bare_repository(top: Path, evil: Path) -> None:
    make_git_dir(top, evil)


def attributes(top: Path, evil: Path) -> None:
    (top / ".gitattributes").write_text("* filter=evil diff=evil merge=evil\n")
    (top / "src" / "a").write_text("changed")


def submodule(top: Path, evil: Path) -> None:
    (top / ".gitmodules").write_text(
        f'[submodule "x"]\n  path = x\n  url = ext::{evil}\n  update = !{evil}\n'
    )
    make_git_dir(top / "x" / ".git", evil)
    (top / "x" / ".git" / "refs" / "heads" / "main").write_text("1" * 40 + "\n")


def config_of_a_worktree(top: Path, evil: Path) -> None:
    config = "[core]\n  repositoryformatversion = 1\n[extensions]\n  worktreeConfig = true\n"
    (top / ".git" / "config").write_text(config)
    (top / ".git" / "config.worktree").write_text(settings(evil))


def another_tree(top: Path, evil: Path) -> None:
    (top / ".git" / "config").write_text(f"{settings(evil)}[core]\n  worktree = {evil.parent}\n")


def attributes_of_the_git_dir(top: Path, evil: Path) -> None:
    own_git_dir(top, evil)
    (top / ".git" / "info" / "attributes").write_text("* filter=evil diff=evil merge=evil\n")
    (top / "src" / ".gitattributes").write_text("* filter=evil merge=evil ident eol=crlf\n")


def objects_from_elsewhere(top: Path, evil: Path) -> None:
    os.mkfifo(top / ".git" / "pipe")
    (top / ".git" / "objects" / "info" / "alternates").write_text(f"{top}/.git/pipe\n")
    (top / ".git" / "index").unlink()
    (top / ".git" / "index").symlink_to(top / ".git" / "pipe")
    (top / ".git" / "commondir").write_text(f"{evil.parent}\n")


PLANTED: list[tuple[Callable[[Path, Path], None], str]] = [
    (dot_git_file, ""),
    (own_git_dir, ""),
    (nested_repository, "'nested' is a repository inside the copy"),
    (inside_a_tracked_folder, ""),
    (bare_shape, ""),
    (the_top_as_a_bare_repository, ""),
    (attributes, ""),
    (submodule, "'x' is a repository inside the copy"),
    (config_of_a_worktree, ""),
    (another_tree, ""),
    (attributes_of_the_git_dir, ""),
    (objects_from_elsewhere, ""),
]


@pytest.mark.parametrize(("plant", "problem"), PLANTED, ids=[p.__name__ for p, _ in PLANTED])
async def test_planted_programs_are_not_run(
    repo: Repo,
    tmp_path: Path,
    file_tree_at: Callable[[Path], UserFileTree],
    plant: Callable[[Path, Path], None],
    problem: str,
) -> None:
    mark = tmp_path / MARK
    evil = script(tmp_path, mark)
    repo.init().commit({"src/a": "1\n", "b": "1\n"})
    file_tree = file_tree_at(repo.root)
    base = await file_tree.snapshot(None)
    directory = str(repo.root)
    copy = await file_tree.copy(base, name="c1", directory=directory)
    top = Path(copy.workspace(directory).root)
    plant(top, evil)
    (top / "b").write_text("changed\n")
    # Everything that we do with a copy.
    tree = copy.workspace(directory)
    tree.find("**", under=".", limit=999)
    tree.search("changed", under=".", glob=None, limit=9)
    tree.fingerprint(".")
    inner = await copy.snapshot(None)
    grandchild = await copy.copy(inner, name="c2", directory=directory)
    proposal = await copy.propose(message="work")
    merge = await file_tree.merge(base, proposal.commit, base=base, message="merge")
    await file_tree.keep_unmerged(base, proposal.commit, run_id="r", agent_id="a1", message="kept")
    fresh = await file_tree.copy(merge.commit, name="check", directory=directory)
    applied = await file_tree.apply(base, merge.commit, None, message="merge")
    await file_tree.snapshot(base)
    await check_again(grandchild, fresh, copy)
    assert not mark.exists()
    assert proposal.problems == ((problem,) if problem else ())
    if not problem:
        assert applied.refused == ()
        assert (repo.root / "b").read_text() == "changed\n"


async def test_plain_git_would_run_planted_programs(
    repo: Repo, tmp_path: Path, file_tree_at: Callable[[Path], UserFileTree]
) -> None:
    """The planted programs do work, if plain git is used."""
    mark = tmp_path / MARK
    evil = script(tmp_path, mark)
    repo.init().commit({"a": "1\n"})
    file_tree = file_tree_at(repo.root)
    copy = await file_tree.copy(await file_tree.snapshot(None), name="c1", directory=str(repo.root))
    top = Path(copy.workspace(str(repo.root)).root)
    own_git_dir(top, evil)
    repo.git("status", at=top)
    assert mark.exists()
    await copy.remove()


async def check_again(*copies: AgentWorkingCopy) -> None:
    for copy in copies:
        await copy.propose(message="again")
        await copy.remove()


def in_the_config(repo: Repo, evil: Path) -> None:
    repo.write(".git/config", settings(evil))
    hooks(repo.root / ".git" / "hooks", evil)


def included(repo: Repo, evil: Path) -> None:
    (evil.parent / "more").write_text(settings(evil))
    with (repo.root / ".git" / "config").open("a") as config:
        config.write(f"[include]\n  path = {evil.parent}/more\n")


def included_for_this_folder(repo: Repo, evil: Path) -> None:
    (evil.parent / "more").write_text(settings(evil))
    condition = f'includeIf "gitdir:{repo.root}/"'
    (repo.home / ".gitconfig").write_text(f"[{condition}]\n  path = {evil.parent}/more\n")


def for_one_worktree(repo: Repo, evil: Path) -> None:
    repo.git("config", "core.repositoryformatversion", "1")
    repo.git("config", "extensions.worktreeConfig", "true")
    repo.write(".git/config.worktree", settings(evil))


OWN = [in_the_config, included, included_for_this_folder, for_one_worktree]


@pytest.mark.parametrize("plant", OWN, ids=[plant.__name__ for plant in OWN])
async def test_settings_in_the_users_repository_run_no_program(
    repo: Repo,
    tmp_path: Path,
    file_tree_at: Callable[[Path], UserFileTree],
    plant: Callable[[Repo, Path], None],
) -> None:
    mark = tmp_path / MARK
    evil = script(tmp_path, mark)
    repo.init().commit({"a": "1\n", ".gitattributes": "* filter=evil diff=evil merge=evil\n"})
    plant(repo, evil)
    await work_there(repo, file_tree_at(repo.root))
    assert not mark.exists()
    with suppress(AssertionError):  # Plain git fails with such a filter.
        repo.git("status")
    assert mark.exists(), "it is no dud"


async def work_there(repo: Repo, file_tree: UserFileTree) -> None:
    """Everything that we do with the user's tree."""
    repo.write("a", "2\n")
    repo.write("new", "3\n")
    directory = str(repo.root)
    tree = file_tree.workspace(directory)
    tree.find("**", under=".", limit=999)
    tree.search("2", under=".", glob=None, limit=9)
    tree.fingerprint(".")
    base = await file_tree.snapshot(None)
    copy = await file_tree.copy(base, name="c1", directory=directory)
    assert copy.workspace(directory).read("new", max_bytes=99) == b"3\n"
    copy.workspace(directory).write("a", b"4\n")
    proposal = await copy.propose(message="work")
    await file_tree.keep_unmerged(base, proposal.commit, run_id="r", agent_id="a1", message="kept")
    await copy.remove()
    changes = await file_tree.changes("r")
    assert "+4\n" in await file_tree.patch(changes[0])
    assert (await file_tree.redo(changes)).refused == ()
    assert (repo.root / "a").read_text() == "4\n"
    assert (await file_tree.undo(changes)).refused == ()
    assert (repo.root / "a").read_text() == "2\n"
    await file_tree.clean(0, dry_run=False)


async def test_git_variables_of_the_environment_are_ignored(
    repo: Repo,
    tmp_path: Path,
    file_tree_at: Callable[[Path], UserFileTree],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mark = tmp_path / MARK
    evil = script(tmp_path, mark)
    repo.init().commit({"a": "1\n"})
    make_git_dir(tmp_path / "other", evil)
    for name, value in {
        "GIT_DIR": tmp_path / "other",
        "GIT_WORK_TREE": tmp_path,
        "GIT_INDEX_FILE": tmp_path / "none",
        "GIT_OBJECT_DIRECTORY": tmp_path / "other" / "objects",
        "GIT_EXEC_PATH": tmp_path,
        "GIT_EXTERNAL_DIFF": evil,
        "GIT_SSH_COMMAND": evil,
        "GIT_PAGER": evil,
        "GIT_CONFIG_GLOBAL": tmp_path / "other" / "config",
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "core.fsmonitor",
        "GIT_CONFIG_VALUE_0": evil,
        "GIT_CONFIG_PARAMETERS": f"'core.fsmonitor'='{evil}'",
        "GIT_TRACE2": tmp_path / "trace",
    }.items():
        monkeypatch.setenv(name, str(value))
    await work_there(repo, file_tree_at(repo.root))
    assert not mark.exists()
    assert not (tmp_path / "trace").exists()


async def test_assume_unchanged_marks_are_ignored(
    repo: Repo, tmp_path: Path, file_tree_at: Callable[[Path], UserFileTree]
) -> None:
    """With a file system monitor, the index marks files that need not be read."""
    monitor = tmp_path / "monitor"
    monitor.write_text(f"#!/bin/sh\ntouch {tmp_path / MARK}\nprintf 'token\\0'\n")
    monitor.chmod(0o755)
    repo.init().commit({"a": "1\n", "b": "1\n"})
    repo.git("config", "core.fsmonitor", str(monitor))
    repo.git("update-index", "--fsmonitor")
    repo.git("status")
    (tmp_path / MARK).unlink()
    repo.write("a", "2\n")
    file_tree = file_tree_at(repo.root)
    tree = repo.listed(repo.private_git(), await file_tree.snapshot(None))
    assert tree == {"a": "100644 2\n", "b": "100644 1\n"}
    assert not (tmp_path / MARK).exists()


async def test_work_tree_setting_is_ignored(
    repo: Repo, tmp_path: Path, file_tree_at: Callable[[Path], UserFileTree]
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "secret").write_text("s\n")
    repo.init().commit({"a": "1\n"})
    repo.git("config", "core.worktree", str(tmp_path / "elsewhere"))
    tree = repo.listed(repo.private_git(), await file_tree_at(repo.root).snapshot(None))
    assert tree == {"a": "100644 1\n"}


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("/etc/passwd", "'link' is a link to an absolute path, '/etc/passwd'"),
        ("../../outside", "'link' is a link that leaves the project, to '../../outside'"),
        (".git/config", "'link' is a link into '.git'"),
    ],
)
async def test_links_that_leave_the_project_are_not_applied(
    repo: Repo, file_tree_at: Callable[[Path], UserFileTree], target: str, problem: str
) -> None:
    repo.init().commit({"a": "1"})
    file_tree = file_tree_at(repo.root)
    base = await file_tree.snapshot(None)
    copy = await file_tree.copy(base, name="c1", directory=str(repo.root))
    os.symlink(target, Path(copy.workspace(str(repo.root)).root) / "link")
    proposal = await copy.propose(message="work")
    assert proposal.problems == (problem,)
    # Even without that check: `apply` checks once more.
    applied = await file_tree.apply(base, proposal.commit, None, message="merge")
    assert applied.refused == (problem,)
    assert not (repo.root / "link").is_symlink()
    await copy.remove()


async def test_link_on_the_way_is_not_followed(
    repo: Repo, tmp_path: Path, file_tree_at: Callable[[Path], UserFileTree]
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    repo.init().commit({"a": "1"})
    file_tree = file_tree_at(repo.root)
    base = await file_tree.snapshot(None)
    copy = await file_tree.copy(base, name="c1", directory=str(repo.root))
    copy.workspace(str(repo.root)).write("out/file", b"x")
    proposal = await copy.propose(message="work")
    await copy.remove()
    (repo.root / "out").symlink_to(outside)
    repo.write(".gitignore", "out\n")
    applied = await file_tree.apply(base, proposal.commit, None, message="merge")
    assert applied.refused == ("'out/file' is behind a link or a file",)
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("key", ["a key", ""], ids=["with a key", "without"])
@pytest.mark.parametrize("shape", ["dir", "link", "commondir", "seal of another"])
async def test_foreign_private_git_dir_is_moved_aside(
    repo: Repo, tmp_path: Path, shape: str, key: str
) -> None:
    mark = tmp_path / MARK
    evil = script(tmp_path, mark)
    repo.init().commit({"a": "1\n", ".gitattributes": "* filter=evil\n"})
    state = repo.root / ".retinue"
    planted = tmp_path / "elsewhere" if shape in ("link", "commondir") else state / "git"
    make_git_dir(planted, evil)
    if shape == "link":
        (state).mkdir()
        (state / "git").symlink_to(planted)
    elif shape == "commondir":
        shutil.copytree(planted, state / "git")
        (state / "git" / "config").write_text("")
        (state / "git" / "commondir").write_text(f"{planted}\n")
    elif shape == "seal of another":
        (planted / "seal").write_text("abc 0123")
    # Half of a change, whose recovery would write outside of the project.
    left = planted / "tmp" / "apply-1"
    (left / "old").mkdir(parents=True)
    (left / "old" / "0").write_text("planted")
    blob = "0" * 40
    plan = (b"../../../..", None, ((b"victim", 0o100644, 0o100644, blob, blob),))
    (left / "plan").write_bytes(msgspec.msgpack.encode(plan))
    file_tree = UserFileTree(
        str(repo.root),
        state_folder=str(state),
        worktrees=str(tmp_path / "worktrees"),
        home=str(repo.home),
        config_home=str(repo.config),
        seal=lambda name: hashlib.sha256(f"{key} {name}".encode()).hexdigest() if key else "",
    )
    (told,) = await file_tree.recovery_notes()
    assert told.startswith("the history of file changes was not written by you on this machine")
    await work_there(repo, file_tree)
    assert not mark.exists()
    assert not (tmp_path / "victim").exists()
    assert (await file_tree.recovery_notes()) == (told,)


async def test_own_private_git_dir_is_used_again(
    repo: Repo, tmp_path: Path, file_tree_at: Callable[[Path], UserFileTree]
) -> None:
    repo.init().commit({"a": "1\n"})
    await work_there(repo, file_tree_at(repo.root))
    again = file_tree_at(repo.root)
    assert await again.recovery_notes() == ()
    assert [change.name for change in await again.changes("r")] == []
    assert sorted(path.name for path in (repo.root / ".retinue").iterdir()) == [".gitignore", "git"]


@pytest.mark.parametrize("planted", ["config", "commondir", "info/attributes"])
async def test_a_seal_does_not_vouch_for_settings(
    repo: Repo, file_tree_at: Callable[[Path], UserFileTree], planted: str
) -> None:
    """Whoever has a copy of a `.retinue` has its seal, and may have changed the rest."""
    repo.init().commit({"a": "1\n"})
    await work_there(repo, file_tree_at(repo.root))
    (repo.root / ".retinue" / "git" / planted).write_text("[core]\nfsmonitor = touch evil\n")
    (told,) = await file_tree_at(repo.root).recovery_notes()
    assert told.startswith("the history of file changes was not written by you on this machine")


async def test_files_rescued_after_a_crash_are_reported(
    repo: Repo, file_tree_at: Callable[[Path], UserFileTree]
) -> None:
    repo.init().commit({"a": "1\n"})
    await file_tree_at(repo.root).snapshot(None)
    left = repo.root / ".retinue" / "git" / "tmp" / "apply-1"
    (left / "old").mkdir(parents=True)
    (left / "old" / "0").write_text("mine")
    (left / "plan").write_bytes(b"half of it")
    rescued = repo.root / ".retinue" / "rescued" / "apply-1"
    (told,) = await file_tree_at(repo.root).recovery_notes()
    assert told == f"files that could not be put back are in {rescued}"
    assert (rescued / "0").read_text() == "mine"


async def test_files_are_not_rescued_through_a_link(
    repo: Repo, tmp_path: Path, file_tree_at: Callable[[Path], UserFileTree]
) -> None:
    repo.init().commit({"a": "1\n"})
    await file_tree_at(repo.root).snapshot(None)
    old = repo.root / ".retinue" / "git" / "tmp" / "apply-1" / "old"
    old.mkdir(parents=True)
    (old / "0").write_text("mine")
    (old.parent / "plan").write_bytes(b"half of it")
    (tmp_path / "planted").mkdir()
    (repo.root / ".retinue" / "rescued").symlink_to(tmp_path / "planted")
    (told,) = await file_tree_at(repo.root).recovery_notes()
    assert told == f"files that could not be put back are in {old}"
    assert list((tmp_path / "planted").iterdir()) == []
