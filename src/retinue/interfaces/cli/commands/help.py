"""The command that tells about a topic."""

from __future__ import annotations

import click

from retinue.errors import UsageError
from retinue.interfaces.cli.help_topics import TOPICS, text_of
from retinue.interfaces.cli.main import COMMANDS, cli


def _topics(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in (*TOPICS, *COMMANDS) if name.startswith(incomplete)]


@click.command()
@click.argument("topic", required=False, shell_complete=_topics)
@click.pass_context
def help(ctx: click.Context, topic: str | None) -> None:
    """Tell about TOPIC, or about a command; without either, what there is to tell about.

    Example: retinue help sessions
    """
    if topic is None:
        click.echo("Topics, each told of by `retinue help TOPIC`:\n")
        for name, (text, _) in TOPICS.items():
            click.echo(f"  {name:<12} {text}")
        click.echo(
            "\nCommands are told of by `retinue COMMAND --help`; `retinue --help` lists them."
        )
    elif topic in TOPICS:
        click.echo(text_of(topic))
    elif topic in COMMANDS:
        command = cli.get_command(ctx, topic)
        assert command is not None, "it is in the list"
        with click.Context(command, info_name=topic, parent=ctx.parent) as inner:
            click.echo(command.get_help(inner))
    else:
        raise UsageError(f"There is no topic {topic!r}; there are: {', '.join(TOPICS)}.")
