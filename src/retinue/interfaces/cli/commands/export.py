"""The command that gives a run away: export."""

from __future__ import annotations

from pathlib import Path

import click

from retinue.interfaces.cli.options import directory, run_argument
from retinue.interfaces.cli.terminal.console import perform
from retinue.interfaces.cli.terminal.output import say
from retinue.project import export_journal


@click.command()
@run_argument
@click.option("-o", "file", metavar="FILE", help="Where to; RUN.retinue if not said.")
@directory
def export(run: str, file: str | None, directory: str) -> None:
    """Write RUN to one file, which `show` and `audit` read on any machine.

    Everything is in it that agents were told, read and said.

    Example: retinue export k3f9 -o run.retinue
    """

    async def inside() -> None:
        target = await export_journal(directory, run, None if file is None else Path(file))
        say(f"Written to {target}; look at it with: retinue show {target}")

    perform(inside())
