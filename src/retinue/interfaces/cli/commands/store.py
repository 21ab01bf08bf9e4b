"""`retinue store`: shows where the journal is, and copies runs to another store."""

from __future__ import annotations

import click
import msgspec

from retinue.domain.plural import plural
from retinue.interfaces.cli.commands.clean import size_text
from retinue.interfaces.cli.event_loop import async_command
from retinue.interfaces.cli.options import directory_option, json_flag
from retinue.interfaces.cli.terminal.output import print_error, print_json, print_line
from retinue.project import describe_store
from retinue.store_copy import copy_store


@click.group(invoke_without_command=True)
@directory_option
@json_flag("Print one JSON object.")
@click.pass_context
def store(ctx: click.Context, directory: str, as_json: bool) -> None:
    """Show where the journal of this directory is, its version and size; or copy its runs.

    It is a SQLite file in the project, or in Postgres if `store` in your settings, or
    RETINUE_STORE, names a server.

    Example: retinue store copy . postgresql://db.example/herons
    """
    if ctx.invoked_subcommand is None:
        _show(directory, as_json)


@async_command
async def _show(directory: str, as_json: bool) -> None:
    found = await describe_store(directory)
    if as_json:
        print_json(msgspec.structs.asdict(found))
        return
    schema = f", schema {found.schema}" if found.schema else ""
    print_line(f"{found.place}{schema}")
    if found.engine:
        print_line(
            f"{found.engine}, tables of version {found.version}; {plural(found.runs, 'run')},"
            f" {size_text(found.size_bytes)}"
        )
    else:
        print_line("Nothing is recorded there yet.")


@store.command()
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@directory_option
@json_flag("Print what was copied as one JSON object.")
@async_command
async def copy(source: str, target: str, directory: str, as_json: bool) -> int:
    """Copy the runs of a store to another one.

    Their memories, titles and reports are copied too. FROM and TO are a project's directory, for
    the SQLite file in it, or the address of a Postgres server, such as postgresql://HOST/NAME. A
    schema there is named after the project in -C, or by ?schema=NAME.

    A run keeps its hash chain, which is verified on both sides. Runs that were copied before are
    not copied again, so you can repeat the command. Runs that are at work, or that you have not
    started, are skipped; the exit code is then 1. If TO has one of the runs with other content,
    nothing is copied. FROM stays as it is. Work on a run in one of the stores only.

    Example: retinue store copy . postgresql://db.example/herons
    """
    found = await copy_store(source, target, directory)
    if as_json:
        print_json(msgspec.structs.asdict(found))
        return int(bool(found.skipped))
    for sentence in found.skipped:
        print_error(sentence)
    counts = {
        "event": found.events,
        "memory": found.memories,
        "title": found.titles,
        "report": found.reports,
    }
    others = "".join(f", {_counted(count, noun)}" for noun, count in counts.items() if count)
    where = f"from {found.source} to {found.target}"
    before = f" {plural(found.present, 'run')} had been copied before." if found.present else ""
    print_line(f"Copied {plural(found.runs, 'run')}{others} {where}.{before}")
    return int(bool(found.skipped))


def _counted(count: int, noun: str) -> str:
    return plural(count, noun) if noun != "memory" or count == 1 else f"{count:,} memories"
