from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from retinue.store.sqlite import SqliteStore
from tests.store.journal_writer import JournalWriter

ROOT = Path(__file__).parents[2]

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """A database with the run `k3f9` in it: three events, one agent, not finished."""
    path = tmp_path / "retinue.db"
    asyncio.run(write_run(path))
    return path


async def write_run(path: Path) -> None:
    store = SqliteStore(path)
    writer = JournalWriter(store, "k3f9")
    writer.begin()
    writer.create_agent()
    writer.note()
    await store.aclose()


@pytest.fixture
def start(request: pytest.FixtureRequest) -> Start:
    """Start one of the programs beside this file in a process of its own."""

    def begin(program: str, *arguments: object) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", f"tests.store.programs.{program}", *map(str, arguments)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

        def end() -> None:
            with process:
                process.kill()

        request.addfinalizer(end)
        return process

    return begin
