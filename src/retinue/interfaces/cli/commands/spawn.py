"""`retinue spawn`: one child does one task."""

from __future__ import annotations

from typing import Any

import click

from retinue.domain.result import Status
from retinue.interfaces.cli.invocation import given_task_fields, run_in_runtime, runtime_arguments
from retinue.interfaces.cli.options import completion, run_options, workspace_options
from retinue.interfaces.cli.terminal.console import Console
from retinue.runtime.runtime import Runtime


@click.command()
@click.argument("role", required=False, shell_complete=completion("complete_role"))
@click.argument("task", required=False)
@click.option(
    "--continue",
    "continues",
    metavar="RUN/AGENT",
    help="Continue the conversation of a child that has ended; ROLE is then optional.",
)
@workspace_options
@run_options
def spawn(role: str | None, task: str | None, continues: str | None, **options: Any) -> int:
    """Run one child with ROLE on TASK and print its answer.

    A child that writes works in a copy, which is merged if every --check succeeds. `retinue diff`
    shows changes that were not merged, and `retinue redo` merges them.

    Example: retinue spawn researcher "Where are errors logged?"

    Example: retinue spawn executor --mode auto --write "src/**" --check "pytest -q" "Fix it"

    Example: retinue spawn --continue k3v9/a1 "Now look at the tests too"
    """
    if continues is not None and task is None:
        role, task = "", role
    if role is None or task is None:
        raise click.UsageError(f"Missing argument '{'ROLE' if role is None else 'TASK'}'.")
    fields = given_task_fields(options)
    if continues is not None:
        # A continued child keeps its model, unless another one is named.
        fields |= {"continues": continues, "model": options["model"]}

    async def work(runtime: Runtime, console: Console) -> list[Status]:
        result = await runtime.spawn(role, task, **fields)
        console.print_result(result)
        return [result.status]

    return run_in_runtime(options, runtime_arguments(options), work)
