from __future__ import annotations

from pathlib import Path

import pytest

from retinue.domain import scope
from retinue.domain.grant import Access
from retinue.ports.tool import ToolContext
from retinue.workspace.directory import DirectoryWorkspace


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def ctx(root: Path) -> ToolContext:
    """May write what is at the top, and below src/; not docs/, for example."""
    return ToolContext(
        workspace=DirectoryWorkspace(root, ripgrep=None),
        sandbox=None,
        access=Access(
            root=str(root), write_scope=scope.scope("*", "src/", "new/", "open/", "sub/")
        ),
        agent_id="a1",
    )
