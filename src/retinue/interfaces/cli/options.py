"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import click

from retinue.domain.budget import Limits
from retinue.domain.contract import OnConflict, WorkspaceKind
from retinue.domain.grant import Mode
from retinue.interfaces.cli.completions import agents, models, roles, runs

F = TypeVar("F", bound=Callable[..., Any])


def _all(*options: Callable[[F], F]) -> Callable[[F], F]:
    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


directory = click.option(
    "-C", "directory", metavar="DIR", default=".", show_default=True, help="Work in this directory."
)
run_argument = click.argument("run", shell_complete=runs)
agent_argument = click.argument("agent", required=False, shell_complete=agents)
role_argument = click.argument("role", shell_complete=roles)
as_json = click.option("--json", "as_json", is_flag=True, help="One JSON event per line.")

quiet = click.option("-q", "--quiet", is_flag=True, help="Print the answer and nothing else.")
unsafe_no_sandbox = click.option(
    "--unsafe-no-sandbox",
    is_flag=True,
    help="Let agents run shell commands, although nothing confines them.",
)
resuming = _all(directory, as_json, quiet, unsafe_no_sandbox)
opening = _all(
    directory,
    click.option(
        "-m",
        "model",
        metavar="MODEL",
        shell_complete=models,
        help="provider:model@endpoint, such as openai:qwen3@http://127.0.0.1:8080/v1.",
    ),
    click.option(
        "--mode",
        type=click.Choice([str(mode) for mode in Mode]),
        help="How much happens without asking: plan only reads, auto edits.",
    ),
    click.option(
        "--record",
        metavar="FILE",
        help="Write the model's traffic to FILE; -m replay:FILE serves it back.",
    ),
    click.option("--no-cache", is_flag=True, help="Never use an earlier child's result."),
    unsafe_no_sandbox,
)

working = _all(
    opening,
    as_json,
    quiet,
)

going_on = _all(
    click.option("-c", "--continue", "go_on", is_flag=True, help="Go on with the last session."),
    click.option(
        "-r",
        "--resume",
        "session",
        metavar="ID",
        shell_complete=runs,
        help="Go on with the session of this run.",
    ),
)

context = click.option(
    "-f",
    "--file",
    "context_files",
    multiple=True,
    metavar="FILE",
    help="Give this file of the project along; may be repeated.",
)


class LimitFlag(NamedTuple):
    """How a limit is given on the command line."""

    flag: str
    type: type[int] | type[float]
    metavar: str
    help: str


LIMIT_FLAGS = {
    "max_tool_calls": LimitFlag("--max-tool-calls", int, "N", "Tool calls, denied ones too."),
    "max_turns": LimitFlag("--max-turns", int, "N", "Replies of the model."),
    "max_tokens": LimitFlag("--max-tokens", int, "N", "Tokens in and out, in all."),
    "max_cost_usd": LimitFlag("--max-cost-usd", float, "USD", "Money, if prices are known."),
    "timeout_s": LimitFlag("--timeout", float, "S", "Seconds per attempt."),
}
"""By field of `Limits`. The other limits are set in settings and profiles only."""

limits = _all(
    *(
        click.option(flag.flag, name, type=flag.type, metavar=flag.metavar, help=flag.help)
        for name, flag in LIMIT_FLAGS.items()
    )
)


def limits_from(options: Mapping[str, Any]) -> Limits:
    """The limits that were given on the command line."""
    return Limits(**{name: options[name] for name in LIMIT_FLAGS})


checks = click.option(
    "--check",
    "checks",
    multiple=True,
    metavar="COMMAND",
    help='Accept work only if this succeeds on it, such as "pytest -q"; may be repeated.',
)
on_conflict = click.option(
    "--on-conflict",
    type=click.Choice([str(what) for what in OnConflict]),
    help="Work that contradicts a sibling's fails, or a further child resolves it.",
)
gate = _all(checks, on_conflict)
files = _all(
    click.option(
        "--write",
        multiple=True,
        metavar="GLOB",
        help="Let it write these paths only, such as 'src/**'; may be repeated.",
    ),
    click.option(
        "--workspace",
        type=click.Choice([str(kind) for kind in WorkspaceKind]),
        help="A copy that is merged at the end (worktree, the default for who writes), the"
        " project's own files (shared), or no writing at all (readonly).",
    ),
    gate,
)

plan_flags = _all(
    click.option("-y", "--yes", is_flag=True, help="Carry out a plan without asking."),
    click.option("--max-concurrent", type=int, metavar="N", help="Steps at a time; 3 if not said."),
)
