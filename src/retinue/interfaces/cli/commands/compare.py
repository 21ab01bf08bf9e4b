"""`retinue compare`: two runs side by side."""

from __future__ import annotations

from collections.abc import Sequence

import click

from retinue.domain.events import Event
from retinue.domain.run_state import RunState, fold
from retinue.interfaces.cli.event_loop import async_command
from retinue.interfaces.cli.options import completion, directory_option, json_flag
from retinue.interfaces.cli.terminal.output import print_json, print_line
from retinue.interfaces.view.formatting import aligned, clip, format_cost, format_duration, one_line
from retinue.project import existing_file, open_run, open_run_changes
from retinue.runtime.history.audit import read_all
from retinue.runtime.history.comparison import (
    Divergence,
    FileDifferences,
    Moment,
    RunFigures,
    compare_files,
    diverge,
    figures,
)
from retinue.runtime.history.undo import ChangePatch

MAX_TEXT = 200


@click.command()
@click.argument("first", metavar="A", shell_complete=completion("complete_run"))
@click.argument("second", metavar="B", shell_complete=completion("complete_run"))
@directory_option
@json_flag("Print the comparison as one JSON object.")
@async_command
async def compare(first: str, second: str, directory: str, as_json: bool) -> None:
    """Compare the runs A and B: where they diverge, what they used, which files differ.

    A and B are ids of runs, or files that `retinue export` has written. Such a file does not say
    which files the run changed. Undone and unmerged changes count as well.

    Example: retinue compare k3f9 m2x7
    """
    (events, ours, our_changes), (others, theirs, their_changes) = [
        await _read(directory, run) for run in (first, second)
    ]
    pruned = [state.id for state in (ours, theirs) if state.pruned]
    divergence = None if pruned else diverge(events, others)
    files = compare_files(our_changes, their_changes)
    one, other = figures(ours), figures(theirs)
    if as_json:
        found = {"first": one, "second": other, "diverges": divergence, "files": files}
        print_json(found | {"pruned": pruned})
        return
    for line in aligned(list(zip(*map(_column, (None, one, other)), strict=True))):
        print_line(line)
    if pruned:
        print_line(f"The journal of run {pruned[0]} was cleaned away, with its conversation.")
    else:
        _print_divergence(divergence, (one.run_id, other.run_id))
    _print_files(files, (one.run_id, other.run_id))


async def _read(
    directory: str, run: str
) -> tuple[Sequence[Event], RunState, Sequence[ChangePatch]]:
    async with open_run(directory, run) as (store, name):
        row = await store.run(name)
        events = await read_all(store, row.id)
    state = fold(events)
    # Without changes, git is not needed.
    changed = any(a.change_numbers or a.unmerged_files for a in state.agents.values())
    if not changed or existing_file(run) is not None:
        return events, state, ()
    async with open_run_changes(directory, row.id) as changes:
        return events, state, await changes.diff()


def _column(run: RunFigures | None) -> Sequence[str]:
    """The column of a run; of None, the names of the rows."""
    if run is None:
        return (
            *("run", "outcome", "model", "agents", "turns", "tool calls", "tokens", "billed"),
            *("cost", "time", "checks"),
        )
    return (
        run.run_id,
        "not finished" if run.status is None else str(run.status),
        run.model,
        f"{run.agents:,}",
        f"{run.turns:,}",
        f"{run.tool_calls:,}",
        f"{run.tokens:,}",
        f"{run.billed_tokens:,}",
        format_cost(run.cost_usd) or "-",
        "-" if run.duration_s is None else format_duration(run.duration_s),
        f"{run.checks_passed} of {run.checks} passed" if run.checks else "-",
    )


def _print_divergence(found: Divergence | None, names: tuple[str, str]) -> None:
    if found is None:
        print_line("They do not diverge: every agent did and said the same.")
        return
    print_line(f"They diverge at {found.agent}:")
    for name, moment in zip(names, (found.first, found.second), strict=True):
        print_line(f"  {name} {_shown(moment)}")


def _shown(moment: Moment | None) -> str:
    if moment is None:
        return "has no further step"
    where = f"event {moment.seq}" + (f", turn {moment.turn}" if moment.turn else "")
    return f"{where}: {clip(one_line(moment.text), MAX_TEXT)}"


def _print_files(files: FileDifferences, names: tuple[str, str]) -> None:
    for label, paths in (
        ("Changed differently", files.different),
        (f"Changed by {names[0]} only", files.only_first),
        (f"Changed by {names[1]} only", files.only_second),
        ("Changed to the same content", files.same),
    ):
        if paths:
            print_line(f"{label}: {', '.join(paths)}")
