"""Prints text without control characters, cut to the width of the terminal."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Sequence
from typing import Any, TextIO

import click
import msgspec

from retinue.interfaces.view.formatting import aligned, clip, printable_lines, without_controls

# On a narrower terminal, lines cut to the width would say too little.
MIN_WIDTH = 60
UNLIMITED = 1_000_000


def width(stream: TextIO) -> int:
    """The width of a terminal; files and pipes get whole lines."""
    if not stream.isatty():
        return UNLIMITED
    return max(MIN_WIDTH, os.get_terminal_size(stream.fileno()).columns)


def print_line(line: str) -> None:
    """Print one line, cut to the width of the terminal."""
    click.echo(clip(" ".join(printable_lines(line)), width(sys.stdout)))


def print_fact(text: str) -> None:
    """Print one line, on a terminal broken between words. Further parts are indented by two."""
    print_wrapped(" ".join(printable_lines(text)), hanging=2)


def print_error(text: str) -> None:
    """Like `print_wrapped`, on standard error."""
    print_wrapped(text, err=True)


def print_wrapped(text: str, *, hanging: int = 0, err: bool = False) -> None:
    """Like `print_text`. For a terminal, lines are broken between words.

    The further parts of a line are indented like its beginning, and by `hanging` more.
    """
    stream = sys.stderr if err else sys.stdout
    text = printable_text(text, stream)
    if stream.isatty():
        columns = os.get_terminal_size(stream.fileno()).columns
        parts = [_wrapped(line, columns, hanging) for line in text.split("\n")]
        text = "\n".join(part for line in parts for part in line)
    click.echo(text, err=err)


def _wrapped(line: str, columns: int, hanging: int) -> list[str]:
    if not 0 < columns < len(line):
        return [line]
    indent = " " * (len(line) - len(line.lstrip()) + hanging)
    return textwrap.wrap(
        line, columns, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def print_text(text: str) -> None:
    """Print whole text, without control characters."""
    click.echo(printable_text(text, sys.stdout))


def printable_text(text: str, stream: TextIO) -> str:
    """`text` without control characters.

    A pipe may end at a terminal, and a file may be shown on one. They keep tabs, though, and all
    characters that a terminal does not act on.
    """
    return "\n".join(printable_lines(text)) if stream.isatty() else without_controls(text)


def print_json(*objects: Any) -> None:
    """Print each object as a line of JSON."""
    for one in objects:
        click.echo(msgspec.json.encode(one))


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print aligned columns. Only a terminal gets the headings."""
    for line in aligned([head, *rows] if sys.stdout.isatty() else rows):
        print_line(line)
