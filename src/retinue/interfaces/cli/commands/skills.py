"""`retinue skills` and `retinue commands`: list what the user and the project have of these."""

from __future__ import annotations

from collections.abc import Sequence

import click

from retinue.config.environment import Environment
from retinue.config.project_permissions import project_permissions
from retinue.config.settings_file import load_settings
from retinue.config.skills_and_commands import SkillsAndCommands
from retinue.domain.skill import Skill
from retinue.domain.slash_command import SlashCommand
from retinue.interfaces.cli.options import directory_option, json_objects_option
from retinue.interfaces.cli.terminal.output import print_json, print_line
from retinue.interfaces.view.formatting import aligned, clip
from retinue.project import project_root


@click.command()
@directory_option
@json_objects_option
def skills(directory: str, as_json: bool) -> None:
    """List your skills and the project's, and what is wrong with invalid ones.

    Example: retinue skills --json
    """
    found = _find(directory)
    shown = [(skill, True) for skill in found.skills.values()]
    shown += [(skill, False) for skill in found.untrusted_skills]
    _print("skills", shown, found.skill_problems, as_json=as_json)


@click.command()
@directory_option
@json_objects_option
def commands(directory: str, as_json: bool) -> None:
    """List your slash commands and the project's, and what is wrong with invalid ones.

    Example: retinue commands --json
    """
    found = _find(directory)
    shown = [(command, command.trusted) for command in found.commands.values()]
    _print("commands", shown, found.command_problems, as_json=as_json)


def _find(directory: str) -> SkillsAndCommands:
    root, environment = project_root(directory), Environment.current()
    layers = load_settings(environment, root)
    return project_permissions(layers, root, environment).skills_and_commands


def _print(
    kind: str,
    shown: Sequence[tuple[Skill | SlashCommand, bool]],
    problems: Sequence[str],
    *,
    as_json: bool,
) -> None:
    """Print the items, each with whether it is trusted, and then their problems."""
    if as_json:
        for item, trusted in shown:
            fields = {name: getattr(item, name) for name in ("name", "description", "place")}
            print_json(fields | {"trusted": trusted, "problems": item.problems})
        print_json(*({"problem": problem} for problem in problems))
        return
    if not shown:
        print_line(f"There are no {kind}. `retinue help {kind}` says where they are read from.")
    else:
        rows = [
            (item.name, "" if trusted else "not trusted", item.place, clip(item.description, 80))
            for item, trusted in shown
        ]
        for row in aligned([("NAME", "STATE", "PLACE", "DESCRIPTION"), *rows]):
            print_line(row)
    if not all(trusted for _, trusted in shown):
        print_line(f"`retinue trust` allows the {kind} of the project.")
    own = [f"{item.place}: {problem}" for item, _ in shown for problem in item.problems]
    if own or problems:
        print_line("")
        print_line("Problems:")
        for problem in (*own, *problems):
            print_line(f"  {problem}")
