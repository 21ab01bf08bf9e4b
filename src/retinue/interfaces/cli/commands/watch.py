"""The commands that reach a run in whichever process it is: watch, cancel."""

from __future__ import annotations

import asyncio
import sys

import click

from retinue.domain.agent_state import AgentState
from retinue.domain.result import Status
from retinue.domain.run_state import RunState, fold
from retinue.errors import RunError
from retinue.interfaces.cli.options import agent_argument, as_json, directory, run_argument
from retinue.interfaces.cli.terminal.console import (
    JsonLines,
    Progress,
    draws,
    exit_code,
    perform,
    styles,
)
from retinue.interfaces.cli.terminal.lines import Lines
from retinue.interfaces.cli.terminal.live_tree import LiveTree
from retinue.interfaces.cli.terminal.output import say, width
from retinue.interfaces.cli.terminal.screen import Screen
from retinue.interfaces.view.result_blocks import agent_block
from retinue.ports.run_lock import RunLocks
from retinue.ports.store import Store
from retinue.project import open_journal, open_run_locks
from retinue.runtime.core.clock import SystemClock
from retinue.runtime.history.audit import read_all
from retinue.runtime.history.follow import follow
from retinue.runtime.run.run import CANCEL, STOPPED_BY_USER

ABANDONED = (
    "Run {id} was abandoned: it is not finished, and the process that worked on it is gone."
    " `retinue resume {id}` goes on with it."
)

INTERRUPTED = "retinue: interrupted; to go on: retinue resume {id}"


@click.command()
@run_argument
@directory
@as_json
def watch(run: str, directory: str, as_json: bool) -> int:
    """Follow RUN, which may be that of another terminal, until it ends; its beginning is enough.

    A run that is over is told from its beginning. The exit code is that of the run. Ctrl-C ends
    the watching and not the run.

    Example: retinue watch k3f9
    """
    progress: Progress = Lines(err=False)
    if as_json:
        progress = JsonLines()
    elif draws(sys.stdout):
        screen = Screen(sys.stdout, styles())
        progress = LiveTree(screen, hint="Ctrl-C leaves it", stays=True)

    async def inside() -> int:
        view = RunState()
        async with open_journal(directory) as store, progress.shown():
            row = await store.run(run)
            held = open_run_locks(directory).is_held
            async for event in follow(store, SystemClock(), row.id, written=held):
                view.apply(event)
                progress.listen(event)
            progress.finish()
        if not as_json and view.root is not None:
            _print_end(view.root)
        if view.suspended is not None:
            if not as_json:
                click.echo(INTERRUPTED.format(id=row.id), err=True)
            return exit_code([Status.CANCELLED])
        if view.status is None:
            raise RunError(ABANDONED.format(id=row.id))
        return exit_code([view.status])

    return perform(inside())


def _print_end(root: AgentState) -> None:
    for line in agent_block(root, width=width(sys.stdout)):
        click.echo(styles().styled(line))


@click.command()
@run_argument
@agent_argument
@directory
@click.option(
    "--wait", "wait_s", default=10.0, show_default=True, metavar="S", help="Seconds to wait for it."
)
def cancel(run: str, agent: str | None, directory: str, wait_s: float) -> None:
    """Stop RUN, or one AGENT of it and all below it, in whichever process it is at work.

    What is stopped stays so: the agent's parent is told, and cannot revive it. RUN may be the
    beginning of an id; AGENT is an id such as a2, or a path such as root/tester.1.

    Example: retinue cancel k3f9 a2
    """

    async def inside() -> None:
        async with open_journal(directory) as store:
            row = await store.run(run)
            view = fold(await read_all(store, row.id))
            target = view.root if agent is None else view.agent(agent)
            if row.status is not None:
                raise RunError(f"Run {row.id} is over ({row.status}); there is nothing to stop.")
            assert target is not None, "a run that is on record has a root"
            if target.status is not None:
                raise RunError(
                    f"{target.id} has ended ({target.status}); there is nothing to stop."
                )
            await _stop(store, open_run_locks(directory), view, target, wait_s)
        what = f"Run {row.id}" if target is view.root else f"{target.id} ({target.path})"
        if target.error == STOPPED_BY_USER:
            say(f"{what} was stopped.")
        else:
            say(f"{what} ended by itself: {target.status}.")

    perform(inside())


async def _stop(
    store: Store, run_locks: RunLocks, view: RunState, target: AgentState, wait_s: float
) -> None:
    """Have an agent stopped by the process that works on it, and wait for it. Raises RunError."""
    if not run_locks.send(view.id, f"{CANCEL} {target.id}"):
        raise RunError(ABANDONED.format(id=view.id) + " There is nothing to stop.")
    try:
        async with asyncio.timeout(wait_s):
            events = follow(
                store, SystemClock(), view.id, written=run_locks.is_held, after=view.last_seq
            )
            async for event in events:
                view.apply(event)
                if target is not view.root and target.closed_at is not None:
                    return
    except TimeoutError:
        raise RunError(
            f"The process that works on run {view.id} was told to stop {target.id}, and has not in"
            f" {wait_s:g} s; it may be suspended."
        ) from None
    if target.closed_at is None:
        raise RunError(ABANDONED.format(id=view.id) + " There is nothing to stop.")
