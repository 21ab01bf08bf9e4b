"""Redraws the last lines of a terminal without flicker.

Only changed lines are written, over the old ones. Permanent output goes above them. Each update is
sent as a synchronized update (mode 2026), where the terminal knows it.

Between updates the cursor is at the start of the first line. Some terminals wrap lines when they
are made narrower, others cut them; in both the cursor stays there, and all below it can be erased.
"""

from __future__ import annotations

import os
import sys
import termios
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, TextIO

import click
from rich.color import ColorSystem
from rich.style import Style

from retinue.config.environment import Environment
from retinue.interfaces.cli.terminal.output import print_text, width
from retinue.interfaces.view.formatting import replace_control_chars
from retinue.interfaces.view.markdown import render_markdown
from retinue.interfaces.view.styled_text import Line, segments

HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"
BEGIN, END = "\x1b[?2026h", "\x1b[?2026l"
# A program learns of a new size late, and lines that wrap would take more rows than counted.
DO_NOT_WRAP, WRAP = "\x1b[?7l", "\x1b[?7h"
ERASE_LINE, ERASE_BELOW = "\x1b[K", "\x1b[J"
# tmux copies to its history what is erased from the top left corner, so this starts beside it.
ERASE_DRAWN = f"\r{ERASE_LINE}\x1b[C{ERASE_BELOW}\r"
MIN_COLUMNS, MIN_LINES = 20, 4
# Longer lines of text are hard to read.
MAX_TEXT_WIDTH = 110
RESIZED_S = 0.4  # tmux reports sizes at most every 0.25 s.


class Styles:
    """Turns lines into text with escape codes: colours, or only bold and faint without them."""

    def __init__(self) -> None:
        self._colored = Environment.current().get("NO_COLOR") is None

    def styled(self, line: Line) -> str:
        line = line.copy()
        line.rstrip()
        return "".join(self._rendered(text, style) for text, style, _ in segments(line))

    def _rendered(self, text: str, style: Style | None) -> str:
        if not style or not text.strip():
            return text
        style = style if self._colored else style.without_color
        return style.render(text, color_system=ColorSystem.STANDARD)


def can_draw(stream: TextIO) -> bool:
    """Whether `stream` is a terminal that understands escape codes."""
    return stream.isatty() and Environment.current().get("TERM") not in (None, "dumb")


def print_lines(lines: Iterable[Line], *, err: bool = False) -> None:
    """Print lines, on a terminal with their styles."""
    drawn = can_draw(sys.stderr if err else sys.stdout)
    styles = Styles()
    for line in lines:
        text = styles.styled(line) if drawn else replace_control_chars(line.plain.rstrip())
        click.echo(text, err=err)


def print_markdown(text: str) -> None:
    """Print Markdown on standard output: rendered on a terminal, as it is elsewhere."""
    if can_draw(sys.stdout):
        print_lines(render_markdown(text, min(width(sys.stdout), MAX_TEXT_WIDTH)))
    else:
        print_text(text)


class Screen:
    """Draws lines at the end of the terminal `stream`; `close` erases them."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._styles = Styles()
        self._keyboard = Keyboard()
        self._drawn: list[str] = []
        self._last_size = self.size
        self._resized_at = -RESIZED_S
        self._hidden = False

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines. The last column stays free: terminals wrap there in different ways."""
        columns, lines = os.get_terminal_size(self._stream.fileno())
        return max(MIN_COLUMNS, columns - 1), max(MIN_LINES, lines)

    @property
    def in_foreground(self) -> bool:
        """Whether the shell runs us in the foreground; a background job must not draw."""
        try:
            return os.tcgetpgrp(self._stream.fileno()) == os.getpgrp()
        except OSError:
            return False

    def draw(self, lines: Sequence[Line]) -> None:
        """Replace the drawn lines by `lines`. While the terminal is being resized, only erase them.

        Lines that a narrower terminal wraps push others off its top, where nothing can be erased.
        """
        if not self._hidden:
            self._keyboard.disable_echo()
            self._hidden = True
            self._write(HIDE_CURSOR)
        after = [self._styles.styled(line) for line in lines]
        size, now = self.size, time.monotonic()
        if size != self._last_size:
            self._last_size, self._resized_at = size, now
            after = []
        elif now < self._resized_at + RESIZED_S:
            return
        if after != self._drawn:
            self._write(self._update(after, self._drawn))
            self._drawn = after

    def print(self, lines: Sequence[Line]) -> None:
        """Print permanent lines above the drawn ones."""
        printed = "".join(f"{self._styles.styled(line)}\r\n" for line in lines)
        self._write(self._update(self._drawn, [], printed))

    def close(self) -> None:
        """Erase the drawn lines and restore the cursor and the keyboard."""
        if self._hidden:
            self._write(ERASE_DRAWN + SHOW_CURSOR)
            self._keyboard.restore_echo()
        self._drawn, self._hidden = [], False

    def _update(self, after: Sequence[str], before: Sequence[str], printed: str = "") -> str:
        """The output that turns the lines `before` into the lines `after`.

        Unless both have lines, all is erased first: tmux also wraps cells that ERASE_LINE erased.
        """
        out = [BEGIN, "\r" if before and after else ERASE_DRAWN, printed, DO_NOT_WRAP]
        for index, line in enumerate(after):
            if index:
                out.append("\r\n")
            # Always write the last line: ERASE_BELOW starts at its end.
            if index >= len(before) or before[index] != line or index == len(after) - 1:
                out.append(line + ERASE_LINE)
        to_top = f"\x1b[{len(after) - 1}A\r" if len(after) > 1 else "\r"
        return "".join([*out, ERASE_BELOW, to_top, WRAP, END])

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


class Keyboard:
    """While lines are drawn, keys are not echoed, since a line feed would move the lines.

    Ctrl-C and Ctrl-Z do not discard output, since the cursor would stay between the lines.
    """

    def __init__(self) -> None:
        self._before: list[Any] | None = None

    def disable_echo(self) -> None:
        with suppress(termios.error, OSError, ValueError):
            file = sys.stdin.fileno()
            self._before = termios.tcgetattr(file)
            after = [*self._before]
            after[3] = after[3] & ~termios.ECHO | termios.NOFLSH
            termios.tcsetattr(file, termios.TCSADRAIN, after)

    def restore_echo(self) -> None:
        if self._before is not None:
            with suppress(termios.error, OSError, ValueError):
                termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, self._before)
            self._before = None
