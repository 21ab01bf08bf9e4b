"""`retinue cancel`: stops a run or one of its agents, also in another process."""

from __future__ import annotations

import asyncio

import click

from retinue.domain.agent_state import AgentState
from retinue.domain.remote_commands import Command, Verb, encode_command
from retinue.domain.run_state import RunState, fold
from retinue.errors import RunError
from retinue.interfaces.cli.event_loop import async_command
from retinue.interfaces.cli.options import agent_argument, directory_option, run_argument
from retinue.interfaces.cli.terminal.output import print_line
from retinue.ports.store import RunLocks, Store
from retinue.project import open_journal, open_run_locks
from retinue.runtime.core.clock import SystemClock
from retinue.runtime.history.audit import read_all
from retinue.runtime.history.follow import follow
from retinue.runtime.run.run import STOPPED_BY_USER


@click.command()
@run_argument
@agent_argument
@directory_option
@click.option(
    "--wait",
    "wait_s",
    default=10.0,
    show_default=True,
    metavar="S",
    help="How many seconds to wait for the end of the run or agent.",
)
@async_command
async def cancel(run: str, agent: str | None, directory: str, wait_s: float) -> None:
    """Cancel RUN, or one AGENT and its children.

    RUN may be running in another process, or be suspended.

    A cancelled agent stays cancelled: its parent is told, and cannot restart it. The first letters
    of the run's id are enough; AGENT is an id such as a2, or a path such as root/tester.1.

    Example: retinue cancel k3f9 a2
    """
    async with open_journal(directory) as store:
        row = await store.run(run)
        view = fold(await read_all(store, row.id))
        target = view.root if agent is None else view.agent(agent)
        if row.status is not None:
            raise RunError(f"Run {row.id} has already ended ({row.status}).")
        assert target is not None, "a run in the journal has a root"
        if target.status is not None:
            raise RunError(f"{target.id} has already ended ({target.status}).")
        active = await _stop(store, open_run_locks(directory), view, target, wait_s)
    if not active:
        from retinue.app import cancel_suspended

        await cancel_suspended(directory, view.id, target.id)
    what = f"Run {row.id}" if target is view.root else f"{target.id} ({target.path})"
    if not active or target.error == STOPPED_BY_USER:
        print_line(f"{what} was cancelled.")
    else:
        print_line(f"{what} ended by itself: {target.status}.")


async def _stop(
    store: Store, run_locks: RunLocks, view: RunState, target: AgentState, wait_s: float
) -> bool:
    """Tell the run's process to stop `target`, and wait for its end. False without a process.

    Raises RunError.
    """
    command = Command(verb=Verb.CANCEL, agent_id=target.id, by="cli")
    if not run_locks.send(view.id, encode_command(command)):
        return False
    try:
        async with asyncio.timeout(wait_s):
            events = follow(
                store, SystemClock(), view.id, is_active=run_locks.is_held, after=view.last_seq
            )
            async for event in events:
                view.apply(event)
                if target is not view.root and target.closed_at is not None:
                    return True
    except TimeoutError:
        raise RunError(
            f"The process of run {view.id} was asked to stop {target.id}, and has not done so in"
            f" {wait_s:g} s. It may be suspended."
        ) from None
    return target.closed_at is not None
