"""`retinue spawn`: one child does one task."""

from __future__ import annotations

from typing import Any

import click

from retinue.domain.result import Status
from retinue.interfaces.cli.invocation import given_task_fields, run_in_runtime, runtime_arguments
from retinue.interfaces.cli.options import role_argument, run_options, workspace_options
from retinue.interfaces.cli.terminal.console import Console
from retinue.runtime.runtime import Runtime


@click.command()
@role_argument
@click.argument("task")
@workspace_options
@run_options
def spawn(role: str, task: str, **options: Any) -> int:
    """Run one child with ROLE on TASK and print its answer.

    A child that writes works in a copy, which is merged if every --check succeeds. `retinue diff`
    shows changes that were not merged, and `retinue redo` merges them.

    Example: retinue spawn researcher "Where are errors logged?"

    Example: retinue spawn executor --mode auto --write "src/**" --check "pytest -q" "Fix it"
    """

    async def work(runtime: Runtime, console: Console) -> list[Status]:
        result = await runtime.spawn(role, task, **given_task_fields(options))
        console.print_result(result)
        return [result.status]

    return run_in_runtime(options, runtime_arguments(options), work)
