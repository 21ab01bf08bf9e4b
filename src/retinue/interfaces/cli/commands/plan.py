"""`retinue plan`: a goal becomes a plan that a person looks at, edits, and has carried out."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from retinue.domain.plan.plan import Plan
from retinue.domain.plan.plan_file import MAX_CHARS, parse, to_toml
from retinue.domain.result import Status
from retinue.errors import PlanError, UsageError
from retinue.interfaces.cli.invocation import chosen_gate, opening_of, perform_in
from retinue.interfaces.cli.options import context, gate, limits, limits_from, plan_flags, working
from retinue.interfaces.cli.terminal.console import Console
from retinue.interfaces.cli.terminal.output import write
from retinue.interfaces.plan_review import agreed, only_reading, why_not
from retinue.runtime.planning.plans import LATEST
from retinue.runtime.runtime import Runtime

STDIN = "-"


@click.command()
@click.argument("goal")
@click.option("--out", metavar="FILE", help="Write the plan to FILE; it is run with --yes only.")
@context
@gate
@plan_flags
@working
@limits
def plan(
    goal: str,
    out: str | None,
    context_files: tuple[str, ...],
    yes: bool,
    max_concurrent: int | None,
    **options: Any,
) -> int:
    """Have a planner, who only reads, write a plan for GOAL; then run it, edit it, or leave it.

    Where nobody can be asked, the plan is printed as TOML, for `retinue run --plan FILE`.

    Example: retinue plan --mode auto "Add JWT auth to the API"
    """
    console, opened = opening_of(options)
    opened |= chosen_gate(options)

    async def work(runtime: Runtime) -> Sequence[Status]:
        if goal.strip():
            console.note(only_reading(runtime.policy.mode))
        try:
            written = await runtime.plan(goal, context_files=context_files)
        except PlanError as error:
            if not isinstance(error.draft, Plan):
                raise
            if out is not None:
                _save(out, to_toml(error.draft, comments=error.problems))
            raise PlanError(f"{error}\nIt is in {out or LATEST}, to be mended.") from None
        if out is not None:
            _save(out, to_toml(written))
            if not yes:
                console.progress.finish()
                mode = " --mode auto" if await why_not(runtime, written) else ""
                told = f"The plan is in {out}; retinue run{mode} --plan {out} runs it."
                click.echo(told, err=True)
                return [Status.COMPLETED]
        if not yes and not console.people:
            console.progress.finish()
            if not console.as_json:
                write(to_toml(written).rstrip())
            return [Status.COMPLETED]
        accepted: Plan | None = written
        if not yes:
            accepted = await agreed(runtime, written, decide=console.decide, edit=console.edit)
        if accepted is None:
            told = f"retinue: nothing was run; what the planner wrote is in {LATEST}."
            click.echo(told, err=True)
            return [Status.COMPLETED]
        try:
            # Whoever was shown the plan has said yes to it.
            return await carry_out(
                runtime, console, accepted, yes=True, max_concurrent=max_concurrent
            )
        except PlanError as error:
            raise PlanError(f"{error}\nIt is in {out or LATEST}.") from None

    return perform_in(opened, console, work, limits=limits_from(options))


async def carry_out(
    runtime: Runtime, console: Console, plan: Plan, *, yes: bool, max_concurrent: int | None
) -> list[Status]:
    """Carry out a plan that can be, and print its report."""
    await console.agree(await runtime.forecast(plan, max_concurrent=max_concurrent), yes=yes)
    result = await runtime.execute(plan, max_concurrent=max_concurrent)
    console.print_report(result)
    return [result.status]


def read_plan(file: str) -> Any:
    """The data in a plan file. Raises UsageError."""
    try:
        # A little more than a plan may have: what is told of a device that never ends, too.
        if file == STDIN:
            text = sys.stdin.read(MAX_CHARS + 1)
        else:
            with open(file, encoding="utf-8") as opened:
                text = opened.read(MAX_CHARS + 1)
    except OSError as error:
        raise UsageError(f"Cannot read the plan {file}: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise UsageError(f"Cannot read the plan {file}: it is not UTF-8.") from None
    return parse(text, source="The plan" if file == STDIN else file)


def _save(file: str, text: str) -> None:
    try:
        Path(file).write_text(text, "utf-8")
    except OSError as error:
        raise UsageError(f"Cannot write the plan to {file}: {error.strerror}.") from None
