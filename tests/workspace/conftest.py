from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from retinue.workspace.safe_open import Opening, open_at_once, open_by_walking, preferred
from retinue.workspace.tree import DirectoryTree
from retinue.workspace.trees import UsersGround

MakeRepository = Callable[[Path], None]


@pytest.fixture(params=["openat2", "walking"])
def opening(request: pytest.FixtureRequest) -> Opening:
    if request.param == "walking":
        return open_by_walking
    if preferred() is not open_at_once:
        pytest.skip("this kernel has no openat2, or forbids it")
    return open_at_once


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    root.mkdir()
    return root


@pytest.fixture
def tree(root: Path, opening: Opening) -> DirectoryTree:
    return DirectoryTree(root, opening=opening, ripgrep=None)


@pytest.fixture(params=["ripgrep", "python"])
def searched(request: pytest.FixtureRequest, root: Path) -> DirectoryTree:
    """A tree to search in, by each of the two programs."""
    if request.param == "python":
        return DirectoryTree(root, ripgrep=None)
    if shutil.which("rg") is None:
        pytest.skip("ripgrep is not installed")
    return DirectoryTree(root)


@pytest.fixture
def make_repository() -> MakeRepository:
    def make(at: Path) -> None:
        subprocess.run(["git", "init", "-q", str(at)], check=True)

    return make


@pytest.fixture
def ground_at(tmp_path: Path) -> Callable[[Path], UsersGround]:
    """The user's tree at a folder, with copies outside of it."""

    def make(folder: Path) -> UsersGround:
        state, home = folder / ".retinue", tmp_path / "home"
        state.mkdir(exist_ok=True)
        (state / ".gitignore").write_text("*\n")
        return UsersGround(
            str(folder),
            state=str(state),
            worktrees=str(home / "worktrees"),
            home=str(home),
            config_home=str(home / ".config"),
            seal=str,
        )

    return make
