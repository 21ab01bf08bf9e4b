"""`retinue sessions`: lists sessions, renames one, and deletes one."""

from __future__ import annotations

import sys
import time

import click

from retinue.cleanup import delete_session
from retinue.domain.plural import plural
from retinue.errors import ApprovalNeeded
from retinue.interfaces.cli.event_loop import async_command
from retinue.interfaces.cli.options import completion, directory_option, json_objects_option
from retinue.interfaces.cli.terminal.output import print_json, print_line, print_table
from retinue.interfaces.view.formatting import format_duration, one_line
from retinue.project import open_journal, rename_session
from retinue.runtime.history.session import list_sessions, session_entry

session_argument = click.argument(
    "session", metavar="SESSION", shell_complete=completion("complete_session")
)


@click.group(invoke_without_command=True)
@directory_option
@click.option("-n", "limit", default=20, show_default=True, help="How many sessions to list.")
@json_objects_option
@click.pass_context
def sessions(ctx: click.Context, directory: str, limit: int, as_json: bool) -> None:
    """List your sessions in this directory, the latest first; rename or delete one.

    A session is a conversation: a chain of runs. Continue one with `retinue -r SESSION`. The first
    letters of its id are enough.

    Example: retinue sessions rename k3f9 "Faster parser"
    """
    if ctx.invoked_subcommand is None:
        _list(directory, limit, as_json)


@async_command
async def _list(directory: str, limit: int, as_json: bool) -> None:
    async with open_journal(directory) as store:
        found = await list_sessions(store, limit=limit)
    if as_json:
        print_json(*found)
        return
    now = time.time()
    print_table(
        ("SESSION", "LAST USED", "RUNS", "TITLE"),
        [
            (
                session.id,
                f"{format_duration(now - session.last_run.started_at)} ago",
                f"{session.runs:,}",
                one_line(session.title),
            )
            for session in found
        ],
    )
    if not found and sys.stdout.isatty():
        print_line("There are no sessions here yet; `retinue` starts one.")


@sessions.command()
@session_argument
@click.argument("title", nargs=-1, required=True)
@directory_option
@async_command
async def rename(session: str, title: tuple[str, ...], directory: str) -> None:
    """Give SESSION another TITLE.

    Example: retinue sessions rename k3f9 Faster parser
    """
    shown = await rename_session(directory, session, " ".join(title))
    print_line(f"Session {session} is now called: {shown}")


@sessions.command()
@session_argument
@click.option("-y", "--yes", is_flag=True, help="Delete it without asking.")
@directory_option
@async_command
async def delete(session: str, yes: bool, directory: str) -> None:
    """Delete SESSION permanently: the journals of all its runs.

    The files that its agents changed stay as they are, but `undo` no longer knows the changes. The
    memories of agents stay too.

    Example: retinue sessions delete k3f9
    """
    async with open_journal(directory) as store:
        entry = session_entry((await store.session(session))[::-1])
    what = f"session {entry.id} ({plural(entry.runs, 'run')}: {one_line(entry.title)})"
    if not yes:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise ApprovalNeeded(f"Nothing was deleted. Confirm with --yes to delete {what}.")
        click.confirm(f"Delete {what} permanently?", abort=True, err=True)
    await delete_session(directory, entry.id)
    print_line(f"Deleted {what}.")
