"""`retinue watch`: follows a run of this or another process."""

from __future__ import annotations

import sys

import click

from retinue.domain.result import Status
from retinue.domain.run_state import RunState
from retinue.errors import RunError
from retinue.interfaces.cli.event_loop import async_command
from retinue.interfaces.cli.exit_codes import exit_code
from retinue.interfaces.cli.options import directory_option, json_events_option, run_argument
from retinue.interfaces.cli.terminal.console import make_progress, resume_hint
from retinue.interfaces.cli.terminal.output import width
from retinue.interfaces.cli.terminal.screen import print_lines
from retinue.interfaces.view.result_blocks import agent_block
from retinue.interfaces.view.run_status import abandoned_message
from retinue.project import open_journal, open_run_locks
from retinue.runtime.core.clock import SystemClock
from retinue.runtime.history.follow import follow


@click.command()
@run_argument
@directory_option
@json_events_option
@async_command
async def watch(run: str, directory: str, as_json: bool) -> int:
    """Follow RUN until it ends, in this or another terminal.

    A finished run is shown from its start. The exit code is that of the run. Ctrl-C stops watching;
    the run continues. The first letters of the run's id are enough.

    Example: retinue watch k3f9
    """
    hint = "Ctrl-C stops watching"
    progress = make_progress(sys.stdout, as_json=as_json, hint=hint, keep_final_tree=True)
    view = RunState()
    async with open_journal(directory) as store, progress.live():
        row = await store.run(run)
        is_active = open_run_locks(directory).is_held
        async for event in follow(store, SystemClock(), row.id, is_active=is_active):
            view.apply(event)
            progress.on_event(event)
        progress.finish()
    if not as_json and view.root is not None:
        print_lines(agent_block(view.root, width=width(sys.stdout)))
    if view.suspend_reason is not None:
        if not as_json:
            click.echo(resume_hint("interrupted", row.id, directory), err=True)
        return exit_code([Status.CANCELLED])
    if view.status is None:
        raise RunError(abandoned_message(row.id))
    return exit_code([view.status])
