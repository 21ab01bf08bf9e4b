"""`retinue undo` and `retinue redo`: revert a run's changes to the files, or apply them again."""

from __future__ import annotations

import click

from retinue.domain.plural import plural
from retinue.interfaces.cli.chosen_run import chosen_run
from retinue.interfaces.cli.event_loop import async_command
from retinue.interfaces.cli.options import (
    agent_argument,
    directory_option,
    optional_run_argument,
    unsafe_writable_install_option,
)
from retinue.interfaces.cli.terminal.output import print_line
from retinue.project import open_run_undo
from retinue.runtime.history.undo import UndoResult


@click.command()
@optional_run_argument
@agent_argument
@directory_option
@click.option("--to", type=click.IntRange(min=0), metavar="N", help="Keep the steps up to N.")
@unsafe_writable_install_option
@async_command
async def undo(
    run: str | None,
    agent: str | None,
    directory: str,
    to: int | None,
    unsafe_writable_install: bool,
) -> None:
    """Undo the changes that RUN made to the files.

    Without RUN, it is the last one. With AGENT, undo only the changes of that agent and its
    children. Changes made by shell commands are undone too. Your later edits stay; if one
    conflicts, nothing is undone and the error names the files. `retinue diff RUN` lists the steps
    with their numbers.

    Example: retinue undo k3f9 a2
    """
    run, agent = await chosen_run(directory, run, agent)
    async with open_run_undo(
        directory, run, agent=agent, writable_install=unsafe_writable_install
    ) as changes:
        outcome = await changes.undo(agent, to=to)
    _print_outcome(outcome, "undone")


@click.command()
@optional_run_argument
@agent_argument
@directory_option
@unsafe_writable_install_option
@async_command
async def redo(
    run: str | None, agent: str | None, directory: str, unsafe_writable_install: bool
) -> None:
    """Apply undone changes of RUN again.

    Without RUN, it is the last one. With AGENT, apply only the changes of that agent and its
    children. If AGENT failed, this merges its unmerged changes, without running the checks.

    Example: retinue redo k3f9 a2
    """
    run, agent = await chosen_run(directory, run, agent)
    async with open_run_undo(
        directory, run, agent=agent, writable_install=unsafe_writable_install
    ) as changes:
        outcome = await changes.redo(agent)
    _print_outcome(outcome, "redone")


def _print_outcome(outcome: UndoResult, done: str) -> None:
    outcome.check(done)
    for file in outcome.files:
        print_line(str(file))
    print_line(f"{plural(len(outcome.files), 'file')} {done}.")
