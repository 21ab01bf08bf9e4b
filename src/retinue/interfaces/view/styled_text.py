"""Lines of styled text. Every part of a line has a tone, which says what the text means.

A line is a `rich.text.Text`. The palette in use decides which style a tone has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from io import StringIO
from itertools import accumulate
from typing import TYPE_CHECKING

from rich.cells import chop_cells
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from rich.theme import Theme

from retinue.interfaces.view.formatting import cell_width, replace_control_chars
from retinue.interfaces.view.palettes import TERMINAL, Palette, Tone

if TYPE_CHECKING:
    from rich.syntax import SyntaxTheme

__all__ = ["Line", "Tone", "clip_line", "code_theme", "from_segments", "hard_wrap", "plain_text",
           "rendering_console", "segments", "styled", "use_palette", "wrap"]  # fmt: skip
Line = Text
Part = str | Text | tuple[str, str]
"""A text, or a text and its tone."""
_palette = TERMINAL


@cache
def rendering_console() -> Console:
    """A console that resolves styles and lays text out. Nothing is written to it."""
    return Console(
        file=StringIO(),
        force_terminal=True,
        color_system="truecolor",
        highlight=False,
        legacy_windows=False,
        theme=Theme(TERMINAL.styles),
    )


def use_palette(palette: Palette) -> None:
    """Use other colours from now on. A process has one terminal, and so one palette."""
    global _palette
    console = rendering_console()
    if _palette is not TERMINAL:
        console.pop_theme()
    if palette is not TERMINAL:
        console.push_theme(Theme(palette.styles))
    _palette = palette


def code_theme() -> SyntaxTheme:
    """The colours of code in the palette in use."""
    return _palette.code_theme


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
