"""`retinue trust`: lets a project start its own programs and choose the model."""

from __future__ import annotations

import time
from datetime import datetime

import click

from retinue.config.environment import Environment
from retinue.config.project_permissions import project_permissions
from retinue.config.settings_file import load_settings
from retinue.config.trust import TrustStore
from retinue.domain.plural import plural
from retinue.errors import UsageError
from retinue.interfaces.cli.terminal.output import print_line
from retinue.project import project_root, trust_journals


@click.command()
@click.argument("directory", default=".", metavar="[DIR]")
@click.option("--revoke", is_flag=True, help="Forget your decision about this project.")
@click.option("--list", "as_list", is_flag=True, help="List the projects that you decided about.")
@click.option("--journal", is_flag=True, help="Accept the runs in DIR as your own.")
def trust(directory: str, revoke: bool, as_list: bool, journal: bool) -> None:
    """Let the project in DIR start its own MCP servers and send prompts to its own model.

    Also let agents work in DIR if it is a home directory, or has .ssh, .gnupg or .aws in it.

    The command prints what the project uses. If that changes later, you are asked again. A project
    without trust can only narrow what you allow.

    With --journal, accept the runs that the project brings: of an earlier version of retinue, of a
    copied project, or of someone else. Before that, you can look at them and nothing else.

    Example: retinue trust --list
    """
    environment = Environment.current()
    decisions = TrustStore(environment.trust_dir)
    if revoke + as_list + journal > 1:
        raise UsageError("Only one of --revoke, --list and --journal is possible.")
    if as_list:
        _print_decisions(decisions)
        return
    root = project_root(directory)
    if revoke:
        was_trusted = decisions.revoke(root)
        print_line(f"{root} is {'no longer' if was_trusted else 'not'} trusted.")
        return
    if journal:
        accepted = trust_journals(root)
        print_line(f"{plural(accepted, 'run')} of {root} accepted as your own.")
        return
    found = project_permissions(load_settings(environment, root), root, environment)
    if not found.requests:
        print_line(f"{root} needs no trust.")
        return
    decisions.grant(root, found.requests, now=time.time())
    print_line(f"{root} is trusted. It may use:")
    for request in found.requests:
        print_line(f"  {request}")


def _print_decisions(decisions: TrustStore) -> None:
    for decision in decisions.all():
        counts = [
            f"{len(digests)} {word}"
            for digests, word in ((decision.trusted, "trusted"), (decision.refused, "refused"))
            if digests
        ]
        day = datetime.fromtimestamp(decision.time).date()
        print_line(f"{decision.path}  {', '.join(counts)}, {day}")
