"""`retinue diff`: shows what a run changed in the files."""

from __future__ import annotations

import sys

import click

from retinue.interfaces.cli.event_loop import async_command
from retinue.interfaces.cli.options import agent_argument, directory_option, json_flag, run_argument
from retinue.interfaces.cli.terminal.output import print_json, print_line, print_text
from retinue.interfaces.view.file_diff import change_heading
from retinue.interfaces.view.formatting import without_controls
from retinue.project import open_run_changes

COLORS = {"+": "green", "-": "red", "@": "cyan"}


@click.command()
@run_argument
@agent_argument
@directory_option
@click.option("--raw", is_flag=True, help="Print a patch for `git apply`, as it is.")
@json_flag("Print one JSON object per change.")
@async_command
async def diff(run: str, agent: str | None, directory: str, raw: bool, as_json: bool) -> None:
    """Show the changes that RUN made to the files, step by step.

    With AGENT, show only the changes of that agent and its children. Undone changes are marked, and
    so are changes of failed children, which were never merged. Control characters in files are left
    out, except with --raw.

    Example: retinue diff k3f9 a2
    """
    async with open_run_changes(directory, run) as run_changes:
        changes = await run_changes.diff(agent)
    for change in changes:
        if as_json:
            print_json(change)
        else:
            print_line(f"# {change_heading(change)}")
            _print_patch(change.patch, raw=raw)


def _print_patch(patch: str, *, raw: bool) -> None:
    if raw or not sys.stdout.isatty():
        click.echo(patch if raw else without_controls(patch), nl=False)
        return
    for line in patch.splitlines():
        color = None if line.startswith(("+++", "---")) else COLORS.get(line[:1])
        if color is None:
            print_text(line)
        else:
            click.secho("".join(c for c in line if c.isprintable() or c == "\t"), fg=color)
