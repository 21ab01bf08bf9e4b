from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from retinue.errors import WorkspaceError
from retinue.workspace.user_repository import UserRepository, find_user_repository

if TYPE_CHECKING:
    from tests.conftest import Repo


def found(repo: Repo, directory: Path | None = None) -> UserRepository:
    return find_user_repository(
        str(directory or repo.root), home=str(repo.home), config_home=str(repo.config)
    )


def test_plain_folder(repo: Repo) -> None:
    source = found(repo)
    assert source.top == str(repo.root)
    assert source.index_file is None
    assert source.why_no_copies == "the project is no git repository"
    assert b"node_modules" in source.exclude_patterns


def test_repository(repo: Repo) -> None:
    repo.init()
    source = found(repo)
    assert (source.top, source.why_no_copies) == (str(repo.root), "")
    assert source.objects_folder == str(repo.root / ".git" / "objects")


def test_folder_inside_a_repository(repo: Repo) -> None:
    repo.init()
    inner = repo.root / "packages" / "api"
    inner.mkdir(parents=True)
    source = found(repo, inner)
    assert source.top == str(repo.root)


def test_folder_ignored_by_the_enclosing_repository(repo: Repo) -> None:
    repo.init().write(".gitignore", "build/\n")
    inner = repo.root / "build"
    inner.mkdir()
    source = found(repo, inner)
    assert source.top == str(inner)
    assert source.why_no_copies == "the repository around the project ignores it"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_enclosing_repository_of_another_owner_is_not_trusted(repo: Repo) -> None:
    repo.init()
    inner = repo.root / "mine"
    inner.mkdir()
    os.chown(repo.root / ".git", 12345, 12345)
    assert found(repo, inner).why_no_copies == "the project is no git repository"


def test_linked_worktree_uses_objects_of_the_main_repository(repo: Repo) -> None:
    repo.init().commit({"a": "1"})
    linked = repo.root.parent / "linked"
    repo.git("worktree", "add", "-q", str(linked))
    source = found(repo, linked)
    assert source.objects_folder == str(repo.root / ".git" / "objects")
    assert source.index_file == str(repo.root / ".git" / "worktrees" / "linked" / "index")


def test_only_settings_about_reading_files_are_copied(repo: Repo) -> None:
    repo.init()
    for name, value in {
        "core.autocrlf": "input",
        "core.fsmonitor": "/bin/evil",
        "core.hooksPath": "/evil",
        "filter.x.clean": "evil",
        "diff.external": "evil",
        "core.sshCommand": "evil",
    }.items():
        repo.git("config", name, value)
    source = found(repo)
    assert "core.autocrlf=input" in source.settings
    assert not any("evil" in setting for setting in source.settings)


@pytest.mark.parametrize("place", [".gitconfig", ".config/git/config"])
def test_user_settings_are_read(repo: Repo, place: str) -> None:
    repo.init()
    file = repo.home / place
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("[core]\nexcludesFile = ~/ignored\nautocrlf\n")
    source = found(repo)
    assert f"core.excludesFile={repo.home}/ignored" in source.settings
    assert "core.autocrlf=true" in source.settings


def test_default_ignore_file_of_the_user(repo: Repo) -> None:
    repo.init()
    assert f"core.excludesFile={repo.config}/git/ignore" in found(repo).settings


def link_to_a_key(path: Path, key: Path) -> None:
    path.symlink_to(key)


def pipe_without_a_writer(path: Path, key: Path) -> None:
    os.mkfifo(path)


@pytest.mark.parametrize("make", [link_to_a_key, pipe_without_a_writer])
def test_patterns_that_are_a_link_or_a_pipe_are_not_read(
    repo: Repo, make: Callable[[Path, Path], None]
) -> None:
    """An agent reads `info/exclude` in its copy."""
    repo.init()
    key = repo.home / "key"
    key.write_text("SECRET\n")
    exclude = repo.root / ".git" / "info" / "exclude"
    exclude.unlink(missing_ok=True)
    make(exclude, key)
    assert found(repo).exclude_patterns == b""


@pytest.mark.parametrize("make", [link_to_a_key, pipe_without_a_writer])
def test_list_of_a_shallow_clone_that_is_a_link_or_a_pipe_is_not_used(
    repo: Repo, make: Callable[[Path, Path], None]
) -> None:
    """Git would quote the first line: `fatal: bad shallow line: ...`."""
    repo.init()
    assert found(repo).shallow_file == str(repo.root / ".git" / "shallow")
    make(repo.root / ".git" / "shallow", repo.home / "key")
    assert found(repo).shallow_file == ""


def test_pipe_called_git_is_no_repository(repo: Repo) -> None:
    os.mkfifo(repo.root / ".git")
    assert found(repo).why_no_copies == "the project is no git repository"


def test_only_the_users_own_excludes_file_is_for_other_machines(repo: Repo) -> None:
    repo.init()
    (repo.home / ".gitconfig").write_text("[core]\nexcludesFile = ~/own\n")
    assert found(repo).excludes_file == f"{repo.home}/own"
    repo.git("config", "core.excludesFile", f"{repo.home}/.ssh/id_rsa")
    source = found(repo)
    assert f"core.excludesFile={repo.home}/.ssh/id_rsa" in source.settings
    assert source.excludes_file == ""


def test_unreadable_settings_are_an_error(repo: Repo) -> None:
    repo.init().write(".git/config", "[core\n")
    with pytest.raises(WorkspaceError, match=r"settings of .* cannot be read: fatal: bad config"):
        found(repo)
