"""Killed while a thousand children are being committed, nothing that was handed over is missing."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

import retinue
from retinue.domain.lifecycle import State
from retinue.project import open_journal
from retinue.runtime.history.audit import audit, read_all

MANY = Path(__file__).parent / "programs" / "many.py"


@pytest.mark.parametrize(
    "results",
    [
        pytest.param(150, id="early"),
        *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 37, 400, 650, 900, 999)),
    ],
)
async def test_acknowledged_events_survive_a_kill(
    tmp_path: Path, project: Path, results: int
) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(MANY),
        str(project),
        env={"HOME": str(tmp_path), "PATH": os.environ["PATH"]},
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    lines = [(await process.stdout.readline()).decode().split() for _ in range(results)]
    process.kill()
    rest, _ = await process.communicate()
    # What was printed until the kill counts, but for a line that was cut off.
    lines += [line.split() for line in rest.decode().splitlines(keepends=True) if line[-1] == "\n"]
    async with open_journal(project) as store:
        (row,) = await store.runs()
        # The last child may have ended before the kill.
        assert row.status is None or (results, len(lines)) == (999, 1000)
        await audit(store, row.id)
        view = retinue.fold(await read_all(store, row.id))
    assert {run_id for run_id, _ in lines} == {row.id}
    assert {view.agents[agent_id].state for _, agent_id in lines} == {State.CLOSED}
