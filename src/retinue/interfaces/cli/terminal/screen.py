"""The last lines of a terminal, drawn again and again without flicker.

Lines are written over, and only those that have changed; nothing is erased first. What is printed
for good goes above them. Terminals that know how are told to show each change as a whole.
"""

from __future__ import annotations

import os
import sys
import termios
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, TextIO

from retinue.interfaces.view.agent_table import Line, Tone
from retinue.interfaces.view.formatting import cells, harmless

COLORS = {
    Tone.DIM: "2",
    Tone.STRONG: "1",
    Tone.RUNNING: "36",
    Tone.DONE: "32",
    Tone.FAILED: "31",
    Tone.STOPPED: "33",
    Tone.WAITING: "2",
}
BARE = {Tone.DIM: "2", Tone.STRONG: "1", Tone.WAITING: "2", Tone.FAILED: "1"}
HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"
BEGIN, END = "\x1b[?2026h", "\x1b[?2026l"
ERASE_LINE, ERASE_BELOW = "\x1b[K", "\x1b[J"
LEAST_COLUMNS, LEAST_LINES = 20, 4


class Styles:
    """Tones as a terminal shows them. Without colour there is still bold and faint."""

    def __init__(self, *, color: bool) -> None:
        self._codes = COLORS if color else BARE

    def styled(self, line: Line) -> str:
        return "".join(self._span(span.text, span.tone) for span in line).rstrip()

    def _span(self, text: str, tone: Tone) -> str:
        code, text = self._codes.get(tone), harmless(text)
        return text if code is None or not text.strip() else f"\x1b[{code}m{text}\x1b[0m"


class Screen:
    """Draws at the end of `stream`, a terminal; `close` leaves nothing of it behind."""

    def __init__(self, stream: TextIO, styles: Styles) -> None:
        self._stream = stream
        self._styles = styles
        self._keyboard = Keyboard()
        self._drawn: list[str] = []
        self._widths: list[int] = []
        self._columns = 0
        self._hidden = False

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines. The last column is left free: what happens behind it differs."""
        columns, lines = os.get_terminal_size(self._stream.fileno())
        return max(LEAST_COLUMNS, columns - 1), max(LEAST_LINES, lines)

    @property
    def in_front(self) -> bool:
        """Is the terminal ours? A job in the background must not draw over its shell."""
        try:
            return os.tcgetpgrp(self._stream.fileno()) == os.getpgrp()
        except OSError:
            return False

    def draw(self, lines: Sequence[Line]) -> None:
        """Show these lines in place of those that were drawn before."""
        if not self._hidden:
            self._keyboard.quiet()
            self._hidden = True
            self._write(HIDE_CURSOR)
        after = [self._styles.styled(line) for line in lines]
        columns, _ = self.size
        if after != self._drawn or columns != self._columns:
            # Lines that a resize may have moved are not where they were.
            self._write(self._over(after, self._drawn if columns == self._columns else []))
            self._drawn, self._columns = after, columns
            self._widths = [sum(cells(span.text) for span in line) for line in lines]

    def print(self, lines: Sequence[Line]) -> None:
        """Print for good, above what is drawn."""
        printed = "".join(f"{self._styles.styled(line)}{ERASE_LINE}\r\n" for line in lines)
        self._write(self._over(self._drawn, [], printed))

    def close(self) -> None:
        """Take away what is drawn, and give the terminal back as it was."""
        if self._hidden:
            self._write(self._to_top() + ERASE_BELOW + SHOW_CURSOR)
            self._keyboard.loud()
        self._drawn, self._widths, self._hidden = [], [], False

    def _over(self, after: Sequence[str], before: Sequence[str], printed: str = "") -> str:
        """What turns the lines `before` into those `after`."""
        out = [BEGIN, self._to_top(), printed]
        for index, line in enumerate(after):
            if index:
                out.append("\r\n")
            # The last one always, since what is erased begins at its end.
            if index >= len(before) or before[index] != line or index == len(after) - 1:
                out.append(line + ERASE_LINE)
        return "".join([*out, ERASE_BELOW, END])

    def _to_top(self) -> str:
        """From the last line that is drawn to the first."""
        columns, _ = self.size
        rows = len(self._drawn)
        if columns < self._columns:
            # A terminal that became narrower has broken them.
            rows = sum(max(1, -(-width // (columns + 1))) for width in self._widths)
        return "\r" if rows <= 1 else f"\x1b[{rows - 1}A\r"

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


class Keyboard:
    """Keys are not echoed while something is drawn: a line feed would move it."""

    def __init__(self) -> None:
        self._before: list[Any] | None = None

    def quiet(self) -> None:
        with suppress(termios.error, OSError, ValueError):
            file = sys.stdin.fileno()
            self._before = termios.tcgetattr(file)
            after = [*self._before]
            after[3] &= ~termios.ECHO
            termios.tcsetattr(file, termios.TCSADRAIN, after)

    def loud(self) -> None:
        if self._before is not None:
            with suppress(termios.error, OSError, ValueError):
                termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, self._before)
            self._before = None
