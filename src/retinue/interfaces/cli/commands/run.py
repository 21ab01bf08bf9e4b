"""`retinue run`: one agent does one job, or a plan file is executed."""

from __future__ import annotations

import shlex
from functools import partial
from typing import Any

import click

from retinue.domain.result import Status
from retinue.domain.role import GENERAL
from retinue.embedded.model import suggestion
from retinue.errors import UsageError
from retinue.interfaces.cli.commands.plan import execute_plan, read_plan_file
from retinue.interfaces.cli.invocation import chosen_session, run_arguments, run_in_runtime
from retinue.interfaces.cli.options import batch_options, run_options, session_options
from retinue.interfaces.cli.standard_input import with_standard_input
from retinue.interfaces.cli.terminal.console import Console
from retinue.interfaces.cli.terminal.output import print_error
from retinue.interfaces.mentions import is_file_in, mentioned_files, missing_files_text
from retinue.project import project_root
from retinue.runtime.runtime import Runtime


@click.command()
@click.argument("words", metavar="[TASK]", nargs=-1)
@session_options
@click.option(
    "--plan",
    "plan_file",
    metavar="FILE",
    help="Execute the plan in this TOML or JSON file instead; - is standard input.",
)
@batch_options
@run_options
def run(
    words: tuple[str, ...],
    continue_last: bool,
    session: str | None,
    plan_file: str | None,
    yes: bool,
    max_concurrent: int | None,
    **options: Any,
) -> int:
    """Run an agent on TASK in this directory and print its answer.

    With --plan, execute a plan instead. With --check, changes that fail the check are not merged.

    Example: retinue run -m openai:qwen3@http://127.0.0.1:8080/v1 "What does this project do?"

    Text that is piped to the command is attached to the task. With - as TASK, it is the task.

    Example: git diff | retinue run "Review this"

    @FILE in TASK attaches a file of the project, as -f does.

    Example: retinue run "What is wrong on @shot.png?"

    TASK may be a slash command of a file, with its arguments; `retinue commands` lists them.

    Example: retinue run /review src

    Example: retinue run --mode auto --check "pytest -q" "Make the tests pass"
    """
    if len(words) > 1 and not words[0].startswith("/"):
        raise UsageError(f"TASK is one argument: put it in quotes. {words[1]!r} is left over.")
    task = " ".join((words[0], *map(shlex.quote, words[1:]))) if words else None
    earlier = chosen_session(continue_last, session)
    # Not of what is piped: another program may have written that.
    is_file = partial(is_file_in, project_root(options["directory"]))
    mentioned = mentioned_files(task or "", is_file)
    if missing := missing_files_text(task or "", is_file):
        print_error(missing)
    task, piped = with_standard_input(task) if plan_file is None else (task, "")
    if (task is None) == (plan_file is None):
        raise UsageError("Give either a TASK or --plan FILE.")
    if plan_file is not None and earlier is not None:
        raise UsageError("A plan does not belong to a session; leave out -c and -r.")
    if plan_file is not None and options["context_files"]:
        raise UsageError("A plan names files for each step, in context_files; leave out -f.")
    data = None if plan_file is None else read_plan_file(plan_file)
    files = options["context_files"]

    async def work(runtime: Runtime, console: Console) -> list[Status]:
        if data is not None:
            plan = await runtime.check(data)
            return await execute_plan(
                runtime, console, plan, yes=yes, max_concurrent=max_concurrent
            )
        command = await runtime.expand(task or "")
        if command is not None and (command.role or command.model):
            child = await runtime.spawn(
                command.role or GENERAL,
                command.task,
                model=command.model,
                tools=command.tools,
                context=piped,
                context_files=(*files, *command.files),
            )
            console.print_result(child)
            return [child.status]
        result = await runtime.run(
            task or "" if command is None else command.task,
            session=earlier,
            context_files=(*files, *(mentioned if command is None else command.files)),
            context=piped,
            tools=None if command is None else command.tools,
        )
        console.print_result(result)
        console.note(suggestion(runtime.model, result))
        return [result.status, *(failure.status for failure in result.failures)]

    return run_in_runtime(options, run_arguments(options), work)
