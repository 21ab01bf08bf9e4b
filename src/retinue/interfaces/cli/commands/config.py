"""`retinue config`: shows settings with where they come from, and changes one."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from retinue.config.environment import Environment
from retinue.config.settings import PROJECT_FILE
from retinue.config.settings_editor import parse_key, set_value, unset_value
from retinue.config.settings_file import load_settings
from retinue.config.settings_sources import (
    DEFAULT,
    READ_APART,
    STORE,
    VARIABLES,
    Setting,
    format_value,
    list_settings,
)
from retinue.domain.store_address import without_password
from retinue.interfaces.cli.options import combine, directory_option, json_objects_option
from retinue.interfaces.cli.terminal.output import print_error, print_json, print_line, print_table
from retinue.project import project_root, refuse_links

HIDDEN = ".env.", ".headers.", ".environment."
"""Tables whose values may be secrets."""

file_options = combine(
    click.option("--project", is_flag=True, help=f"Change {PROJECT_FILE} instead of your file."),
    directory_option,
)


@click.group(invoke_without_command=True)
@click.option("--all", "with_defaults", is_flag=True, help="List defaults too.")
@json_objects_option
@directory_option
@click.pass_context
def config(ctx: click.Context, with_defaults: bool, as_json: bool, directory: str) -> None:
    """Show the settings that are in effect here, and which file sets each; change one.

    Your own file is ~/.config/retinue/config.toml. A project's retinue.toml can narrow what you
    allow, and never widen it. `retinue help settings` explains the settings.

    Example: retinue config set max_concurrent 5
    """
    if ctx.invoked_subcommand is not None:
        return
    environment, root = Environment.current(), project_root(directory)
    found = list_settings(environment, root)
    # Which model agents use is the first question of most people.
    shown = [
        one
        for one in found
        if with_defaults or one.source != DEFAULT or one.note or one.key == "model"
    ]
    if as_json:
        print_json(*shown)
        return
    print_table(
        ("SETTING", "VALUE", "FROM"),
        [(one.key, _shown_value(one), one.source) for one in shown],
    )
    for one in shown:
        if one.note:
            print_line(f"note: {one.key}: {one.note}")
    if sys.stdout.isatty() and not with_defaults:
        hint = "`retinue config --all` lists the defaults too"
        print_line(f"{hint}." if len(shown) > 1 else f"Nothing else is set; {hint}.")


def _shown_value(setting: Setting) -> str:
    if any(part in setting.key for part in HIDDEN):
        return "(hidden)"
    return "not set" if setting.value is None else format_value(setting.value)


@config.command()
@click.argument("key")
@directory_option
def get(key: str, directory: str) -> None:
    """Print the value of KEY that is in effect here.

    Example: retinue config get max_concurrent
    """
    wanted = ".".join(parse_key(key))
    for setting in list_settings(Environment.current(), project_root(directory)):
        if ".".join(parse_key(setting.key)) == wanted and setting.value is not None:
            is_text = isinstance(setting.value, str)
            print_line(setting.value if is_text else format_value(setting.value))
            return
    raise click.exceptions.Exit(1)


@config.command("set")
@click.argument("key")
@click.argument("values", metavar="VALUE...", nargs=-1, required=True)
@file_options
def set_(key: str, values: tuple[str, ...], project: bool, directory: str) -> None:
    """Set KEY to VALUE in your own settings.

    With --project, set it in the project's. A VALUE is written as in TOML; quotes around a text may
    be left out. Several are a list.

    Example: retinue config set checks "pytest -q" "ruff check"
    """
    environment, root = Environment.current(), project_root(directory)
    path, parts = _file(environment, root, project), parse_key(key)
    before = load_settings(environment, root)
    value = set_value(path, parts, values)
    shown = without_password(value) if parts == (STORE,) else value
    print_line(f"{key} = {format_value(shown)} in {environment.display_path(path)}")
    variable = VARIABLES.get(key, "")
    if environment.get(variable) is not None:
        print_error(f"note: the variable {variable} is set, and overrides this.")
    elif (
        project
        and parts[0] not in READ_APART
        and load_settings(environment, root).merged == before.merged
    ):
        print_error(
            "note: this has no effect here: the value is the same as before, your own settings are"
            " narrower, or only your own settings count."
        )


@config.command()
@click.argument("key")
@file_options
def unset(key: str, project: bool, directory: str) -> None:
    """Remove KEY from your own settings.

    With --project, remove it from the project's.

    Example: retinue config unset max_concurrent
    """
    environment, root = Environment.current(), project_root(directory)
    path = _file(environment, root, project)
    unset_value(path, parse_key(key))
    print_line(f"{key} is no longer set in {environment.display_path(path)}")


def _file(environment: Environment, root: Path, project: bool) -> Path:
    path = root / PROJECT_FILE if project else environment.user_settings_file
    refuse_links(root, path)
    return path
