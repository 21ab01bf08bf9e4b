from __future__ import annotations

import asyncio
import threading
from contextlib import aclosing
from pathlib import Path

import pytest

from retinue.store.reports import FileReports


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    root.mkdir()
    return root


async def test_reports_are_written_with_their_folders(root: Path) -> None:
    reports = FileReports(root)
    for number in range(50):
        reports.keep(f".retinue/step-{number}-result.md", f"# {number}")
    reports.keep("docs/runs/k3f9/a1.md", "# déjà vu \ud800")
    await reports.aclose()
    assert (root / ".retinue/step-49-result.md").read_text() == "# 49"
    assert (root / "docs/runs/k3f9/a1.md").read_text() == "# déjà vu ?"


async def test_reports_are_written_while_the_runtime_stays_open(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retinue.store.reports.PAUSE_S", 0.0)
    loop, written = asyncio.get_running_loop(), asyncio.Event()

    class Watched(FileReports):
        def _write(self) -> None:
            super()._write()
            loop.call_soon_threadsafe(written.set)

    async with aclosing(Watched(root)) as reports:
        reports.keep("step.md", "# 0")
        await written.wait()
        assert (root / "step.md").read_text() == "# 0"


async def test_a_cancelled_end_waits_for_what_is_being_written(root: Path) -> None:
    writing, may_continue = threading.Event(), threading.Event()

    class Slow(FileReports):
        def _replace(self, path: str, data: bytes) -> None:
            writing.set()
            may_continue.wait()
            super()._replace(path, data)

    reports = Slow(root)
    reports.keep("reports/0.md", "# 0")
    reports.keep("reports/1.md", "# 1")
    closing = asyncio.create_task(reports.aclose())
    await asyncio.to_thread(writing.wait)
    closing.cancel()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    ended_early = closing.done()
    may_continue.set()
    await asyncio.wait([closing])
    assert closing.cancelled()
    assert not ended_early
    assert (root / "reports/1.md").read_text() == "# 1"


async def test_the_latest_report_of_a_step_stands(root: Path) -> None:
    reports = FileReports(root)
    reports.keep("step.md", "a longer text")
    reports.keep("step.md", "short")
    await reports.aclose()
    assert (root / "step.md").read_text() == "short"


@pytest.mark.parametrize("what", ["file", "folder"])
async def test_a_link_that_a_project_put_in_the_way_is_not_followed(
    root: Path, tmp_path: Path, what: str
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "step.md").write_text("mine")
    if what == "file":
        (root / "reports").mkdir()
        (root / "reports" / "step.md").symlink_to(outside / "step.md")
    else:
        (root / "reports").symlink_to(outside)
    reports = FileReports(root)
    reports.keep("reports/step.md", "theirs")
    reports.keep("other.md", "written all the same")
    await reports.aclose()
    assert (outside / "step.md").read_text() == "mine"
    assert (root / "other.md").read_text() == "written all the same"


@pytest.mark.parametrize("path", ["../step.md", "reports/../../step.md", "OUTSIDE/step.md"])
async def test_a_path_of_another_users_run_does_not_lead_out_of_the_project(
    root: Path, tmp_path: Path, path: str
) -> None:
    async with aclosing(FileReports(root)) as reports:
        reports.keep(path.replace("OUTSIDE", str(tmp_path)), "theirs")
        reports.keep("other.md", "written all the same")
    assert not (tmp_path / "step.md").exists()
    assert (root / "other.md").read_text() == "written all the same"
