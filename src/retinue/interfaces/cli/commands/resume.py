"""`retinue resume`: a suspended or interrupted run continues."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import click

from retinue.domain.result import Status
from retinue.domain.run_state import fold
from retinue.errors import RetinueError, RunError, UsageError
from retinue.interfaces.cli.invocation import run_in_runtime
from retinue.interfaces.cli.options import optional_run_argument, resume_options
from retinue.interfaces.cli.terminal.console import Console
from retinue.interfaces.cli.terminal.output import print_error
from retinue.interfaces.view.run_status import candidate_models
from retinue.ports.store import RunRow, Store
from retinue.project import open_journal, open_run_locks
from retinue.runtime.history.recovery import recorded_options
from retinue.runtime.history.session import user_runs
from retinue.runtime.runtime import Runtime

ALL = 1_000_000
INTERRUPTED = 130
IN_USE = (
    "There is no run to resume: another process works on run {run_id}. `retinue watch {run_id}`"
    " follows it. If the process is stopped (Ctrl-Z), continue it with `fg`, or end it and resume"
    " the run."
)


@click.command()
@optional_run_argument
@click.option(
    "--all", "every", is_flag=True, help="Resume every run that no process works on, in turn."
)
@resume_options
def resume(run: str | None, every: bool, **options: Any) -> int:
    """Resume RUN, which was interrupted or whose process is gone.

    Without RUN, resume the latest such run; `retinue runs` lists them. Finished children are not
    run again, replies that were paid for are not requested again, and budgets continue from what
    was spent.

    Example: retinue resume k3f9
    """
    if not every:
        return _resume(*asyncio.run(_find_run(options["directory"], run)), options)
    if run is not None:
        raise UsageError(f"--all resumes every run, {run} only one; use one of them.")
    codes = []
    found = asyncio.run(_find_all(options["directory"]))
    for number, run_id in enumerate(found, 1):
        print_error(f"Resuming run {run_id}, {number} of {len(found)}.")
        try:
            codes.append(_resume(*asyncio.run(_find_run(options["directory"], run_id)), options))
        except RetinueError as error:  # Another process may have been faster, or changed it.
            print_error(f"Run {run_id}: {error}")
            codes.append(1)
        if codes[-1] == INTERRUPTED:
            break
    return max(codes)


def _resume(run_id: str, recorded: Mapping[str, Any], options: Mapping[str, Any]) -> int:
    async def work(runtime: Runtime, console: Console) -> list[Status]:
        async for event in runtime.events(run_id):
            console.on_past_event(event)
        result = await runtime.resume(run_id)
        if result.plan is not None:
            console.print_report(result.plan)
            return [result.status]
        if not result.results:
            console.print_result(result)
            return [result.status, *(failure.status for failure in result.failures)]
        raced = {one.agent_id for race in result.races for one in race.results}
        others = [one for one in result.results if one.agent_id not in raced]
        if len(result.races) == 1 and not others:
            state = fold([event async for event in runtime.events(run_id)])
            console.print_race(result.races[0], candidate_models(state))
        else:
            console.print_results(list(result.results))
        return [race.status for race in result.races] + [other.status for other in others]

    arguments = {
        "directory": options["directory"],
        **recorded,
        "unsafe_no_sandbox": options["unsafe_no_sandbox"],
        "unsafe_writable_install": options["unsafe_writable_install"],
        "cluster": options["cluster"],
    }
    return run_in_runtime(options, arguments, work)


async def _unfinished(directory: str, store: Store) -> tuple[list[RunRow], list[RunRow]]:
    """Runs without an outcome, the latest first; and those of them that no process works on."""
    is_active = open_run_locks(directory).is_held
    rows = await user_runs(store, limit=ALL)
    unfinished = [row for row in rows if row.status is None and not row.pruned]
    return unfinished, [row for row in unfinished if not is_active(row.id)]


async def _find_all(directory: str) -> list[str]:
    """The runs of this user to resume, the oldest first. Raises RunError."""
    async with open_journal(directory) as store:
        _, left = await _unfinished(directory, store)
        own = [row.id for row in reversed(left) if row.sealed]
        if not own:
            raise RunError("There is no run to resume.")
        return own


async def _find_run(directory: str, run: str | None) -> tuple[str, dict[str, Any]]:
    """The run to resume, and its options. Raises RunError if there is none."""
    async with open_journal(directory) as store:
        if run is None:
            unfinished, left = await _unfinished(directory, store)
            row = next((row for row in left if row.sealed), left[0] if left else None)
            if row is None and unfinished:
                raise RunError(IN_USE.format(run_id=unfinished[0].id))
            if row is None:
                raise RunError("There is no run to resume.")
        else:
            row = await store.run(run)
        return row.id, await recorded_options(store, row)
