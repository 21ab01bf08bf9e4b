"""The commands that make agents work: run, spawn, fan-out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

import click
import msgspec

from retinue.domain.result import Status
from retinue.domain.run_state import RunState, fold
from retinue.domain.scope import scope
from retinue.errors import RunError, UsageError
from retinue.interfaces.cli import completions as names
from retinue.interfaces.cli.commands.plan import carry_out, read_plan
from retinue.interfaces.cli.invocation import (
    chosen_gate,
    chosen_terms,
    console_of,
    opening_of,
    perform_in,
)
from retinue.interfaces.cli.options import (
    context,
    files,
    gate,
    going_on,
    limits,
    limits_from,
    plan_flags,
    resuming,
    role_argument,
    working,
)
from retinue.project import open_journal, open_run_locks
from retinue.runtime.delegation.task import Task, as_task
from retinue.runtime.history.recovery import check_journal
from retinue.runtime.history.session import LAST
from retinue.runtime.runtime import Runtime


@click.command()
@click.argument("task", required=False)
@going_on
@click.option(
    "--plan",
    "plan_file",
    metavar="FILE",
    help="Carry out the plan in a TOML or JSON file instead; - is stdin.",
)
@plan_flags
@context
@gate
@working
@limits
def run(
    task: str | None,
    go_on: bool,
    session: str | None,
    plan_file: str | None,
    yes: bool,
    max_concurrent: int | None,
    **options: Any,
) -> int:
    """Let an agent do TASK in this directory, and print its answer; or carry out a plan.

    With --check, whatever it or its children change must pass; what does not is not integrated.

    Example: retinue run -m openai:qwen3@http://127.0.0.1:8080/v1 "What does this project do?"

    Example: retinue run --mode auto --check "pytest -q" "Make the tests pass"
    """
    if go_on and session is not None:
        raise UsageError(f"-c means the last session and -r {session} that one; choose one.")
    if (task is None) == (plan_file is None):
        raise UsageError("Say what to do: a TASK, or --plan FILE, and not both.")
    if plan_file is not None and (go_on or session is not None):
        raise UsageError("A plan is no part of a session; leave out -c and -r.")
    if plan_file is not None and options["context_files"]:
        raise UsageError("A plan names files for each step, in context_files; leave out -f.")
    data = None if plan_file is None else read_plan(plan_file)
    console, opened = opening_of(options)
    opened |= chosen_gate(options)
    files = options["context_files"]

    async def work(runtime: Runtime) -> list[Status]:
        if data is not None:
            plan = await runtime.check(data)
            return await carry_out(runtime, console, plan, yes=yes, max_concurrent=max_concurrent)
        earlier = LAST if go_on else session
        result = await runtime.run(task or "", session=earlier, context_files=files)
        console.print_result(result)
        return [result.status]

    return perform_in(opened, console, work, limits=limits_from(options))


@click.command()
@role_argument
@click.argument("task")
@context
@files
@working
@limits
def spawn(role: str, task: str, **options: Any) -> int:
    """Give TASK to one child with the terms of ROLE, and print its answer.

    A child that writes works in a copy; --check decides whether that is merged. What is not can be
    looked at by `retinue diff` and brought in by `retinue redo`.

    Example: retinue spawn researcher "Where are errors logged?"

    Example: retinue spawn executor --mode auto --write "src/**" --check "pytest -q" "Fix it"
    """
    console, opened = opening_of(options)

    async def work(runtime: Runtime) -> list[Status]:
        result = await runtime.spawn(role, task, **chosen_terms(options))
        console.print_result(result)
        return [result.status]

    return perform_in(opened, console, work)


@click.command(name="fan-out")
@click.argument("tasks", nargs=-1)
@click.option(
    "-r",
    "--role",
    shell_complete=names.roles,
    help="The children's role; researcher if not said, for --each in auto mode executor.",
)
@click.option("--tasks", "file", type=click.File("r"), help="A file, a task per line; - is stdin.")
@click.option(
    "--each",
    metavar="GLOB",
    help="A task for each file of the project that fits, in which {path} stands for it.",
)
@click.option("--max-concurrent", type=int, metavar="N", help="Children at a time; 3 if not said.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask, however much it will use.")
@context
@files
@working
@limits
def fan_out(
    tasks: tuple[str, ...],
    role: str | None,
    file: Any,
    each: str | None,
    max_concurrent: int | None,
    yes: bool,
    **options: Any,
) -> int:
    """Give each of TASKS to a child of its own; the answers come in the order of the tasks.

    A task may begin with a role of its own, as in "reviewer: look at the last commit". With --each,
    a child that writes may write its own file and no other.

    Example: retinue fan-out "Summarise src/a.py" "Summarise src/b.py"

    Example: retinue fan-out --mode auto --each 'src/*.py' --check "pytest -q" "Add types to {path}"
    """
    given = [*tasks, *(line.strip() for line in file or () if line.strip())]
    if not given:
        raise UsageError('No tasks. Write them behind the command: retinue fan-out "…" "…".')
    if each is not None and not all(PATH in text for text in given):
        raise UsageError(f"With --each, every task needs {PATH}, which stands for the file.")
    if each is not None and options["write"]:
        raise UsageError("With --each, a child may write its own file; leave out --write.")
    console, opened = opening_of(options)

    async def work(runtime: Runtime) -> list[Status]:
        terms = chosen_terms(options)
        if each is None:
            asked = [_task(runtime, role or READER, text, terms) for text in given]
        else:
            asked = await _for_each(runtime, role, each, given, terms)
            if role is None and not runtime.policy.mode.autonomous:
                console.note(NO_WRITERS.format(mode=runtime.policy.mode))
        expected = await runtime.forecast(asked, max_concurrent=max_concurrent)
        await console.agree(expected, yes=yes)
        began = time.monotonic()
        results = await runtime.fan_out(asked, max_concurrent=max_concurrent)
        console.print_results(results, expected, took_s=time.monotonic() - began)
        return [result.status for result in results]

    return perform_in(opened, console, work)


PATH = "{path}"
_WILD = {*"*?"}
READER, WRITER = "researcher", "executor"
NO_WRITERS = (
    "In {mode} mode researchers do it, who only read; in auto mode executors do, who write."
)


async def _for_each(
    runtime: Runtime, role: str | None, glob: str, texts: Sequence[str], terms: Mapping[str, Any]
) -> list[Task]:
    """The tasks for all files that fit."""
    paths = await runtime.files(glob)
    if not paths:
        raise UsageError(f"No file fits --each {glob!r}; is it quoted, and seen from the project?")
    free = runtime.policy.mode.autonomous
    if free and (odd := [path for path in paths if scope(path) != ((path,),) or _WILD & {*path}]):
        raise UsageError(
            f"{odd[0]!r} fits --each, and has a name that as a path to write would mean other files"
            " as well (*, ?, or blanks at an end); choose others, or rename it."
        )
    # The role is the user's word: a file that is called `executor` does not choose it.
    asked = [_task(runtime, role or (WRITER if free else READER), text, terms) for text in texts]
    return [
        msgspec.structs.replace(task, task=task.task.replace(PATH, path), write=(path,))
        for path in paths
        for task in asked
    ]


@click.command()
@click.argument("run", required=False, shell_complete=names.runs)
@resuming
def resume(run: str | None, **options: Any) -> int:
    """Go on with RUN where it was left: one that was interrupted, or whose process is gone.

    Without RUN, with the latest of those; `retinue runs` lists them. Who is done stays so, replies
    that were paid for are not asked for again, and budgets go on from what was spent.

    Example: retinue resume k3f9
    """
    console = console_of(options)
    left = asyncio.run(_left(options["directory"], run))

    async def work(runtime: Runtime) -> list[Status]:
        async for event in runtime.events(left.id):
            console.progress.recall(event)
        result = await runtime.resume(left.id)
        if result.plan is not None:
            console.print_report(result.plan)
            return [result.status]
        if not result.results:
            console.print_result(result)
            return [result.status]
        console.print_results(list(result.results))
        return [result.status for result in result.results]

    opened = {
        "directory": options["directory"],
        "model": left.model,
        "mode": left.mode,
        "unsafe_no_sandbox": options["unsafe_no_sandbox"],
    }
    return perform_in(opened, console, work)


async def _left(directory: str, run: str | None) -> RunState:
    """The beginning of the run to go on with. Raises RunError where there is none."""
    held = open_run_locks(directory).is_held
    async with open_journal(directory) as store:
        if run is None:
            rows = await store.runs(limit=ALL)
            left = (row for row in rows if row.status is None and not row.pruned)
            row = next((row for row in left if not held(row.id)), None)
            if row is None:
                raise RunError("There is nothing to resume: no run was left before its end.")
        else:
            row = await store.run(run)
            check_journal(row)
        return fold(await store.events(row.id, limit=1))


def _task(runtime: Runtime, role: str, text: str, terms: Mapping[str, Any]) -> Task:
    # The longest name that fits: `claude:reviewer` is one, and has a colon itself.
    for name in sorted(runtime.roles, key=len, reverse=True):
        if text.startswith(f"{name}:"):
            role, text = name, text[len(name) + 1 :].strip()
            break
    return as_task(role, text, terms)


ALL = 1_000_000
