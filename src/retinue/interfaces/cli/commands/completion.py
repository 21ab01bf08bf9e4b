"""`retinue completion`: prints the completion script of a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from retinue.interfaces.cli.main import cli

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the completion script for SHELL.

    It completes commands, options, roles, models, runs and agents.

    \b
    bash: add  eval "$(retinue completion bash)"  to ~/.bashrc
    zsh:  add  eval "$(retinue completion zsh)"  to ~/.zshrc, after compinit
    fish: retinue completion fish > ~/.config/fish/completions/retinue.fish

    Example: retinue completion bash
    """
    completer = get_completion_class(shell)
    assert completer is not None, "click knows these three shells"
    click.echo(completer(cli, {}, "retinue", "_RETINUE_COMPLETE").source())
