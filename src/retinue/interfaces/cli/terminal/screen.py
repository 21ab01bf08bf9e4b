"""Redraws the last lines of a terminal without flicker.

Only changed lines are written, over the old ones; nothing is erased first. Permanent output goes
above them. Each update is sent as a synchronized update (mode 2026), where the terminal knows it.
"""

from __future__ import annotations

import os
import sys
import termios
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, TextIO

import click

from retinue.config.environment import Environment
from retinue.interfaces.view.formatting import replace_control_chars
from retinue.interfaces.view.styled_text import Line, Tone, line_width

COLORS = {
    Tone.DIM: "2",
    Tone.STRONG: "1",
    Tone.RUNNING: "36",
    Tone.DONE: "32",
    Tone.FAILED: "31",
    Tone.STOPPED: "33",
    Tone.WAITING: "2",
}
WITHOUT_COLOR = {Tone.DIM: "2", Tone.STRONG: "1", Tone.WAITING: "2", Tone.FAILED: "1"}
HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"
BEGIN, END = "\x1b[?2026h", "\x1b[?2026l"
ERASE_LINE, ERASE_BELOW = "\x1b[K", "\x1b[J"
MIN_COLUMNS, MIN_LINES = 20, 4


class Styles:
    """Turns tones into escape codes: colours, or only bold and faint without them."""

    def __init__(self) -> None:
        no_color = Environment.current().get("NO_COLOR")
        self._codes = COLORS if no_color is None else WITHOUT_COLOR

    def styled(self, line: Line) -> str:
        return "".join(self._span(span.text, span.tone) for span in line).rstrip()

    def _span(self, text: str, tone: Tone) -> str:
        code, text = self._codes.get(tone), replace_control_chars(text)
        return text if code is None or not text.strip() else f"\x1b[{code}m{text}\x1b[0m"


def can_draw(stream: TextIO) -> bool:
    """Whether `stream` is a terminal that understands escape codes."""
    return stream.isatty() and Environment.current().get("TERM") not in (None, "dumb")


def print_lines(lines: Iterable[Line], *, err: bool = False) -> None:
    """Print lines with their styles."""
    styles = Styles()
    for line in lines:
        click.echo(styles.styled(line), err=err)


class Screen:
    """Draws lines at the end of the terminal `stream`; `close` erases them."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._styles = Styles()
        self._keyboard = Keyboard()
        self._drawn: list[str] = []
        self._widths: list[int] = []
        self._columns = 0
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
        """Replace the drawn lines by `lines`."""
        if not self._hidden:
            self._keyboard.disable_echo()
            self._hidden = True
            self._write(HIDE_CURSOR)
        after = [self._styles.styled(line) for line in lines]
        columns, _ = self.size
        if after != self._drawn or columns != self._columns:
            # A resize may have moved the old lines, so all are written again.
            self._write(self._update(after, self._drawn if columns == self._columns else []))
            self._drawn, self._columns = after, columns
            self._widths = [line_width(line) for line in lines]

    def print(self, lines: Sequence[Line]) -> None:
        """Print permanent lines above the drawn ones."""
        printed = "".join(f"{self._styles.styled(line)}{ERASE_LINE}\r\n" for line in lines)
        self._write(self._update(self._drawn, [], printed))

    def close(self) -> None:
        """Erase the drawn lines and restore the cursor and the keyboard."""
        if self._hidden:
            self._write(self._to_top() + ERASE_BELOW + SHOW_CURSOR)
            self._keyboard.restore_echo()
        self._drawn, self._widths, self._hidden = [], [], False

    def _update(self, after: Sequence[str], before: Sequence[str], printed: str = "") -> str:
        """The output that turns the lines `before` into the lines `after`."""
        out = [BEGIN, self._to_top(), printed]
        for index, line in enumerate(after):
            if index:
                out.append("\r\n")
            # Always write the last line: ERASE_BELOW starts at its end.
            if index >= len(before) or before[index] != line or index == len(after) - 1:
                out.append(line + ERASE_LINE)
        return "".join([*out, ERASE_BELOW, END])

    def _to_top(self) -> str:
        """The escape code that moves from the last drawn line to the first."""
        columns, _ = self.size
        rows = len(self._drawn)
        if columns < self._columns:
            # A narrower terminal has wrapped them.
            rows = sum(max(1, -(-width // (columns + 1))) for width in self._widths)
        return "\r" if rows <= 1 else f"\x1b[{rows - 1}A\r"

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


class Keyboard:
    """Turns the echo of typed keys off while lines are drawn: a line feed would move them."""

    def __init__(self) -> None:
        self._before: list[Any] | None = None

    def disable_echo(self) -> None:
        with suppress(termios.error, OSError, ValueError):
            file = sys.stdin.fileno()
            self._before = termios.tcgetattr(file)
            after = [*self._before]
            after[3] &= ~termios.ECHO
            termios.tcsetattr(file, termios.TCSADRAIN, after)

    def restore_echo(self) -> None:
        if self._before is not None:
            with suppress(termios.error, OSError, ValueError):
                termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, self._before)
            self._before = None
