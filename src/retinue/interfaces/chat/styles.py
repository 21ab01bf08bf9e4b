"""Themes of the chat for Textual, made of palettes; and lines as strips."""

from __future__ import annotations

from rich.style import Style
from textual.strip import Strip
from textual.theme import Theme as TextualTheme

from retinue.config.settings import Theme
from retinue.interfaces.view.palettes import DARK, LIGHT, PALETTES, TERMINAL, Palette
from retinue.interfaces.view.styled_text import Line, segments

CURSOR = Style(reverse=True)
THEMES = {
    Theme.AUTO: "light or dark, from the background of the terminal",
    Theme.LIGHT: "dark text on a light background",
    Theme.DARK: "light text on a dark background",
    Theme.TERMINAL: "the terminal's own colours",
}


def palette_of(theme: Theme, dark_background: bool | None) -> Palette:
    """The palette of a theme. If the background is not known, only the terminal's own fits."""
    if theme is not Theme.AUTO:
        return PALETTES[theme]
    return TERMINAL if dark_background is None else DARK if dark_background else LIGHT


def textual_theme(palette: Palette, *, painted: bool) -> TextualTheme:
    """The colours of borders, lists and bars. Unless `painted`, the background stays as it is."""
    painted = painted and bool(palette.background)
    background = palette.background if painted else "ansi_default"
    text = palette.text if painted else "ansi_default"
    line = palette.dim if palette.background else "ansi_bright_black"
    warning = palette.warning if palette.background else "ansi_yellow"
    primary = palette.running if palette.background else "ansi_blue"
    return TextualTheme(
        name=f"retinue-{palette.name}{'-painted' if painted else ''}",
        ansi=True,
        dark=palette is not LIGHT,
        primary=primary,
        secondary=primary,
        warning=warning,
        error=palette.bad if palette.background else "ansi_red",
        success=palette.good if palette.background else "ansi_green",
        accent=primary,
        foreground=text,
        background=background,
        surface=background,
        panel=background,
        boost=background,
        variables={
            "ansi-background": background,
            "ansi-foreground": text,
            "border-blurred": line,
            "block-cursor-foreground": text,
            "block-cursor-background": background,
            "input-selection-background": background,
            "input-selection-foreground": text,
            "screen-selection-background": background,
            "screen-selection-foreground": text,
            "input-cursor-foreground": text,
            "input-cursor-background": background,
            "input-cursor-text-style": "reverse",
            "scrollbar": line,
            "scrollbar-hover": text,
            "scrollbar-active": text,
            "scrollbar-background": background,
            "scrollbar-background-hover": background,
            "scrollbar-background-active": background,
            "scrollbar-corner-color": background,
        },
    )


def to_strip(
    line: Line, width: int, *, under_cursor: bool = False, base: Style | None = None
) -> Strip:
    """A line as a Textual strip, padded to `width`. `base` is the style of the widget.

    Its background is written only where the theme paints one: it would cost on every line.
    """
    strip = Strip(segments(line)).adjust_cell_length(width)
    if base is not None and base.bgcolor is not None and not base.bgcolor.is_default:
        strip = strip.apply_style(base)
    return strip.apply_style(CURSOR) if under_cursor else strip
