"""`retinue metrics`: prints numbers about all runs, for Prometheus."""

from __future__ import annotations

import sys

import click

from retinue.interfaces.cli.event_loop import async_command
from retinue.interfaces.cli.options import directory_option
from retinue.interfaces.view.formatting import without_controls
from retinue.project import has_journal, open_journal, open_run_locks, project_root
from retinue.telemetry.journal_metrics import JournalMetrics


@click.command()
@directory_option
@async_command
async def metrics(directory: str) -> None:
    """Print metrics of all runs of this directory in Prometheus' format.

    The metrics are tokens, cost, durations and failures, by model, role and tool. Runs that were
    cleaned away are not in them. `retinue serve` offers the same at /metrics.

    Example: retinue metrics > /var/lib/node_exporter/retinue.prom
    """
    if not await has_journal(project_root(directory)):
        return  # Nothing has run yet, which a scraper should not take for a failure.
    async with open_journal(directory) as store:
        text = await JournalMetrics().text(store, open_run_locks(directory).is_held)
    sys.stdout.write(without_controls(text))
