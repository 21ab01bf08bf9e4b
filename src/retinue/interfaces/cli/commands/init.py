"""`retinue init`: inspects a project, and writes settings that fit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from retinue.config.environment import Environment
from retinue.config.init_files import AGENT_FILE_NAME, agent_template, settings_template
from retinue.config.mcp_servers import MCP_FILE
from retinue.config.project_inspection import ProjectInspection, inspect_project
from retinue.config.settings import PROJECT_FILE
from retinue.domain.plural import plural
from retinue.errors import UsageError
from retinue.interfaces.cli.options import directory_option
from retinue.interfaces.cli.terminal.output import print_line
from retinue.interfaces.view.formatting import aligned
from retinue.project import STATE_DIR, project_root, refuse_links


@click.command()
@directory_option
def init(directory: str) -> None:
    """Look at this project, and write a retinue.toml that fits.

    Prints the languages, the test command, the linter, and the files for agents that were found.
    retinue.toml gets the test command, and every default, commented out. A project without agents
    gets an example of one. Existing files are kept.

    Example: retinue init
    """
    root = project_root(directory)
    found = inspect_project(root)
    print_line(f"In {Environment.current().display_path(root)}:")
    for line in aligned([(f"  {about}", text) for about, text in _findings(found)]):
        print_line(line)
    click.echo()
    files = {PROJECT_FILE: settings_template(found.test, found.check)}
    if not found.has_agents:
        files[f"{STATE_DIR}/agents/{AGENT_FILE_NAME}"] = agent_template()
    created = [name for name, text in files.items() if _create(root, name, text)]
    for name in files:
        click.echo(f"{'created' if name in created else 'kept   '} {name}")
    click.echo()
    for step in _next_steps(found, is_new=PROJECT_FILE in created):
        click.echo(step)


def _findings(found: ProjectInspection) -> Iterator[tuple[str, str]]:
    languages = [f"{name} ({plural(count, 'file')})" for name, count in found.languages]
    yield "languages", ", ".join(languages) or "none that retinue knows"
    yield "tests", found.test or "no command found"
    if found.check:
        yield "linter", found.check
    if found.instructions:
        yield "instructions", f"{', '.join(found.instructions)}, which agents read"
    else:
        yield "instructions", "none; write what agents should know to AGENTS.md"
    if found.unread_instructions:
        names = ", ".join(found.unread_instructions)
        yield "not read", f"{names}, since there is {found.instructions[0]}"
    for name, count in found.agent_folders:
        yield "for agents", f"{name} ({plural(count, 'file')})"
    if found.has_mcp_servers:
        yield "MCP servers", MCP_FILE


def _next_steps(found: ProjectInspection, *, is_new: bool) -> Iterator[str]:
    if found.test and is_new:
        yield "`retinue trust` lets agents run the tests in the sandbox without asking."
    elif found.has_mcp_servers or found.agent_folders:
        yield "`retinue trust` lets agents use the project's MCP servers, skills and commands."
    if found.check and is_new:
        yield f"Remove the # before `checks` in {PROJECT_FILE} to lint the work of children."
    yield "`retinue agents` lists agents; `retinue help settings` explains the settings."


def _create(root: Path, name: str, text: str) -> bool:
    """Write a new file; return False if there is one already. Raises UsageError."""
    path = root / name
    refuse_links(root, path.parent)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        return False
    except OSError as error:
        raise UsageError(f"Cannot write {path}: {error.strerror}.") from error
    return True
