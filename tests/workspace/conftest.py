from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from retinue.workspace.directory import DirectoryWorkspace
from retinue.workspace.safe_open import Opener, best_opener, open_by_walking, open_with_openat2
from retinue.workspace.user_file_tree import UserFileTree

MakeRepository = Callable[[Path], None]


@pytest.fixture(params=["openat2", "walking"])
def opening(request: pytest.FixtureRequest) -> Opener:
    if request.param == "walking":
        return open_by_walking
    if best_opener() is not open_with_openat2:
        pytest.skip("this kernel has no openat2, or forbids it")
    return open_with_openat2


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    root.mkdir()
    return root


@pytest.fixture
def tree(root: Path, opening: Opener) -> DirectoryWorkspace:
    return DirectoryWorkspace(root, opener=opening, ripgrep=None)


@pytest.fixture(params=["ripgrep", "python"])
def searched(request: pytest.FixtureRequest, root: Path) -> DirectoryWorkspace:
    """A workspace to search in, with each of the two programs."""
    if request.param == "python":
        return DirectoryWorkspace(root, ripgrep=None)
    if shutil.which("rg") is None:
        pytest.skip("ripgrep is not installed")
    return DirectoryWorkspace(root)


@pytest.fixture
def make_repository() -> MakeRepository:
    def make(at: Path) -> None:
        subprocess.run(["git", "init", "-q", str(at)], check=True)

    return make


@pytest.fixture
def file_tree_at(tmp_path: Path) -> Callable[[Path], UserFileTree]:
    """Makes the user's file tree for a folder, with copies outside of it."""

    def make(folder: Path) -> UserFileTree:
        state, home = folder / ".retinue", tmp_path / "home"
        state.mkdir(exist_ok=True)
        (state / ".gitignore").write_text("*\n")
        return UserFileTree(
            str(folder),
            state_folder=str(state),
            worktrees=str(home / "worktrees"),
            home=str(home),
            config_home=str(home / ".config"),
            seal=str,
        )

    return make
