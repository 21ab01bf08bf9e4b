"""Colours of the tones and of code: those of the terminal, for a light and for a dark background.

Colour never stands alone: each state has a symbol, and each line of a diff a sign. The colours for
light and dark backgrounds have a contrast of at least 4.5, and people with any colour blindness see
the difference between success and failure, and between added and removed lines;
`tests/interfaces/view/test_palettes.py` computes both.
"""

from __future__ import annotations

from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec
from rich.style import Style

if TYPE_CHECKING:
    from rich.syntax import SyntaxTheme


class Tone(StrEnum):
    PLAIN = "plain"
    DIM = "dim"
    STRONG = "strong"
    CODE = "code"
    ADDED = "added"
    REMOVED = "removed"
    USER = "user"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"
    WAITING = "waiting"


class Palette(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Colours by their meaning. An empty `background` or `text` is the terminal's own."""

    name: str
    background: str = ""
    text: str = ""
    dim: str
    code: str
    running: str
    good: str
    bad: str
    warning: str
    literal: str
    """Numbers in code."""

    @cached_property
    def styles(self) -> dict[str, str]:
        """Styles of tones and of Markdown, by their names."""
        return {
            Tone.PLAIN: "none",
            Tone.DIM: self.dim,
            Tone.STRONG: "bold",
            Tone.CODE: self.code,
            Tone.ADDED: self.good,
            Tone.REMOVED: self.bad,
            Tone.USER: "bold",
            Tone.RUNNING: self.running,
            Tone.DONE: self.good,
            Tone.FAILED: self.bad,
            Tone.STOPPED: self.warning,
            Tone.WAITING: self.dim,
            "markdown.code": self.code,
            "markdown.code_block": self.code,
            "markdown.h1": "bold underline",
            "markdown.h2": "bold underline",
            "markdown.h3": "bold",
            "markdown.h4": "bold",
            "markdown.h5": "bold",
            "markdown.h6": "bold",
            "markdown.hr": self.dim,
            "markdown.block_quote": self.dim,
            "markdown.item.bullet": self.dim,
            "markdown.item.number": self.dim,
            "markdown.link": "underline",
            "markdown.link_url": "underline",
            "markdown.table.border": self.dim,
            "markdown.table.header": "bold",
        }

    @cached_property
    def code_theme(self) -> SyntaxTheme:
        # Only what shows code pays for Pygments.
        from pygments.token import Comment, Keyword, Name, Number, Operator, String, Token
        from rich.syntax import ANSISyntaxTheme

        styles = {
            Token: "",
            Comment: self.dim,
            Keyword: self.running,
            Operator.Word: self.running,
            Name.Builtin: self.code,
            Name.Class: "bold",
            Name.Decorator: self.warning,
            Name.Function: "bold",
            Name.Tag: self.running,
            Number: self.literal,
            String: self.good,
        }
        return ANSISyntaxTheme({token: Style.parse(style) for token, style in styles.items()})


TERMINAL = Palette(
    name="terminal",
    dim="dim",
    code="cyan",
    running="bright_blue",
    good="green",
    bad="red",
    warning="yellow",
    literal="magenta",
)
LIGHT = Palette(
    name="light",
    background="#fcfcfc",
    text="#1f2328",
    dim="#5c6670",
    code="#00626f",
    running="#0a58a8",
    good="#006b54",
    bad="#b03a00",
    warning="#7a5200",
    literal="#8a2a7d",
)
DARK = Palette(
    name="dark",
    background="#16181d",
    text="#dfe3e8",
    dim="#98a2ad",
    code="#7fd1e0",
    running="#7ab8ff",
    good="#5cd9c4",
    bad="#ff8a5e",
    warning="#f0c24b",
    literal="#e29ad8",
)
PALETTES = {palette.name: palette for palette in (LIGHT, DARK, TERMINAL)}
