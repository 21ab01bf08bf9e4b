"""Text for a person or a file: what a terminal would obey is left out, and its width is kept."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TextIO

import click

from retinue.interfaces.view.formatting import cells, clip, fill, lines_of

# Below a terminal of this width, a line that is cut tells too little.
MIN_WIDTH = 60
UNCUT = 1_000_000


def width(stream: TextIO) -> int:
    """How wide a line may be: a terminal has a width, and a file keeps what it is given."""
    if not stream.isatty():
        return UNCUT
    return max(MIN_WIDTH, os.get_terminal_size(stream.fileno()).columns)


def say(line: str) -> None:
    """Print one line, on a terminal as much of it as it has room for."""
    click.echo(clip(" ".join(lines_of(line)), width(sys.stdout)))


def write(text: str) -> None:
    """Print a text as it is; on a terminal without what that would obey."""
    _echo(text, err=False)


def tell(text: str) -> None:
    """Like `write`, on standard error."""
    _echo(text, err=True)


def _echo(text: str, *, err: bool) -> None:
    stream = sys.stderr if err else sys.stdout
    click.echo("\n".join(lines_of(text)) if stream.isatty() else text, err=err)


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows with their columns below each other; a person at a terminal gets the headings."""
    shown = [head, *rows] if sys.stdout.isatty() else rows
    widths = [max(map(cells, column)) for column in zip(*shown, strict=True)][:-1]
    for *columns, last in shown:
        say("  ".join([*map(fill, columns, widths), last]))
