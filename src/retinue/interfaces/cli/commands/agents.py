"""`retinue agents`: lists roles and profiles."""

from __future__ import annotations

from typing import Any

import click

from retinue.config.environment import Environment
from retinue.config.roles import RoleCatalogue, builtin_roles, load_roles
from retinue.config.settings_file import load_settings
from retinue.domain.contract import WorkspaceKind
from retinue.domain.grant import Mode
from retinue.domain.permissions import WRITING_EFFECTS
from retinue.domain.role import Role, find_role
from retinue.domain.scope import ANYWHERE, NOWHERE
from retinue.domain.tool_names import select_names
from retinue.interfaces.cli.completions import complete_role
from retinue.interfaces.cli.options import directory_option, json_objects_option
from retinue.interfaces.cli.terminal.output import print_json, print_line
from retinue.interfaces.view.formatting import aligned
from retinue.project import project_root
from retinue.tools.builtin import builtin_tools

COLUMNS = ("NAME", "KIND", "CALLS", "TURNS", "TOKENS", "MAY SPAWN", "MODEL", "SOURCE")
FROM_PARENT = "the parent's"
SAME_FIELDS = (
    "name", "source", "description", "tools", "mode", "budget", "spawns", "skills", "model",
    "bootstrap_files", "prompt_file", "problems",
)  # fmt: skip
"""Fields of a role that --json prints under the same name."""


@click.command()
@click.argument("name", required=False, shell_complete=complete_role)
@directory_option
@json_objects_option
def agents(name: str | None, directory: str, as_json: bool) -> None:
    """List roles and profiles, with their limits, tools and source.

    With NAME, show one in full. Problems in agent files are listed at the end.

    Example: retinue agents reviewer
    """
    root, environment = project_root(directory), Environment.current()
    found = load_roles(load_settings(environment, root), root, environment)
    if name is not None:
        role = find_role(found.roles, name)
        if as_json:
            print_json({**_fields(role), "instructions": role.instructions})
        else:
            _print_role(role)
    elif as_json:
        print_json(*map(_fields, found.roles.values()))
        print_json(*({"problem": problem} for problem in found.problems))
    else:
        _print_list(found)


def _fields(role: Role) -> dict[str, Any]:
    return {
        "kind": _kind(role),
        "write": role.write_scope,
        **{name: getattr(role, name) for name in SAME_FIELDS},
    }


def _print_list(found: RoleCatalogue) -> None:
    roles = found.roles.values()
    head, *rows = aligned([COLUMNS, *map(_row, roles)])
    print_line(head)
    for role, row in zip(roles, rows, strict=True):
        print_line(row)
        print_line(f"    {role.description}")
        print_line(f"    tools: {_tools(role)}")
        print_line(f"    writes: {_write_scope(role)}")
    problems = [f"{role.source}: {problem}" for role in roles for problem in role.problems]
    problems += found.problems
    if problems:
        print_line("")
        print_line("Problems:")
        for problem in problems:
            print_line(f"  {problem}")


def _row(role: Role) -> tuple[str, ...]:
    budget = role.budget
    return (
        role.name,
        _kind(role),
        f"{budget.max_tool_calls:,}",
        f"{budget.max_turns:,}",
        _tokens(role),
        "every role" if {*role.spawns} >= {*builtin_roles()} else ", ".join(role.spawns) or "-",
        role.model or FROM_PARENT,
        role.source,
    )


def _print_role(role: Role) -> None:
    budget = role.budget
    facts = {
        "Tools": _tools(role),
        "Mode": role.mode or FROM_PARENT,
        "Writes": _write_scope(role),
        "Limits": f"{budget.max_tool_calls:,} tool calls, {budget.max_turns:,} turns,"
        f" {_tokens(role)} tokens, {budget.timeout_s:g} s per attempt",
        "May spawn": ", ".join(role.spawns) or "no role",
        "Skills": FROM_PARENT if role.skills is None else ", ".join(role.skills) or "none",
        "Model": role.model or FROM_PARENT,
        "Prompt": ", ".join(
            filter(None, [*role.bootstrap_files, role.prompt_file, "the text below"])
        ),
    }
    print_line(f"{role.name}: {_kind(role)}, {role.source}")
    print_line(f"  {role.description}")
    for label, text in facts.items():
        print_line(f"  {label}: {text}")
    for problem in role.problems:
        print_line(f"  Problem: {problem}")
    if role.instructions:
        print_line("")
        for line in role.instructions.splitlines():
            click.echo("".join(c for c in line if c.isprintable() or c == "\t"))


def _kind(role: Role) -> str:
    return "profile" if role.profile else "role"


def _tools(role: Role) -> str:
    if role.tools is None:
        return "all of the parent's"
    return ", ".join(role.tools) or "none"


def _tokens(role: Role) -> str:
    return "unlimited" if role.budget.max_tokens is None else f"{role.budget.max_tokens:,}"


def _write_scope(role: Role) -> str:
    effects = {tool.spec.name: tool.effect for tool in builtin_tools()}
    tools = effects if role.tools is None else select_names(role.tools, effects)[0]
    reads_only = role.mode is Mode.PLAN or role.workspace is WorkspaceKind.READONLY
    if reads_only or not any(effects[name] in WRITING_EFFECTS for name in tools):
        return "nowhere"
    if role.write_scope == ANYWHERE:
        return "wherever the parent may"
    if role.write_scope == NOWHERE:
        return "nowhere"
    return " and ".join(", ".join(group) for group in role.write_scope)
