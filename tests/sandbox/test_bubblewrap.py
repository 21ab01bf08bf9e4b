"""Commands in a working copy see it at the path of the project."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from retinue.domain.scope import ANYWHERE, scope
from retinue.ports.sandbox import ShellCommand
from retinue.sandbox.bubblewrap import Bubblewrap
from retinue.sandbox.selection import select_sandbox
from retinue.workspace.user_file_tree import UserFileTree

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Repo


@pytest.fixture
async def sandbox() -> Bubblewrap:
    found = (await select_sandbox({"PATH": os.defpath})).sandbox
    if not isinstance(found, Bubblewrap):
        pytest.skip("needs bubblewrap")
    return found


def users(repo: Repo, tmp_path: Path) -> UserFileTree:
    state = repo.root / ".retinue"
    state.mkdir()
    (state / ".gitignore").write_text("*\n")
    return UserFileTree(
        str(repo.root),
        state_folder=str(state),
        worktrees=str(tmp_path / "worktrees"),
        home=str(repo.home),
        config_home=str(repo.config),
        seal=str,
    )


async def test_copy_is_mounted_at_the_project_with_shared_folders(
    repo: Repo, tmp_path: Path, sandbox: Bubblewrap
) -> None:
    repo.init().commit({".gitignore": "node_modules/\n.env\n", "a": "1\n"})
    repo.write("node_modules/tool", "lent\n")
    repo.write(".env", "secret\n")
    file_tree = users(repo, tmp_path)
    copy = await file_tree.copy(await file_tree.snapshot(None), name="c", directory=str(repo.root))
    workspace = copy.workspace(str(repo.root))

    async def sh(command: str, *allowed: str) -> str:
        access = workspace.access(scope(*allowed) if allowed else ANYWHERE)
        done = await sandbox.run(
            ShellCommand(command, access=access, timeout_s=30, max_output_bytes=9999)
        )
        return done.output.strip()

    root = str(repo.root)
    assert await sh("pwd") == root
    assert await sh(f"cat {root}/node_modules/tool") == "lent"
    assert await sh("cat .env 2>/dev/null || echo none") == "none"
    assert "Read-only" in await sh("touch node_modules/new")
    assert await sh(f"echo 2 > {root}/a; mkdir -p d; echo 3 > d/b; git status --short") == (
        "M a\n?? d/" if shutil.which("git") else ""
    )
    assert "Read-only" in await sh("echo 4 > a", "d/**")
    assert (repo.root / "a").read_text() == "1\n"
    proposal = await copy.propose(message="x")
    assert [str(file) for file in proposal.files] == [
        "a (+1/-1 lines)",
        "d/b (+1 line, new file)",
    ]
    assert proposal.problems == ()
    await copy.remove()


async def test_shared_folder_that_became_a_link_is_not_mounted(
    repo: Repo, tmp_path: Path, sandbox: Bubblewrap
) -> None:
    repo.init().commit({".gitignore": "node_modules\n", "web/a": "1\n"})
    repo.write("web/node_modules/tool", "lent\n")
    file_tree = users(repo, tmp_path)
    copy = await file_tree.copy(await file_tree.snapshot(None), name="c", directory=str(repo.root))
    access = copy.workspace(str(repo.root)).access(ANYWHERE)
    assert access.shared_folders == ("web/node_modules",)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.rmtree(os.path.join(access.root, "web"))
    os.symlink(elsewhere, os.path.join(access.root, "web"))
    done = await sandbox.run(
        ShellCommand("ls web", access=access, timeout_s=30, max_output_bytes=9999)
    )
    assert "tool" not in done.output
    assert os.listdir(elsewhere) == []
    await copy.remove()
