"""The command that tells which roles and profiles there are."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import Any

import click
import msgspec

from retinue.config.environment import Environment
from retinue.config.mcp_servers import configured_servers
from retinue.config.roles import RoleCatalogue, builtin_roles, load_roles
from retinue.config.settings_file import load_settings
from retinue.domain.role import Role, pick
from retinue.domain.scope import ANYWHERE, NOWHERE
from retinue.interfaces.cli import completions as names
from retinue.interfaces.cli.options import directory
from retinue.project import project

COLUMNS = ("NAME", "KIND", "CALLS", "TURNS", "TOKENS", "MAY SPAWN", "MODEL", "SOURCE")
THE_PARENTS = "the parent's"
# Below a terminal of this width, a line that is cut tells too little.
MIN_WIDTH = 60


@click.command()
@click.argument("name", required=False, shell_complete=names.roles)
@directory
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def agents(name: str | None, directory: str, as_json: bool) -> None:
    """List the roles and profiles there are, where each comes from, and what it may do.

    With NAME, show one in full. What could not be used of the agent files is told last.

    Example: retinue agents reviewer
    """
    root, environment = project(directory), Environment.current()
    layers = load_settings(environment.user_settings_file, root)
    found = load_roles(
        layers,
        root,
        environment.home,
        config_home=environment.config_home,
        servers=[server.name for server in configured_servers(layers, root).servers],
    )
    if name is not None:
        role = pick(found.roles, name)
        if as_json:
            click.echo(msgspec.json.encode({**_fields(role), "instructions": role.instructions}))
        else:
            _print_one(role)
    elif as_json:
        for role in found.roles.values():
            click.echo(msgspec.json.encode(_fields(role)))
        for problem in found.problems:
            click.echo(msgspec.json.encode({"problem": problem}))
    else:
        _print_all(found)


def _fields(role: Role) -> dict[str, Any]:
    return {
        "name": role.name,
        "kind": _kind(role),
        "source": role.source,
        "description": role.description,
        "tools": role.tools,
        "mode": role.mode,
        "write": role.write_scope,
        "budget": role.budget,
        "spawns": role.spawns,
        "model": role.model,
        "bootstrap_files": role.bootstrap_files,
        "prompt_file": role.prompt_file,
        "problems": role.problems,
    }


def _print_all(found: RoleCatalogue) -> None:
    width = max(MIN_WIDTH, shutil.get_terminal_size((100, 24)).columns)
    rows = [_row(role) for role in found.roles.values()]
    widths = [max(map(len, column)) for column in zip(COLUMNS, *rows, strict=True)]
    say(_aligned(COLUMNS, widths))
    for role, row in zip(found.roles.values(), rows, strict=True):
        say(_aligned(row, widths))
        say(cut(f"    {role.description}", width))
        say(cut(f"    tools: {_tools(role)}", width))
    problems = [f"{r.source}: {line}" for r in found.roles.values() for line in r.problems]
    problems += found.problems
    if problems:
        say("\nProblems:")
        for line in problems:
            say(f"  {line}")


def _row(role: Role) -> tuple[str, ...]:
    budget = role.budget
    return (
        role.name,
        _kind(role),
        f"{budget.max_tool_calls:,}",
        f"{budget.max_turns:,}",
        _tokens(role),
        "every role" if {*role.spawns} >= {*builtin_roles()} else ", ".join(role.spawns) or "-",
        role.model or THE_PARENTS,
        role.source,
    )


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(c.ljust(w) for c, w in zip(cells, widths, strict=True)).rstrip()


def _print_one(role: Role) -> None:
    budget = role.budget
    facts = {
        "Tools": _tools(role),
        "Mode": role.mode or THE_PARENTS,
        "Writes": _scope(role),
        "Limits": f"{budget.max_tool_calls:,} tool calls, {budget.max_turns:,} turns,"
        f" {_tokens(role)} tokens, {budget.timeout_s:g} s an attempt",
        "May spawn": ", ".join(role.spawns) or "nobody",
        "Model": role.model or THE_PARENTS,
        "Prompt": ", ".join(
            [*role.bootstrap_files, *([role.prompt_file] if role.prompt_file else []), "and below"]
        ),
    }
    say(f"{role.name}: {_kind(role)}, {role.source}")
    say(f"  {role.description}")
    for what, text in facts.items():
        say(f"  {what}: {text}")
    for problem in role.problems:
        say(f"  Problem: {problem}")
    if role.instructions:
        say(f"\n{role.instructions}")


def _kind(role: Role) -> str:
    return "profile" if role.profile else "role"


def _tools(role: Role) -> str:
    if role.tools is None:
        return "all that the parent has"
    return ", ".join(role.tools) or "none"


def _tokens(role: Role) -> str:
    return "unlimited" if role.budget.max_tokens is None else f"{role.budget.max_tokens:,}"


def _scope(role: Role) -> str:
    if role.write_scope == ANYWHERE:
        return "wherever the parent may"
    if role.write_scope == NOWHERE:
        return "nowhere"
    return " and ".join(", ".join(group) for group in role.write_scope)


def cut(line: str, width: int) -> str:
    return line if len(line) <= width else line[: width - 1].rstrip() + "…"


def say(text: str) -> None:
    """Print `text` without what a terminal would obey: a project's files are somebody else's."""
    click.echo("".join(letter for letter in text if letter.isprintable() or letter in "\n\t"))
