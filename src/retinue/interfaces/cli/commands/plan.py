"""`retinue plan`: a planner writes a plan, a person reviews it, and it is executed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from retinue.domain.plan.plan import Plan
from retinue.domain.plan.plan_file import MAX_CHARS, parse, to_toml
from retinue.domain.result import Status
from retinue.errors import PlanError, UsageError
from retinue.interfaces.cli.invocation import run_arguments, run_in_runtime
from retinue.interfaces.cli.options import batch_options, run_options
from retinue.interfaces.cli.terminal.console import Console
from retinue.interfaces.cli.terminal.output import print_text
from retinue.interfaces.plan_review import plan_problem, read_only_note, review_plan
from retinue.project import project_root, refuse_links
from retinue.runtime.planning.plans import LATEST
from retinue.runtime.runtime import Runtime


@click.command()
@click.argument("goal")
@click.option("--out", metavar="FILE", help="Write the plan to FILE; only --yes executes it too.")
@batch_options
@run_options
def plan(goal: str, out: str | None, yes: bool, max_concurrent: int | None, **options: Any) -> int:
    """Let a planner, which only reads, write a plan for GOAL; then run, edit or reject the plan.

    Without a terminal the plan is printed as TOML, for `retinue run --plan FILE`.

    Example: retinue plan --mode auto "Add JWT auth to the API"
    """

    async def work(runtime: Runtime, console: Console) -> Sequence[Status]:
        if goal.strip():
            console.note(read_only_note(runtime))
        try:
            written = await runtime.plan(goal, context_files=options["context_files"])
        except PlanError as error:
            if not isinstance(error.plan, Plan):
                raise
            if out is not None:
                _write_plan(options["directory"], out, to_toml(error.plan, comments=error.problems))
            raise PlanError(f"{error}\nThe plan is in {out or LATEST}; correct it there.") from None
        if out is not None:
            _write_plan(options["directory"], out, to_toml(written))
            if not yes:
                console.progress.finish()
                mode = " --mode auto" if await plan_problem(runtime, written) else ""
                hint = f"The plan is in {out}. Run it with: retinue run{mode} --plan {out}"
                click.echo(hint, err=True)
                return [Status.COMPLETED]
        if not yes and not console.interactive:
            console.progress.finish()
            if not console.as_json:
                print_text(to_toml(written).rstrip())
            return [Status.COMPLETED]
        accepted: Plan | None = written
        if not yes:
            accepted = await review_plan(runtime, written, decide=console.decide, edit=console.edit)
        if accepted is None:
            click.echo(f"retinue: nothing was run; the planner's plan is in {LATEST}.", err=True)
            return [Status.COMPLETED]
        try:
            # The person has seen the forecast with the plan, so it needs no second confirmation.
            return await execute_plan(
                runtime, console, accepted, yes=True, max_concurrent=max_concurrent
            )
        except PlanError as error:
            raise PlanError(f"{error}\nThe plan is in {out or LATEST}.") from None

    return run_in_runtime(options, run_arguments(options), work)


async def execute_plan(
    runtime: Runtime, console: Console, plan: Plan, *, yes: bool, max_concurrent: int | None
) -> list[Status]:
    """Confirm the forecast, execute the plan, and print its report."""
    forecast = await runtime.forecast(plan, max_concurrent=max_concurrent)
    await console.confirm_forecast(forecast, yes=yes)
    result = await runtime.execute(plan, max_concurrent=max_concurrent)
    console.print_report(result)
    return [result.status]


def read_plan_file(file: str) -> Any:
    """The data in a plan file; "-" is standard input. Raises UsageError."""
    try:
        with click.open_file(file, encoding="utf-8") as opened:
            # One character more than allowed: enough to reject it, also for an endless device.
            text = opened.read(MAX_CHARS + 1)
    except OSError as error:
        raise UsageError(f"Cannot read the plan {file}: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise UsageError(f"Cannot read the plan {file}: it is not UTF-8.") from None
    return parse(text, source="The plan" if file == "-" else file)


def _write_plan(directory: str, file: str, text: str) -> None:
    refuse_links(project_root(directory), Path(file))
    try:
        Path(file).write_text(text, "utf-8")
    except OSError as error:
        raise UsageError(f"Cannot write the plan to {file}: {error.strerror}.") from None
