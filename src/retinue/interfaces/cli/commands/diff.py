"""`retinue diff`: shows what a run changed in the files."""

from __future__ import annotations

import sys

import click

from retinue.interfaces.cli.chosen_run import chosen_run
from retinue.interfaces.cli.event_loop import async_command
from retinue.interfaces.cli.options import (
    agent_argument,
    directory_option,
    json_flag,
    optional_run_argument,
)
from retinue.interfaces.cli.terminal.output import print_error, print_json, print_line, width
from retinue.interfaces.cli.terminal.screen import can_draw, print_lines
from retinue.interfaces.view.file_diff import change_heading, diff_lines
from retinue.interfaces.view.formatting import without_controls
from retinue.project import open_run_changes


@click.command()
@optional_run_argument
@agent_argument
@directory_option
@click.option("--raw", is_flag=True, help="Print a patch for `git apply`, as it is.")
@json_flag("Print one JSON object per change.")
@async_command
async def diff(
    run: str | None, agent: str | None, directory: str, raw: bool, as_json: bool
) -> None:
    """Show the changes that RUN made to the files, step by step.

    Without RUN, show those of the last run. With AGENT, show only the changes of that agent and its
    children. Undone changes are marked, and so are changes of failed children, which were never
    merged. Control characters in files are left out, except with --raw.

    Example: retinue diff k3f9 a2
    """
    run, agent = await chosen_run(directory, run, agent)
    async with open_run_changes(directory, run) as run_changes:
        changes = await run_changes.diff(agent)
        run_id = run_changes.state.id
    if not changes and sys.stdout.isatty():
        print_error(f"{f'Agent {agent}' if agent else f'Run {run_id}'} has changed no files.")
    for change in changes:
        if as_json:
            print_json(change)
        elif can_draw(sys.stdout) and not raw:
            print_lines(diff_lines(change, width(sys.stdout)))
        else:
            print_line(f"# {change_heading(change)}")
            click.echo(change.patch if raw else without_controls(change.patch), nl=False)
