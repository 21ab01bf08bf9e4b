"""`retinue stats`: how well roles, models, tools and projects did."""

from __future__ import annotations

import sys

import click

from retinue.config.environment import Environment
from retinue.interfaces.cli.event_loop import async_command
from retinue.interfaces.cli.options import directory_option, json_objects_option
from retinue.interfaces.cli.terminal.output import print_json, print_table
from retinue.interfaces.view.formatting import format_cost, format_duration
from retinue.run_statistics import read_statistics
from retinue.telemetry.statistics import DIMENSIONS, Row


@click.command()
@directory_option
@click.option(
    "--by",
    type=click.Choice(DIMENSIONS),
    default="role",
    show_default=True,
    help="Compare roles, models, tools, kinds of runs, or all your projects.",
)
@click.option("-n", "limit", default=1_000, show_default=True, help="How many runs to read.")
@json_objects_option
@async_command
async def stats(directory: str, by: str, limit: int, as_json: bool) -> None:
    """Show how roles, models or tools did in the latest runs of this directory.

    With --by project, compare the latest runs of all your projects.

    SUCCESS is the share that completed. RETRIES are failed model calls, LIMITS and CONFLICTS count
    agents that a limit or a conflict ended. CACHE is the share of input tokens that the server had
    in its cache. Runs that were cleaned away are not counted. A terminal shows only columns that
    have a value.

    Example: retinue stats --by model
    """
    rows = await read_statistics(by, directory, Environment.current(), limit=limit)
    if as_json:
        print_json(*rows)
    elif by == "tool":
        print_table(("TOOL", "CALLS", "SUCCESS", "DENIED", "TIME"), list(map(_tool, rows)))
    else:
        heads = ("COUNT", "SUCCESS", "TOKENS", "CACHE", "COST", "TIME", "RETRIES", "LIMITS")
        table = [(by.upper(), *heads, "CONFLICTS", "REUSED"), *map(_agents, rows)]
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
