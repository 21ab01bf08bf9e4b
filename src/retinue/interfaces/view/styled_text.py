"""Lines of styled text. Every part of a line has a tone, which says what the text means.

A line is a `rich.text.Text`. Each front end decides which style a tone has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum
from functools import cache
from io import StringIO
from itertools import accumulate

from rich.cells import chop_cells
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from rich.theme import Theme

from retinue.interfaces.view.formatting import cell_width, replace_control_chars

Line = Text
Part = str | Text | tuple[str, str]
"""A text, or a text and its tone."""
# Its colours are the terminal's own, and readable on light and dark backgrounds.
CODE_THEME = "ansi_light"


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


# The terminal's own colours, so that light and dark backgrounds both work. Colour marks the state
# of an agent, code and edits, and each of these has a symbol or a sign too.
STYLES: dict[str, str] = {
    Tone.PLAIN: "none",
    Tone.DIM: "dim",
    Tone.STRONG: "bold",
    Tone.CODE: "cyan",
    Tone.ADDED: "green",
    Tone.REMOVED: "red",
    Tone.USER: "bold",
    Tone.RUNNING: "bright_blue",
    Tone.DONE: "green",
    Tone.FAILED: "red",
    Tone.STOPPED: "yellow",
    Tone.WAITING: "dim",
    "markdown.code": "cyan",
    "markdown.code_block": "cyan",
    "markdown.h1": "bold underline",
    "markdown.h2": "bold underline",
    "markdown.h3": "bold",
    "markdown.h4": "bold",
    "markdown.h5": "bold",
    "markdown.h6": "bold",
    "markdown.hr": "dim",
    "markdown.block_quote": "dim",
    "markdown.item.bullet": "dim",
    "markdown.item.number": "dim",
    "markdown.link": "underline",
    "markdown.link_url": "underline",
    "markdown.table.border": "dim",
    "markdown.table.header": "bold",
}


@cache
def rendering_console() -> Console:
    """A console that resolves styles and lays text out. Nothing is written to it."""
    return Console(
        file=StringIO(),
        force_terminal=True,
        color_system="truecolor",
        highlight=False,
        legacy_windows=False,
        theme=Theme(STYLES),
    )


def styled(*parts: Part) -> Line:
    """A line of texts with their tones."""
    return Text.assemble(*parts)


def segments(shown: Line) -> Iterator[Segment]:
    """The line as text and style. Text of agents and servers cannot control the terminal."""
    for text, style, _ in shown.render(rendering_console()):
        yield Segment(replace_control_chars(text), style or Style.null())


def from_segments(rendered: Iterable[Segment]) -> Line:
    """A line of what rich has rendered."""
    return Text.assemble(*((text, style or "") for text, style, control in rendered if not control))


def plain_text(lines: Iterable[Line]) -> str:
    """Text of the lines, without tones."""
    return "\n".join(shown.plain.rstrip() for shown in lines)


def clip_line(shown: Line, width: int) -> Line:
    """A line shortened to at most `width` cells."""
    if cell_width(shown.plain) <= width:
        return shown
    shown = shown.copy()
    shown.truncate(max(0, width), overflow="ellipsis")
    return shown


def wrap(
    text: Line, width: int, *, first: str = "", rest: str = "", tone: Tone = Tone.DIM
) -> list[Line]:
    """Wrap a text between words. The first line starts with `first`, the others with `rest`."""
    room = max(1, width - max(cell_width(first), cell_width(rest)))
    wrapped = text.wrap(rendering_console(), room, overflow="fold") or [Text()]
    lines = []
    for index, part in enumerate(wrapped):
        part.rstrip()
        start = rest if index else first
        lines.append(styled((start, tone), part) if start else part)
    return lines


def hard_wrap(text: Line, width: int) -> list[Line]:
    """Break a text exactly at the width. For code, in which spaces matter."""
    if cell_width(text.plain) <= width:
        return [text]
    parts = chop_cells(text.plain, max(2, width))
    return list(text.divide(list(accumulate(map(len, parts)))[:-1]))
