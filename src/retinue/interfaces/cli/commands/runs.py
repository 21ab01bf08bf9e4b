"""`retinue runs`: lists the runs of this directory."""

from __future__ import annotations

import sys

import click

from retinue.domain.run_state import fold
from retinue.interfaces.cli.event_loop import async_command
from retinue.interfaces.cli.options import directory_option, json_objects_option
from retinue.interfaces.cli.terminal.output import print_json, print_line, print_table
from retinue.interfaces.view.formatting import format_duration, one_line
from retinue.interfaces.view.run_status import RESUMABLE, local_time, row_status
from retinue.ports.store import RunRow, Store
from retinue.project import open_journal, open_run_locks
from retinue.runtime.history.audit import read_all
from retinue.runtime.history.session import user_runs


@click.command()
@directory_option
@click.option("-n", "limit", default=20, show_default=True, help="How many runs to list.")
@json_objects_option
@async_command
async def runs(directory: str, limit: int, as_json: bool) -> None:
    """List the runs of this directory, newest first.

    A session is named after its first run; spawn and fan-out start no session. A run without an
    outcome is "running", "interrupted" (by you) or "abandoned" (its process is gone); you can
    resume the last two. Headings are printed on a terminal only.

    Example: retinue runs -n 5
    """
    is_active = open_run_locks(directory).is_held
    async with open_journal(directory) as store:
        rows = await user_runs(store, limit=limit)
        if as_json:
            print_json(*rows)
            return
        durations = {row.id: await _duration(store, row) for row in rows}
        statuses = {row.id: await row_status(store, row, active=is_active(row.id)) for row in rows}
    print_table(
        ("RUN", "SESSION", "BEGAN", "STATUS", "TIME", "AGENTS", "TASK"),
        [
            (
                row.id,
                row.session or "-",
                local_time(row.started_at),
                statuses[row.id],
                durations[row.id],
                f"{row.agents:,}",
                one_line(row.task),
            )
            for row in rows
        ],
    )
    resumable = [row.id for row in rows if row.sealed and statuses[row.id] in RESUMABLE]
    if resumable and sys.stdout.isatty():
        print_line(f"Resume an unfinished run with: retinue resume {resumable[0]}")


async def _duration(store: Store, row: RunRow) -> str:
    """How long processes worked on a run that is over; "" before that."""
    if row.finished_at is None:
        return ""
    took_s: float | None = row.finished_at - row.started_at
    if row.epoch > 1:  # The journal tells how long no process worked on it.
        took_s = fold(await read_all(store, row.id)).duration_s
    return format_duration(took_s or 0.0)
