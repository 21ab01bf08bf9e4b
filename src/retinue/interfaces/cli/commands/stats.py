"""`retinue stats`: how well roles, models and tools did."""

from __future__ import annotations

import sys

import click

from retinue.interfaces.cli.event_loop import async_command
from retinue.interfaces.cli.options import directory_option, json_objects_option
from retinue.interfaces.cli.terminal.output import print_json, print_table
from retinue.interfaces.view.formatting import format_cost, format_duration
from retinue.project import open_journal
from retinue.runtime.history.audit import read_all
from retinue.telemetry.statistics import DIMENSIONS, Row, Statistics


@click.command()
@directory_option
@click.option(
    "--by",
    type=click.Choice(DIMENSIONS),
    default="role",
    show_default=True,
    help="Compare roles, models, tools, or kinds of runs.",
)
@click.option("-n", "limit", default=1_000, show_default=True, help="How many runs to read.")
@json_objects_option
@async_command
async def stats(directory: str, by: str, limit: int, as_json: bool) -> None:
    """Show how roles, models or tools did in the latest runs of this directory.

    SUCCESS is the share that completed. RETRIES are failed model calls, LIMITS and CONFLICTS count
    agents that a limit or a conflict ended. CACHE is the share of input tokens that the server had
    in its cache. Runs that were cleaned away are not counted. A terminal shows only columns that
    have a value.

    Example: retinue stats --by model
    """
    found = Statistics(by)
    async with open_journal(directory) as store:
        for row in await store.runs(limit=limit):
            if not row.pruned:
                found.add_run(await read_all(store, row.id))
    if as_json:
        print_json(*found.rows)
    elif by == "tool":
        print_table(("TOOL", "CALLS", "SUCCESS", "DENIED", "TIME"), list(map(_tool, found.rows)))
    else:
        heads = ("COUNT", "SUCCESS", "TOKENS", "CACHE", "COST", "TIME", "RETRIES", "LIMITS")
        table = [(by.upper(), *heads, "CONFLICTS", "REUSED"), *map(_agents, found.rows)]
        if sys.stdout.isatty():  # All columns would not fit into 80 cells.
            columns = [one for one in zip(*table, strict=True) if not {*one[1:]} <= {"-", "0"}]
            table = list(zip(*columns, strict=True))
        print_table(table[0], table[1:])


def _tool(row: Row) -> tuple[str, ...]:
    each = format_duration(row.seconds / row.count)
    return row.name, f"{row.count:,}", _percent(row.success), f"{row.denied:,}", each


def _agents(row: Row) -> tuple[str, ...]:
    return (
        row.name,
        f"{row.count:,}",
        _percent(row.success),
        f"{row.tokens_in + row.tokens_out:,}",
        _percent(row.cache_share),
        format_cost(row.cost_usd) if row.cost_usd else "-",
        format_duration(row.seconds / row.count) if row.count else "-",
        *(f"{number:,}" for number in (row.retries, row.limits, row.conflicts, row.cached)),
    )


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"
