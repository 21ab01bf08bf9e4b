"""`retinue clean`: removes old data of runs, and reports how much disk the rest takes."""

from __future__ import annotations

import click

from retinue.cleanup import clean_project
from retinue.domain.cleanup_report import DAY_S, CleanupReport
from retinue.interfaces.cli.event_loop import async_command
from retinue.interfaces.cli.options import directory_option
from retinue.interfaces.cli.terminal.output import print_line
from retinue.interfaces.view.formatting import pad

UNITS = ("B", "KB", "MB", "GB", "TB")


@click.command()
@directory_option
@click.option(
    "--older-than",
    "days",
    type=click.FloatRange(min=0),
    metavar="DAYS",
    help="Remove everything older, instead of using the age of each kind.",
)
@click.option(
    "--unfinished", is_flag=True, help="Also remove journals of runs that could be resumed."
)
@click.option("--dry-run", is_flag=True, help="Only print what would be removed.")
@async_command
async def clean(directory: str, days: float | None, unfinished: bool, dry_run: bool) -> None:
    """Remove old data of runs in this directory, and print how much disk the rest takes.

    Removes copies that a killed process left behind (after 7 days), changes kept for undo (after
    90), and file versions that neither needs (after 14). This also happens once a day by itself.
    Data in use is never removed.

    Only this command removes journals: after 180 days, or keep_journals_days in your settings. The
    outcome of each run stays, with the hashes that `audit` checks. A session is as old as its last
    run.

    Example: retinue clean --dry-run
    """
    older_s = None if days is None else days * DAY_S
    reports = await clean_project(
        directory, older_s=older_s, unfinished=unfinished, dry_run=dry_run
    )
    for report in reports:
        print_line(_report_line(report, verb="would remove" if dry_run else "removed"))


def _report_line(report: CleanupReport, *, verb: str) -> str:
    size = f", {size_text(report.size_bytes)}" if report.size_bytes else ""
    freed = f" ({size_text(report.expired_bytes)})" if report.expired_bytes else ""
    note = f"; {report.note}" if report.note else ""
    name = pad(report.kind, 28)
    return f"{name}{report.items:,}{size}; {verb}: {report.expired_items:,}{freed}{note}"


def size_text(size_bytes: int) -> str:
    """A size for people: 512 B, 34.1 MB."""
    size = float(size_bytes)
    for unit in UNITS:
        if size < 1000 or unit == UNITS[-1]:
            break
        size /= 1000
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
