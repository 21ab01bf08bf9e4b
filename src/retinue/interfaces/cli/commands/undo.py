"""`retinue undo` and `retinue redo`: revert a run's changes to the files, or apply them again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import click

from retinue.errors import RunError
from retinue.interfaces.cli.options import agent_argument, directory_option, run_argument
from retinue.interfaces.cli.terminal.interrupts import run_async
from retinue.interfaces.cli.terminal.output import print_line
from retinue.interfaces.view.formatting import plural
from retinue.project import open_run_undo
from retinue.runtime.history.undo import UndoRedo, UndoResult


@click.command()
@run_argument
@agent_argument
@directory_option
@click.option("--to", type=click.IntRange(min=0), metavar="N", help="Keep the steps up to N.")
def undo(run: str, agent: str | None, directory: str, to: int | None) -> None:
    """Undo the changes that RUN made to the files.

    With AGENT, undo only the changes of that agent and its children. Changes made by shell commands
    are undone too. Your later edits stay; if one is in the way, nothing is undone and the files are
    named. `retinue diff RUN` lists the steps with their numbers.

    Example: retinue undo k3f9 a2
    """
    _revise(directory, run, agent, "undone", lambda changes: changes.undo(agent, to=to))


@click.command()
@run_argument
@agent_argument
@directory_option
def redo(run: str, agent: str | None, directory: str) -> None:
    """Apply undone changes of RUN again.

    With AGENT, apply only the changes of that agent and its children. If AGENT failed, this merges
    its unmerged changes, without running the checks.

    Example: retinue redo k3f9 a2
    """
    _revise(directory, run, agent, "redone", lambda changes: changes.redo(agent))


def _revise(
    directory: str,
    run: str,
    agent: str | None,
    done: str,
    revise: Callable[[UndoRedo], Awaitable[UndoResult]],
) -> None:
    async def inside() -> None:
        async with open_run_undo(directory, run, agent=agent) as changes:
            outcome = await revise(changes)
        if not outcome.ok:
            raise RunError(
                f"Nothing was {done}: these changes are in the way: {', '.join(outcome.refused)}."
                " Undo them first, or edit the files yourself."
            )
        for file in outcome.files:
            print_line(str(file))
        print_line(f"{plural(len(outcome.files), 'file')} {done}.")

    run_async(inside())
