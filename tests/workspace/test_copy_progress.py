from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from retinue.testing.clock import FakeClock
from retinue.workspace.copies import make_copy
from retinue.workspace.copy_progress import copying, removing, reported
from retinue.workspace.snapshot import snapshot_user_tree

if TYPE_CHECKING:
    from tests.conftest import Repo


async def test_progress_is_counted_and_estimated(repo: Repo) -> None:
    repo.init().commit({f"d/{number}": "1" for number in range(20)})
    private_git = repo.private_git()
    base = private_git.commit(snapshot_user_tree(private_git).tree)
    folder = repo.home / "worktrees" / "r-a1"
    clock = FakeClock()
    made = copying(str(folder), clock.monotonic)
    assert made() == "", "nothing is known yet"
    copy = make_copy(private_git, str(folder), base)
    files = _keep_files(Path(copy.top), 5)
    clock.advance(4)
    assert made() == "copied 5 of 20 files, 12s left"

    gone = removing(str(folder), clock.monotonic)
    assert gone() == "removing the copy, 5 files"
    files[0].unlink()
    clock.advance(1)
    assert gone() == "removing the copy, 4 files, 4s left"
    copy.remove()
    assert gone() == ""


def _keep_files(top: Path, count: int) -> list[Path]:
    """Remove all files of a copy except the first ones in `d`; return these."""
    kept = sorted((top / "d").iterdir())[:count]
    for path in top.rglob("*"):
        if path.is_file() and path not in kept:
            path.unlink()
    return kept


async def test_reports_end_with_an_empty_one() -> None:
    heard: list[str] = []
    twice = asyncio.Event()

    def listen(text: str) -> None:
        heard.append(text)
        if heard == ["1 left"] * 2:
            twice.set()

    async with reported(lambda: "1 left", listen, every_s=0.0):
        await twice.wait()
    assert (heard[:2], heard[-1]) == (["1 left"] * 2, "")
