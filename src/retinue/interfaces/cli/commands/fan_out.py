"""`retinue fan-out`: many children, each with a task of its own, at the same time."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import click
import msgspec

from retinue.domain.result import Status
from retinue.domain.scope import scope
from retinue.errors import UsageError
from retinue.interfaces.cli.completions import complete_role
from retinue.interfaces.cli.invocation import given_task_fields, run_in_runtime, runtime_arguments
from retinue.interfaces.cli.options import batch_options, run_options, workspace_options
from retinue.interfaces.cli.terminal.console import Console
from retinue.runtime.delegation.task import Task, make_task
from retinue.runtime.runtime import Runtime

PATH = "{path}"
WILDCARDS = {*"*?"}
READER, WRITER = "researcher", "executor"
READ_ONLY_NOTE = (
    "In {mode} mode the children are researchers, which only read;"
    " in auto mode they are executors, which write."
)


@click.command(name="fan-out")
@click.argument("tasks", nargs=-1)
@click.option(
    "-r",
    "--role",
    shell_complete=complete_role,
    help="The children's role.  [default: researcher; executor for --each in auto mode]",
)
@click.option(
    "--tasks", "file", type=click.File("r"), help="A file with one task per line; - is stdin."
)
@click.option(
    "--each",
    metavar="GLOB",
    help="Repeat each task for every file that matches; {path} in the task is the file.",
)
@batch_options
@workspace_options
@run_options
def fan_out(
    tasks: tuple[str, ...],
    role: str | None,
    file: Any,
    each: str | None,
    max_concurrent: int | None,
    yes: bool,
    **options: Any,
) -> int:
    """Run a child for each of TASKS at the same time, and print the answers in order.

    A task may start with its own role, as in "reviewer: look at the last commit". With --each, a
    child may write only its own file.

    Example: retinue fan-out "Summarise src/a.py" "Summarise src/b.py"

    Example: retinue fan-out --mode auto --each 'src/*.py' --check "pytest -q" "Add types to {path}"
    """
    texts = [*tasks, *(line.strip() for line in file or () if line.strip())]
    if not texts:
        raise UsageError('No tasks. Give them as arguments: retinue fan-out "…" "…".')
    if each is not None and not all(PATH in text for text in texts):
        raise UsageError(f"With --each, every task needs {PATH}, which is replaced by the file.")
    if each is not None and options["write"]:
        raise UsageError("With --each, a child may write only its own file; leave out --write.")

    async def work(runtime: Runtime, console: Console) -> list[Status]:
        fields = given_task_fields(options)
        if each is None:
            requested = [_parse_task(runtime, role or READER, text, fields) for text in texts]
        else:
            requested = await _tasks_for_files(runtime, role, each, texts, fields)
            if role is None and not runtime.mode.autonomous:
                console.note(READ_ONLY_NOTE.format(mode=runtime.mode))
        forecast = await runtime.forecast(requested, max_concurrent=max_concurrent)
        await console.confirm_forecast(forecast, yes=yes)
        started = time.monotonic()
        results = await runtime.fan_out(requested, max_concurrent=max_concurrent)
        console.print_results(results, forecast, took_s=time.monotonic() - started)
        return [result.status for result in results]

    return run_in_runtime(options, runtime_arguments(options), work)


async def _tasks_for_files(
    runtime: Runtime, role: str | None, glob: str, texts: Sequence[str], fields: Mapping[str, Any]
) -> list[Task]:
    """Each task for each file that matches `glob`. Raises UsageError."""
    paths = await runtime.files(glob)
    if not paths:
        raise UsageError(
            f"No file matches --each {glob!r}. Quote the pattern; it is relative to the project."
        )
    writes = runtime.mode.autonomous
    if writes and (bad := [path for path in paths if not _is_plain_path(path)]):
        raise UsageError(
            f"{bad[0]!r} matches --each, but as a path to write it would match other files too"
            " (*, ?, or blanks at an end). Use another pattern, or rename the file."
        )
    # Parse the role before {path} is replaced: a file named `executor:x` must not choose a role.
    parsed = [
        _parse_task(runtime, role or (WRITER if writes else READER), text, fields) for text in texts
    ]
    return [
        msgspec.structs.replace(task, task=task.task.replace(PATH, path), write=(path,))
        for path in paths
        for task in parsed
    ]


def _is_plain_path(path: str) -> bool:
    """Whether `path` as a write scope means exactly this file."""
    return scope(path) == ((path,),) and not WILDCARDS & {*path}


def _parse_task(runtime: Runtime, role: str, text: str, fields: Mapping[str, Any]) -> Task:
    """A task from "role: text" or "text"."""
    # The longest name wins: `claude:reviewer` is one, and has a colon itself.
    for name in sorted(runtime.roles, key=len, reverse=True):
        if text.startswith(f"{name}:"):
            role, text = name, text[len(name) + 1 :].strip()
            break
    return make_task(role, text, fields)
