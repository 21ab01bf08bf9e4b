"""A child that controls every byte of its copy cannot make our git run anything, or escape."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from retinue.workspace.ground import CopiedGround, UsersGround

if TYPE_CHECKING:
    from tests.conftest import Repo

MARK = "planted-code-ran"


def script(folder: Path, mark: Path) -> Path:
    """A program that leaves a mark when anybody runs it."""
    file = folder / "evil.sh"
    file.write_text(f"#!/bin/sh\ntouch {mark}\ncat\n")
    file.chmod(0o755)
    return file


def settings(evil: Path) -> str:
    """All that git would run if it read this."""
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


PLANTED: list[tuple[Callable[[Path, Path], None], str]] = [
    (dot_git_file, ""),
    (own_git_dir, ""),
    (nested_repository, "'nested' is a repository inside the copy"),
    (inside_a_tracked_folder, ""),
    (bare_shape, ""),
    (the_top_as_a_bare_repository, ""),
    (attributes, ""),
    (submodule, "'x' is a repository inside the copy"),
]


@pytest.mark.parametrize(("plant", "problem"), PLANTED, ids=[p.__name__ for p, _ in PLANTED])
async def test_nothing_planted_is_run(
    repo: Repo,
    tmp_path: Path,
    ground_at: Callable[[Path], UsersGround],
    plant: Callable[[Path, Path], None],
    problem: str,
) -> None:
    mark = tmp_path / MARK
    evil = script(tmp_path, mark)
    repo.init().commit({"src/a": "1\n", "b": "1\n"})
    ground = ground_at(repo.root)
    base = await ground.state(None)
    directory = str(repo.root)
    copy = await ground.copy(base, name="c1", directory=directory)
    top = Path(copy.workspace(directory).root)
    plant(top, evil)
    (top / "b").write_text("changed\n")
    # Everything that we ever do with a copy.
    tree = copy.workspace(directory)
    tree.find("**", under=".", limit=999)
    tree.search("changed", under=".", glob=None, limit=9)
    tree.fingerprint(".")
    inner = await copy.state(None)
    grandchild = await copy.copy(inner, name="c2", directory=directory)
    proposal = await copy.propose(message="work")
    merge = await ground.merge(base, proposal.commit, base=base, message="merge")
    await ground.keep(base, proposal.commit, run_id="r", agent_id="a1", message="kept")
    fresh = await ground.copy(merge.commit, name="check", directory=directory)
    applied = await ground.apply(base, merge.commit, None, message="merge")
    await ground.state(base)
    await check_again(grandchild, fresh, copy)
    assert not mark.exists()
    assert proposal.problems == ((problem,) if problem else ())
    if not problem:
        assert applied.refused == ()
        assert (repo.root / "b").read_text() == "changed\n"


async def test_git_itself_would_run_it(
    repo: Repo, tmp_path: Path, ground_at: Callable[[Path], UsersGround]
) -> None:
    """What is planted here is no dud."""
    mark = tmp_path / MARK
    evil = script(tmp_path, mark)
    repo.init().commit({"a": "1\n"})
    ground = ground_at(repo.root)
    copy = await ground.copy(await ground.state(None), name="c1", directory=str(repo.root))
    top = Path(copy.workspace(str(repo.root)).root)
    own_git_dir(top, evil)
    repo.git("status", at=top)
    assert mark.exists()
    await copy.remove()


async def check_again(*copies: CopiedGround) -> None:
    for copy in copies:
        await copy.propose(message="again")
        await copy.remove()


async def test_settings_planted_in_the_users_own_repository_run_nothing(
    repo: Repo, tmp_path: Path, ground_at: Callable[[Path], UsersGround]
) -> None:
    mark = tmp_path / MARK
    evil = script(tmp_path, mark)
    repo.init().commit({"a": "1\n", ".gitattributes": "* filter=evil diff=evil merge=evil\n"})
    repo.write(".git/config", settings(evil))
    hooks(repo.root / ".git" / "hooks", evil)
    repo.write("a", "2\n")
    repo.write("new", "3\n")
    ground = ground_at(repo.root)
    base = await ground.state(None)
    copy = await ground.copy(base, name="c1", directory=str(repo.root))
    copy.workspace(str(repo.root)).write("a", b"4\n")
    proposal = await copy.propose(message="work")
    applied = await ground.apply(base, proposal.commit, None, message="merge")
    await copy.remove()
    assert applied.refused == ()
    assert (repo.root / "a").read_text() == "4\n"
    assert not mark.exists()


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("/etc/passwd", "'link' is a link to an absolute path, '/etc/passwd'"),
        ("../../outside", "'link' is a link that leaves the project, to '../../outside'"),
        (".git/config", "'link' is a link into '.git'"),
    ],
)
async def test_links_that_escape_are_not_integrated(
    repo: Repo, ground_at: Callable[[Path], UsersGround], target: str, problem: str
) -> None:
    repo.init().commit({"a": "1"})
    ground = ground_at(repo.root)
    base = await ground.state(None)
    copy = await ground.copy(base, name="c1", directory=str(repo.root))
    os.symlink(target, Path(copy.workspace(str(repo.root)).root) / "link")
    proposal = await copy.propose(message="work")
    assert proposal.problems == (problem,)
    # And if nobody had looked: what is applied is looked at once more.
    applied = await ground.apply(base, proposal.commit, None, message="merge")
    assert applied.refused == (problem,)
    assert not (repo.root / "link").is_symlink()
    await copy.remove()


async def test_a_link_in_the_way_is_not_followed_out_of_the_project(
    repo: Repo, tmp_path: Path, ground_at: Callable[[Path], UsersGround]
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    repo.init().commit({"a": "1"})
    ground = ground_at(repo.root)
    base = await ground.state(None)
    copy = await ground.copy(base, name="c1", directory=str(repo.root))
    copy.workspace(str(repo.root)).write("out/file", b"x")
    proposal = await copy.propose(message="work")
    await copy.remove()
    (repo.root / "out").symlink_to(outside)
    repo.write(".gitignore", "out\n")
    applied = await ground.apply(base, proposal.commit, None, message="merge")
    assert applied.refused == ("'out/file' is behind a link, or behind what is no folder",)
    assert list(outside.iterdir()) == []
