"""Asks whether a project may start its own programs and choose where prompts go."""

from __future__ import annotations

import time

import click

from retinue.config.environment import Environment
from retinue.config.project_permissions import project_permissions
from retinue.config.settings_file import load_settings
from retinue.config.trust import TrustStore
from retinue.project import project_root


def ask_for_trust(directory: str, *, model: str | None) -> None:
    """Ask about what the project demands and the user has not decided on; store the answer."""
    root, environment = project_root(directory), Environment.current()
    layers = load_settings(environment, root)
    found = project_permissions(layers, root, environment, model_is_chosen=model is not None)
    if not found.pending:
        return
    click.echo(f"The project in {root} wants to use:", err=True)
    for request in found.pending:
        click.echo(f"  {request}", err=True)
    click.echo("Programs run with your rights, outside the sandbox.", err=True)
    question = "Do you trust it? [y]es, [N]o, ne[v]er"
    answer = click.prompt(question, default="n", show_default=False, err=True).strip().lower()
    trust = TrustStore(environment.trust_dir)
    if answer in ("y", "yes"):
        granted = [request for request in found.requests if request not in found.denied]
        trust.grant(root, [*granted, *found.pending], now=time.time())
    elif answer in ("v", "never"):
        trust.refuse(root, found.pending, now=time.time())
