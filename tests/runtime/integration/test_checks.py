from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from retinue.runtime.integration.checks import temporary_copy
from retinue.workspace.user_file_tree import UserFileTree

if TYPE_CHECKING:
    from tests.conftest import Repo


async def test_cancelled_while_a_copy_is_made_leaves_none(repo: Repo, tmp_path: Path) -> None:
    repo.init().commit({"a": "1"})
    state, worktrees = repo.root / ".retinue", tmp_path / "worktrees"
    state.mkdir()
    file_tree = UserFileTree(
        str(repo.root),
        state_folder=str(state),
        worktrees=str(worktrees),
        home=str(tmp_path),
        config_home=str(tmp_path),
        seal=str,
    )
    commit = await file_tree.snapshot(None)

    async def use() -> None:
        async with temporary_copy(file_tree, commit, name="r-a1", directory=str(repo.root)):
            raise AssertionError("cancelled before")

    task = asyncio.create_task(use())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert worktrees.is_dir(), "the copy was made"
    assert not list(worktrees.iterdir())
