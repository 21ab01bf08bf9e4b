"""`retinue help`: prints a section of the manual, or the help of a command."""

from __future__ import annotations

import shutil
import sys

import click

from retinue.errors import UsageError
from retinue.interfaces.cli.help_topics import read_topics, render, summary
from retinue.interfaces.cli.main import COMMANDS, cli
from retinue.interfaces.cli.terminal.output import print_line
from retinue.interfaces.cli.terminal.screen import print_lines
from retinue.interfaces.view.styled_text import plain_text

MAX_WIDTH = 100


def complete_topic(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in (*read_topics(), *COMMANDS) if name.startswith(incomplete)]


@click.command()
@click.argument("topic", required=False, shell_complete=complete_topic)
@click.pass_context
def help(ctx: click.Context, topic: str | None) -> None:
    """Show the manual's page on TOPIC, or the help of a command. Without TOPIC, list the topics.

    Example: retinue help sessions
    """
    topics = read_topics()
    if topic is None:
        width = max(map(len, topics)) + 2
        click.echo("Topics:\n")
        for name, text in topics.items():
            print_line(f"  {name.ljust(width)}{summary(text)}")
        click.echo(
            "\n`retinue help TOPIC` shows a topic; `retinue help COMMAND` the help of a command."
        )
    elif topic in topics:
        lines = render(topics[topic], min(MAX_WIDTH, shutil.get_terminal_size().columns))
        if sys.stdout.isatty():
            print_lines(lines)
        else:
            click.echo(plain_text(lines))
    elif topic in COMMANDS:
        command = cli.get_command(ctx, topic)
        assert command is not None, "it is in the list"
        with click.Context(command, info_name=topic, parent=ctx.parent) as inner:
            click.echo(command.get_help(inner))
    else:
        raise UsageError(f"Unknown topic {topic!r}; topics: {', '.join(topics)}.")
