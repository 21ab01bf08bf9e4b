"""The commands about what a run has done to the files: diff, undo, redo."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable

import click
import msgspec

from retinue.errors import RunError
from retinue.interfaces.cli.options import agent_argument, directory, run_argument
from retinue.interfaces.cli.terminal.console import perform
from retinue.interfaces.cli.terminal.output import say, write
from retinue.interfaces.view.file_diff import change_head
from retinue.interfaces.view.formatting import some
from retinue.project import open_run_changes, open_run_undo
from retinue.runtime.history.undo import UndoRedo, UndoResult

one_object = click.option("--json", "as_json", is_flag=True, help="One JSON object per change.")
_COLOURS = {"+": "green", "-": "red", "@": "cyan"}


@click.command()
@run_argument
@agent_argument
@directory
@one_object
def diff(run: str, agent: str | None, directory: str, as_json: bool) -> None:
    """Show what RUN, or one AGENT of it and all below it, has done to the files, step by step.

    What was undone since is marked, and so is the work of children that failed, which was never
    brought in. The output is a patch that `git apply` reads.

    Example: retinue diff k3f9 a2
    """

    async def inside() -> None:
        async with open_run_changes(directory, run) as past:
            changes = await past.diff(agent)
        for change in changes:
            if as_json:
                click.echo(msgspec.json.encode(change))
            else:
                say(f"# {change_head(change)}")
                _print_patch(change.patch)

    perform(inside())


def _print_patch(patch: str) -> None:
    if not sys.stdout.isatty():
        click.echo(patch, nl=False)
        return
    for line in patch.splitlines():
        colour = None if line.startswith(("+++", "---")) else _COLOURS.get(line[:1])
        if colour is None:
            write(line)
        else:
            click.secho("".join(c for c in line if c.isprintable() or c == "\t"), fg=colour)


@click.command()
@run_argument
@agent_argument
@directory
@click.option("--to", type=click.IntRange(min=0), metavar="N", help="Keep the steps up to N.")
def undo(run: str, agent: str | None, directory: str, to: int | None) -> None:
    """Take back what RUN, or one AGENT of it and all below it, has done to the files.

    What commands have changed is taken back too. What you or others have changed since stays; where
    it is in the way, nothing is undone and the files are named. The number of a step is in
    `retinue diff RUN`.

    Example: retinue undo k3f9 a2
    """
    _rewrite(directory, run, agent, "undone", lambda found: found.undo(agent, to=to))


@click.command()
@run_argument
@agent_argument
@directory
def redo(run: str, agent: str | None, directory: str) -> None:
    """Make again what was undone of RUN, or of one AGENT of it and all below it.

    Of an AGENT that failed, this brings in the work that was kept of it, unchecked.

    Example: retinue redo k3f9 a2
    """
    _rewrite(directory, run, agent, "redone", lambda found: found.redo(agent))


def _rewrite(
    directory: str,
    run: str,
    agent: str | None,
    done: str,
    work: Callable[[UndoRedo], Awaitable[UndoResult]],
) -> None:
    async def inside() -> None:
        async with open_run_undo(directory, run, agent=agent) as found:
            rewritten = await work(found)
        if not rewritten.ok:
            raise RunError(
                f"Nothing was {done}, for this is in the way: {', '.join(rewritten.refused)}. Undo"
                " or settle that first, or edit the files yourself."
            )
        for file in rewritten.files:
            say(str(file))
        say(f"{some(len(rewritten.files), 'file')} {done}.")

    perform(inside())
