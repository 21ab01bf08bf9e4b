"""`retinue race`: several models, roles or prompts do one task, and the best work is merged."""

from __future__ import annotations

import time
from collections.abc import Collection, Container, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click

from retinue.config.environment import Environment
from retinue.config.roles import load_roles
from retinue.config.settings_file import load_settings
from retinue.domain.result import Status
from retinue.errors import UsageError
from retinue.interfaces.cli.commands.fan_out import WRITER
from retinue.interfaces.cli.completions import complete_role
from retinue.interfaces.cli.invocation import given_task_fields, run_in_runtime, runtime_arguments
from retinue.interfaces.cli.options import (
    batch_options,
    completion,
    run_options,
    workspace_options,
)
from retinue.interfaces.cli.terminal.console import Console
from retinue.interfaces.view.run_status import candidate_models
from retinue.project import project_root
from retinue.runtime.delegation.task import TaskOptions, race_tasks
from retinue.runtime.runtime import Runtime

PROMPT = "@"
MISSPELT = 0.85
"""From this similarity on, a name is taken for a misspelt role."""


@click.command()
@click.argument("task")
@click.option(
    "--with",
    "candidates",
    multiple=True,
    metavar="NAME",
    shell_complete=completion("complete_model"),
    help="A model, a role, or @FILE with instructions; several with commas. Can be repeated.",
)
@click.option("--times", type=int, default=1, show_default=True, help="How often each takes part.")
@click.option("--first", is_flag=True, help="Stop the others when one has passed its checks.")
@click.option(
    "-r",
    "--role",
    default=WRITER,
    show_default=True,
    shell_complete=complete_role,
    help="The role of candidates that are no roles.",
)
@batch_options
@workspace_options
@run_options
def race(
    task: str,
    candidates: tuple[str, ...],
    times: int,
    first: bool,
    role: str,
    max_concurrent: int | None,
    yes: bool,
    **options: Any,
) -> int:
    """Run several candidates on TASK, each in its own copy, and merge the best work.

    The checks decide first. Among those that pass, fewer changed lines count, then cost, tokens and
    time. What the others made is kept: `retinue diff` shows it, and `retinue undo` and `retinue
    redo` put it in the winner's place.

    Example: retinue race --mode auto --with qwen,gpt-5-mini --check "pytest -q" "Fix the parser"

    Example: retinue race --mode auto --times 3 --first --check "pytest -q" "Fix the parser"
    """
    names = [name.strip() for given in candidates for name in given.split(",") if name.strip()]
    root, environment = project_root(options["directory"]), Environment.current()
    layers = load_settings(environment, root)
    roles = load_roles(layers, root, environment).roles
    _check_names(names, roles, {*layers.user.models, *layers.user.pools})
    named = [_candidate(name, options["directory"]) for name in names]
    if (
        options["model"] is None
        and named
        and all(isinstance(one, str) and one not in roles for one in named)
    ):
        options["model"] = names[0]  # No candidate has the default model.

    async def work(runtime: Runtime, console: Console) -> list[Status]:
        fields = given_task_fields(options)
        tasks = race_tasks(role, task, named, fields, times, runtime.roles)
        forecast = await runtime.forecast(tasks, max_concurrent=max_concurrent)
        await console.confirm_forecast(forecast, yes=yes)
        console.keeps_states, started = True, time.monotonic()
        result = await runtime.race(
            role, task, named, times=times, first=first, max_concurrent=max_concurrent, **fields
        )
        took_s = time.monotonic() - started
        models = candidate_models(console.states[result.run_id])
        console.print_race(result, models, forecast, took_s=took_s)
        return [result.status]

    return run_in_runtime(options, runtime_arguments(options), work)


def _check_names(names: Sequence[str], roles: Collection[str], models: Container[str]) -> None:
    """Raise UsageError for a misspelt role. Any other name may be one that the server knows."""
    for name in names:
        close = get_close_matches(name, roles, n=1, cutoff=MISSPELT)
        if close and name not in roles and name not in models:
            raise UsageError(
                f"--with {name}: there is no role {name!r}. Did you mean {close[0]!r}? For a model"
                f" of that name, write its provider too, as in openai:{name}."
            )


def _candidate(name: str, directory: str) -> str | TaskOptions:
    """A candidate of `--with`. Raises UsageError for a file that cannot be read."""
    if not name.startswith(PROMPT):
        return name
    path = Path(directory, name.removeprefix(PROMPT))
    try:
        return {"system_prompt": path.read_text()}
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--with {name}: {path} cannot be read ({error}).") from error
