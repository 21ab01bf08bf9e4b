"""The theme of the chat, which uses the terminal's own colours, and lines as strips."""

from __future__ import annotations

from rich.style import Style
from textual.strip import Strip
from textual.theme import Theme

from retinue.interfaces.view.styled_text import Line, segments

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
    strip = Strip(segments(line)).adjust_cell_length(width)
    return strip.apply_style(CURSOR) if under_cursor else strip
