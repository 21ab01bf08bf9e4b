"""Merges into files that are on another mount than `.retinue`, or cannot be written."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from retinue.domain.result import Status
from retinue.models.scripted.model import ScriptedModel, call, say
from retinue.runtime.runtime import Runtime

if TYPE_CHECKING:
    from tests.conftest import Repo

Opened = Callable[..., AbstractAsyncContextManager[Runtime]]

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("mounted", [".retinue", "data"])
def test_work_is_merged_and_undone_across_mounts(tmp_path: Path, mounted: str) -> None:
    if sys.platform != "linux" or shutil.which("unshare") is None:
        pytest.skip("only Linux has mount namespaces")
    probe = ["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", str(tmp_path)]
    if subprocess.run(probe, capture_output=True).returncode:
        pytest.skip("this user cannot mount anything")
    program = [sys.executable, "-m", "tests.runtime.integration.programs.across_mounts"]
    done = subprocess.run(
        ["unshare", "-rm", *program, str(tmp_path), mounted],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    after = {"a.txt": "2\n", "data/b.txt": "2\n", "data/new/c.txt": "2\n"}
    assert json.loads(done.stdout) == {
        "status": "completed",
        "error": None,
        "after": after,
        "refused": [],
        "back": {"a.txt": "1\n", "data/b.txt": "1\n"},
        "again": True,
        "mode": "0o640",
    }


@contextmanager
def immutable(path: Path) -> Iterator[None]:
    if (
        shutil.which("chattr") is None
        or subprocess.run(["chattr", "+i", path], capture_output=True).returncode
    ):
        pytest.skip("no file can be made immutable here")
    try:
        yield
    finally:
        subprocess.run(["chattr", "-i", path], check=True)


async def test_the_real_cause_is_reported(opened: Opened, repo: Repo, project: Path) -> None:
    """Nobody has changed anything meanwhile, and there is no conflict."""
    repo.init().commit({"a.txt": "1\n", "b.txt": "1\n"})
    model = ScriptedModel(
        [
            call("write_file", path="a.txt", content="2\n"),
            call("write_file", path="b.txt", content="2\n"),
            say("Done."),
        ]
    )
    events: list[str] = []
    async with opened(
        model=model, mode="auto", on_event=lambda event: events.append(event.type)
    ) as rt:
        with immutable(project / "b.txt"):
            child = await rt.spawn("executor", "Write.")
            assert (child.status, child.error) == (
                Status.ERROR,
                "'b.txt' cannot be written (Operation not permitted); nothing was applied. When"
                f" that is mended: retinue redo {child.run_id} a1",
            )
            assert (project / "a.txt").read_text() == "1\n"
            assert "agent.worktree_merged" not in events
        assert (await rt.redo(child.run_id, "a1")).ok
        assert (project / "b.txt").read_text() == "2\n"
