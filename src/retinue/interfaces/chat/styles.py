"""Styles of the tones. They use the terminal's own colours, so light and dark themes both work."""

from __future__ import annotations

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip
from textual.theme import Theme

from retinue.interfaces.view.formatting import replace_control_chars
from retinue.interfaces.view.styled_text import Line, Tone, line_width

# Colour marks the state of an agent, code and edits. Everything else is bold or dim.
STYLES: dict[Tone, Style] = {
    Tone.PLAIN: Style(),
    Tone.DIM: Style(dim=True),
    Tone.STRONG: Style(bold=True),
    Tone.CODE: Style(color="cyan"),
    Tone.ADDED: Style(color="green"),
    Tone.REMOVED: Style(color="red"),
    Tone.USER: Style(bold=True),
    Tone.RUNNING: Style(color="bright_blue"),
    Tone.DONE: Style(color="green"),
    Tone.FAILED: Style(color="red"),
    Tone.STOPPED: Style(color="yellow"),
    Tone.WAITING: Style(dim=True),
}
CURSOR = Style(reverse=True)

THEME = Theme(
    name="retinue",
    ansi=True,
    primary="ansi_blue",
    secondary="ansi_cyan",
    warning="ansi_yellow",
    error="ansi_red",
    success="ansi_green",
    accent="ansi_bright_blue",
    foreground="ansi_default",
    background="ansi_default",
    surface="ansi_default",
    panel="ansi_default",
    boost="ansi_default",
    variables={
        "ansi-background": "ansi_default",
        "ansi-foreground": "ansi_default",
        "border-blurred": "ansi_bright_black",
        "block-cursor-foreground": "ansi_default",
        "block-cursor-background": "ansi_default",
        "input-selection-background": "ansi_default",
        "input-selection-foreground": "ansi_default",
        "screen-selection-background": "ansi_default",
        "screen-selection-foreground": "ansi_default",
        "input-cursor-foreground": "ansi_default",
        "input-cursor-background": "ansi_default",
        "input-cursor-text-style": "reverse",
        "scrollbar": "ansi_bright_black",
        "scrollbar-hover": "ansi_default",
        "scrollbar-active": "ansi_default",
        "scrollbar-background": "ansi_default",
        "scrollbar-background-hover": "ansi_default",
        "scrollbar-background-active": "ansi_default",
        "scrollbar-corner-color": "ansi_default",
    },
)


def to_strip(line: Line, width: int, *, under_cursor: bool = False) -> Strip:
    """A line as a Textual strip, padded to `width`."""
    cursor = CURSOR if under_cursor else Style()
    segments = []
    for text, tone in line:
        # Text of agents and servers must not reach the terminal as escape sequences.
        segments.append(Segment(replace_control_chars(text), STYLES[tone] + cursor))
    used = line_width(line)
    if used < width:
        segments.append(Segment(" " * (width - used), cursor))
    return Strip(segments).crop(0, width)
