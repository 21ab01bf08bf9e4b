from __future__ import annotations

from pathlib import Path

import pytest

from retinue.domain import scope
from retinue.ports import Hands
from retinue.workspace.tree import DirectoryTree


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def hands(root: Path) -> Hands:
    """May write everything but docs/."""
    return Hands(
        workspace=DirectoryTree(root, ripgrep=None),
        sandbox=None,
        may_write=lambda path: not scope.contains(scope.scope("docs/"), path),
        agent_id="a1",
    )
