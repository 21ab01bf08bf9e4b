"""The commands that make agents work: run, spawn, fan-out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import click

from retinue.app import open_journal, open_runtime, posts, project
from retinue.config.environment import Environment
from retinue.config.settings import load
from retinue.domain.projection import RunView, fold
from retinue.domain.result import Result
from retinue.errors import RunError, StoreError, UsageError
from retinue.interfaces.cli import names
from retinue.interfaces.cli.console import Console, Interrupts, exit_code, perform
from retinue.interfaces.cli.options import context, limits, resuming, role_argument, working
from retinue.interfaces.cli.trust import settle
from retinue.runtime.agent import ROOT
from retinue.runtime.facade import Runtime, Task
from retinue.runtime.session import LAST


@click.command()
@click.argument("task")
@click.option("-c", "--continue", "go_on", is_flag=True, help="Go on with the last session.")
@click.option(
    "-r",
    "--resume",
    "session",
    metavar="ID",
    shell_complete=names.runs,
    help="Go on with the session of this run.",
)
@context
@working
@limits
def run(task: str, go_on: bool, session: str | None, **options: Any) -> int:
    """Let an agent do TASK in this directory, and print its answer.

    Example: retinue run -m openai:qwen3@http://127.0.0.1:8080/v1 "What does this project do?"
    """
    if go_on and session is not None:
        raise UsageError(f"-c means the last session and -r {session} that one; choose one.")
    console, opened = _opened(options)
    files = options.pop("context_files")

    async def work(runtime: Runtime) -> list[Result]:
        earlier = LAST if go_on else session
        result = await runtime.run(task, session=earlier, context_files=files)
        console.print_result(result)
        return [result]

    return _perform(opened, console, work, budget=_chosen(options))


@click.command()
@role_argument
@click.argument("task")
@context
@working
@limits
def spawn(role: str, task: str, **options: Any) -> int:
    """Give TASK to one child with the terms of ROLE, and print its answer.

    Example: retinue spawn researcher "Where are errors logged?"
    """
    console, opened = _opened(options)

    async def work(runtime: Runtime) -> list[Result]:
        result = await runtime.spawn(role, task, **_chosen(options))
        console.print_result(result)
        return [result]

    return _perform(opened, console, work)


@click.command(name="fan-out")
@click.argument("tasks", nargs=-1)
@click.option(
    "-r",
    "--role",
    default="researcher",
    show_default=True,
    shell_complete=names.roles,
    help="The children's role.",
)
@click.option("--tasks", "file", type=click.File("r"), help="A file, a task per line; - is stdin.")
@click.option("--max-concurrent", type=int, metavar="N", help="Children at a time; 3 if not said.")
@context
@working
@limits
def fan_out(
    tasks: tuple[str, ...], role: str, file: Any, max_concurrent: int | None, **options: Any
) -> int:
    """Give each of TASKS to a child of its own; the answers come in the order of the tasks.

    A task may begin with a role of its own, as in "reviewer: look at the last commit".

    Example: retinue fan-out "Summarise src/a.py" "Summarise src/b.py"
    """
    given = [*tasks, *(line.strip() for line in file or () if line.strip())]
    if not given:
        raise UsageError('No tasks. Write them behind the command: retinue fan-out "…" "…".')
    console, opened = _opened(options)

    async def work(runtime: Runtime) -> list[Result]:
        asked = [_task(runtime, role, text, _chosen(options)) for text in given]
        results = await runtime.fan_out(asked, max_concurrent=max_concurrent)
        console.print_results(results)
        return results

    return _perform(opened, console, work)


@click.command()
@click.argument("run", required=False, shell_complete=names.runs)
@resuming
def resume(run: str | None, **options: Any) -> int:
    """Go on with RUN where it was left: one that was interrupted, or whose process is gone.

    Without RUN, with the latest of those; `retinue runs` lists them. Who is done stays so, replies
    that were paid for are not asked for again, and budgets go on from what was spent.

    Example: retinue resume k3f9
    """
    console = _console(options)
    left = asyncio.run(_left(options["directory"], run))

    async def work(runtime: Runtime) -> list[Result]:
        async for event in runtime.events(left.id):
            console.progress.recall(event)
        result = await runtime.resume(left.id)
        if not result.results:
            console.print_result(result)
            return [result]
        console.print_results(list(result.results))
        return list(result.results)

    opened = {
        "directory": options["directory"],
        "model": left.model,
        "mode": left.mode,
        "unsafe_no_sandbox": options["unsafe_no_sandbox"],
    }
    return _perform(opened, console, work)


async def _left(directory: str, run: str | None) -> RunView:
    """The beginning of the run to go on with. Raises RunError where there is none."""
    held = posts(directory).held
    async with open_journal(directory) as store:
        if run is None:
            rows = await store.runs(limit=ALL)
            row = next((row for row in rows if row.status is None and not held(row.id)), None)
            if row is None:
                raise RunError("There is nothing to resume: no run was left before its end.")
        else:
            row = await store.run(run)
        return fold(await store.events(row.id, limit=1))


def _task(runtime: Runtime, role: str, text: str, terms: Mapping[str, Any]) -> Task:
    # The longest name that fits: `claude:reviewer` is one, and has a colon itself.
    for name in sorted(runtime.roles, key=len, reverse=True):
        if text.startswith(f"{name}:"):
            role, text = name, text[len(name) + 1 :].strip()
            break
    return Task(role=role, task=text, **terms)


ALL = 1_000_000
_TERMS = ("context_files", "max_tool_calls", "max_turns", "max_tokens", "max_cost_usd", "timeout_s")


def _chosen(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: options[name] for name in _TERMS if options.get(name) is not None}


def _console(options: Mapping[str, Any]) -> Console:
    environment = Environment.current()
    settings = load(environment.user_settings, project(options["directory"])).merged
    return Console(
        as_json=options["as_json"],
        quiet=options["quiet"],
        notify_after_s=settings.notify_after_s,
    )


def _opened(options: Mapping[str, Any]) -> tuple[Console, dict[str, Any]]:
    return _console(options), {
        "directory": options["directory"],
        "model": options["model"],
        "mode": options["mode"],
        "unsafe_no_sandbox": options["unsafe_no_sandbox"],
        "cache": False if options["no_cache"] else None,
        "record": options["record"],
    }


def _perform(
    opened: Mapping[str, Any],
    console: Console,
    work: Callable[[Runtime], Awaitable[list[Result]]],
    *,
    budget: Mapping[str, Any] | None = None,
) -> int:
    """Open a runtime, do `work` in it, and make an exit code of its results."""

    async def inside() -> int:
        interrupts = Interrupts(on_first=console.print_stopping)
        try:
            with interrupts:
                async with (
                    console.progress.shown(),
                    open_runtime(
                        **opened,
                        limits=budget,
                        approve=console.approve,
                        ask=console.ask,
                        choose=console.choose,
                        on_event=console.listen,
                        on_text=partial(console.progress.hear, ROOT),
                        on_partial=console.progress.hear,
                        on_wait=console.progress.wait,
                    ) as runtime,
                ):
                    interrupts.runtime = runtime
                    return exit_code([r.status for r in await work(runtime)])
        except asyncio.CancelledError:
            if not interrupts.happened:
                raise
            console.print_way_back("interrupted", opened["directory"])
            return 130
        except StoreError:
            console.print_way_back("the journal could not be written", opened["directory"])
            raise

    if console.people:
        settle(opened["directory"], model=opened["model"])
    return perform(inside())
