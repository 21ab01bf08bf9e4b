"""The command that removes what nobody needs any more, and tells how much is kept."""

from __future__ import annotations

import click

from retinue.cleanup import clean_project
from retinue.domain.cleanup_report import DAY_S, CleanupReport
from retinue.interfaces.cli.options import directory
from retinue.interfaces.cli.terminal.console import perform
from retinue.interfaces.cli.terminal.output import say
from retinue.interfaces.view.formatting import fill

_UNITS = ("B", "KB", "MB", "GB", "TB")


@click.command()
@directory
@click.option(
    "--older-than",
    "days",
    type=click.FloatRange(min=0),
    metavar="DAYS",
    help="Remove all that is older; left out, each kind has an age of its own.",
)
@click.option(
    "--unfinished", is_flag=True, help="Also the journals of runs that could still be resumed."
)
@click.option("--dry-run", is_flag=True, help="Only tell how much there is.")
def clean(directory: str, days: float | None, unfinished: bool, dry_run: bool) -> None:
    """Remove what is kept of runs here and is old, and tell how much disk all of it takes.

    That is copies of trees that a killed process has left behind (after 7 days), changes that could
    be undone (90), and versions of files that neither needs (14). These go by themselves once a
    day. What is in use is never touched.

    The journals of runs go only by this command (after 180 days, or keep_journals_days in your
    settings). Of each its outcome is left, with the hashes of contracts and of the journal's end,
    for `show` and `audit`. A session is as old as its last run.

    Example: retinue clean --dry-run
    """

    async def inside() -> None:
        older_s = None if days is None else days * DAY_S
        reports = await clean_project(
            directory, older_s=older_s, unfinished=unfinished, dry_run=dry_run
        )
        for report in reports:
            say(_line(report, gone="would go" if dry_run else "removed"))

    perform(inside())


def _line(report: CleanupReport, *, gone: str) -> str:
    size = f", {size_text(report.size_bytes)}" if report.size_bytes else ""
    freed = f" ({size_text(report.expired_bytes)})" if report.expired_bytes else ""
    note = f"; {report.note}" if report.note else ""
    expired = f"{gone}: {report.expired_items:,}{freed}{note}"
    return f"{fill(report.kind, 28)}{report.items:,}{size}; {expired}"


def size_text(size_bytes: int) -> str:
    """Bytes for people: 512 B, 34.1 MB."""
    size = float(size_bytes)
    for unit in _UNITS:
        if size < 1000 or unit == _UNITS[-1]:
            break
        size /= 1000
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
