"""`retinue commands`: lists the slash commands of the user and the project."""

from __future__ import annotations

import click

from retinue.config.environment import Environment
from retinue.config.project_permissions import project_permissions
from retinue.config.settings_file import load_settings
from retinue.interfaces.cli.commands.skills import print_skills_or_commands
from retinue.interfaces.cli.options import directory_option, json_objects_option
from retinue.project import project_root


@click.command()
@directory_option
@json_objects_option
def commands(directory: str, as_json: bool) -> None:
    """List your slash commands and the project's, and what is wrong with invalid ones.

    Example: retinue commands --json
    """
    root, environment = project_root(directory), Environment.current()
    found = project_permissions(
        load_settings(environment, root), root, environment
    ).skills_and_commands
    shown = [(command, command.trusted) for command in found.commands.values()]
    print_skills_or_commands("commands", shown, found.command_problems, as_json=as_json)
