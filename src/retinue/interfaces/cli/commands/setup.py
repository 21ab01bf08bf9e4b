"""`retinue setup`: asks which model agents use, and saves it."""

from __future__ import annotations

import click

from retinue.errors import UsageError
from retinue.interfaces.cli.main import at_terminal
from retinue.interfaces.cli.model_setup import choose_model
from retinue.interfaces.cli.options import directory_option


@click.command()
@directory_option
def setup(directory: str) -> None:
    """Choose the model that agents use, and save it in your settings.

    Offers the models of the servers that run here (llama.cpp, Ollama, LM Studio, vLLM), of the
    providers whose keys are set, and the embedded model. `retinue` and `retinue run` ask the same
    if no model is named.

    Example: retinue setup
    """
    if not at_terminal():
        raise UsageError(
            "The setup asks questions, and there is no terminal; set the model with"
            " `retinue config set model NAME`."
        )
    choose_model(directory)
