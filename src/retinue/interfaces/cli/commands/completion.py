"""The command that makes a shell complete what is typed."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from retinue.interfaces.cli.main import cli

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print what makes SHELL complete commands, options, roles, models, runs and agents.

    \b
    bash: put  eval "$(retinue completion bash)"  into ~/.bashrc
    zsh:  put  eval "$(retinue completion zsh)"  into ~/.zshrc, after compinit
    fish: retinue completion fish > ~/.config/fish/completions/retinue.fish

    Example: retinue completion bash
    """
    found = get_completion_class(shell)
    assert found is not None, "click knows these three"
    click.echo(found(cli, {}, "retinue", "_RETINUE_COMPLETE").source())
