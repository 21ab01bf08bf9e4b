"""`retinue init`: writes a project's settings file and an example agent."""

from __future__ import annotations

from pathlib import Path

import click

from retinue.config.init_files import AGENT_FILE_NAME, agent_template, settings_template
from retinue.config.settings import PROJECT_FILE
from retinue.config.tests_detection import detect_test_command
from retinue.errors import UsageError
from retinue.interfaces.cli.options import directory_option
from retinue.project import STATE_DIR, project_root, refuse_links


@click.command()
@directory_option
def init(directory: str) -> None:
    """Create retinue.toml, with every default commented out, and an example agent file.

    Existing files are kept. If the project's files say how its tests run, `test` is set.

    Example: retinue init
    """
    root = project_root(directory)
    test = detect_test_command(root)
    files = {
        PROJECT_FILE: settings_template(test),
        f"{STATE_DIR}/agents/{AGENT_FILE_NAME}": agent_template(),
    }
    is_new = not (root / PROJECT_FILE).exists()
    for name, text in files.items():
        click.echo(f"{_create(root, name, text)} {name}")
    if test and is_new:
        click.echo(
            f"\nThe tests seem to run with `{test}`. After `retinue trust`, agents can run them"
            " with run_tests."
        )
    click.echo("\n`retinue agents` lists agents; `retinue help settings` explains the settings.")


def _create(root: Path, name: str, text: str) -> str:
    """Write a new file; return "created" or "kept". Raises UsageError."""
    path = root / name
    refuse_links(root, path.parent)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        return "kept   "
    except OSError as error:
        raise UsageError(f"Cannot write {path}: {error.strerror}.") from error
    return "created"
