"""The command that begins the settings of a project."""

from __future__ import annotations

from pathlib import Path

import click

from retinue.config.init_files import AGENT_FILE_NAME, AGENT_TEMPLATE, settings_template
from retinue.config.settings import PROJECT_FILE
from retinue.errors import UsageError
from retinue.interfaces.cli.options import directory
from retinue.project import STATE_DIR, project


@click.command()
@directory
def init(directory: str) -> None:
    """Write retinue.toml with every default, commented out, and an agent file to begin with.

    A file that is there stays as it is.

    Example: retinue init
    """
    root = project(directory)
    files = {
        PROJECT_FILE: settings_template(),
        f"{STATE_DIR}/agents/{AGENT_FILE_NAME}": AGENT_TEMPLATE,
    }
    for name, text in files.items():
        click.echo(f"{_write(root, name, text)} {name}")
    click.echo(
        "\n`retinue agents` lists the agents, `retinue help settings` tells what can be set."
    )


def _write(root: Path, name: str, text: str) -> str:
    path = root / name
    folders = [parent for parent in path.parents if parent.is_relative_to(root) and parent != root]
    if linked := next((folder for folder in folders if folder.is_symlink()), None):
        # A project that somebody cloned could have it written anywhere.
        raise UsageError(f"{linked} is a link to somewhere else; remove it.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        return "kept   "
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}.") from error
    return "written"
