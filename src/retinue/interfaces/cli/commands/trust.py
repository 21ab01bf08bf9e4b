"""The command that lets a project start programs and choose where prompts go; and the question."""

from __future__ import annotations

import time
from datetime import datetime

import click

from retinue.config.environment import Environment
from retinue.config.project_permissions import project_permissions
from retinue.config.settings_file import load_settings
from retinue.config.trust import TrustStore
from retinue.errors import UsageError
from retinue.interfaces.cli.commands.agents import say
from retinue.project import project


@click.command()
@click.argument("directory", default=".", metavar="[DIR]")
@click.option("--revoke", is_flag=True, help="Forget what you have said about it.")
@click.option("--list", "listed", is_flag=True, help="List the folders that you have decided on.")
def trust(directory: str, revoke: bool, listed: bool) -> None:
    """Let the project in DIR start its own MCP servers and send prompts to its own model.

    What it asks for now is trusted, and shown; when that changes, you are asked again. Without
    trust a project can only narrow what you allow.

    Example: retinue trust --list
    """
    kept = TrustStore(Environment.current().trust_dir)
    if revoke and listed:
        raise UsageError("--revoke and --list do not go together; choose one.")
    if listed:
        _print_all(kept)
        return
    root = project(directory)
    if revoke:
        done = kept.revoke(root)
        say(f"{root} is {'no longer' if done else 'not'} trusted.")
        return
    environment = Environment.current()
    found = project_permissions(
        load_settings(environment.user_settings_file, root), root, environment
    )
    if not found.requests:
        say(f"{root} asks for nothing that needs your trust.")
        return
    kept.grant(root, found.requests, now=time.time())
    say(f"{root} is trusted. It may use:")
    for request in found.requests:
        say(f"  {request}")


def settle(directory: str, *, model: str | None) -> None:
    """Ask the person at the terminal about what a project wants and nobody has decided on."""
    root, environment = project(directory), Environment.current()
    layers = load_settings(environment.user_settings_file, root)
    found = project_permissions(layers, root, environment, model_is_chosen=model is not None)
    if not found.pending:
        return
    click.echo(f"The project in {root} asks for:", err=True)
    for request in found.pending:
        click.echo(f"  {request}", err=True)
    click.echo("Programs run as you, and are not confined.", err=True)
    question = "Do you trust it? [y]es, [N]o, ne[v]er"
    answer = click.prompt(question, default="n", show_default=False, err=True).strip().lower()
    kept = TrustStore(environment.trust_dir)
    if answer in ("y", "yes"):
        granted = [request for request in found.requests if request not in found.denied]
        kept.grant(root, [*granted, *found.pending], now=time.time())
    elif answer in ("v", "never"):
        kept.refuse(root, found.pending, now=time.time())


def _print_all(kept: TrustStore) -> None:
    for decision in kept.all():
        said = [
            f"{len(digests)} {word}"
            for digests, word in ((decision.trusted, "trusted"), (decision.refused, "refused"))
            if digests
        ]
        day = datetime.fromtimestamp(decision.time).date()
        say(f"{decision.path}  {', '.join(said)}, {day}")
