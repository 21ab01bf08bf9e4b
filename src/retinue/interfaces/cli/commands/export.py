"""`retinue export`: writes a run to a file."""

from __future__ import annotations

from pathlib import Path

import click

from retinue.interfaces.cli.event_loop import async_command
from retinue.interfaces.cli.options import directory_option, run_argument
from retinue.interfaces.cli.terminal.output import print_line
from retinue.project import export_journal


@click.command()
@run_argument
@click.option("-o", "file", metavar="FILE", help="The file to write.  [default: RUN.retinue]")
@directory_option
@async_command
async def export(run: str, file: str | None, directory: str) -> None:
    """Write RUN to one file, which `show` and `audit` read on any machine.

    The file contains everything that the agents were told, read and said.

    Example: retinue export k3f9 -o run.retinue
    """
    target = await export_journal(directory, run, None if file is None else Path(file))
    print_line(f"Written to {target}. Show it with: retinue show {target}")
