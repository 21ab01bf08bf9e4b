"""Asks the terminal for its background colour, to choose colours that can be read on it."""

from __future__ import annotations

import os
import re
import select
import termios
import time
import tty
from typing import NamedTuple

from retinue.config.environment import Environment

# The second question is one that every terminal answers, so a terminal that does not know the first
# one keeps nobody waiting.
QUESTIONS = b"\x1b]11;?\x1b\\\x1b[c"
WAIT_S = 0.5
_BACKGROUND = re.compile(rb"\x1b\]11;rgba?:([0-9a-f]+)/([0-9a-f]+)/([0-9a-f]+)", re.I)
_ATTRIBUTES = re.compile(rb"\x1b\[\?[\d;]*c")
# An answer of the terminal, whole or cut off, or a key such as an arrow.
_SEQUENCE = re.compile(r"\x1b(\][^\x07\x1b]*(\x07|\x1b\\\\)?|\[[0-?]*[ -/]*[@-~]?|O.|.)?")
# Of the 16 colours that COLORFGBG counts, these are light.
_LIGHT_COLORS = ("7", "9", "10", "11", "12", "13", "14", "15")


class Background(NamedTuple):
    is_dark: bool | None
    """None if that cannot be found out."""
    typed: str
    """Keys that the user typed while the terminal was asked."""


def ask_background(environment: Environment, *, wait_s: float = WAIT_S) -> Background:
    answer = _answer(wait_s)
    dark = _is_dark(answer)
    if dark is None:
        *_, color = (environment.get("COLORFGBG") or "").split(";")
        dark = color not in _LIGHT_COLORS if color.isdecimal() else None
    return Background(dark, _typed(answer))


def _typed(answer: bytes) -> str:
    """The text in `answer`, as a line editor leaves it: keys without a letter are dropped."""
    text: list[str] = []
    for char in _SEQUENCE.sub("", answer.decode(errors="ignore")):
        if char in "\x7f\b":
            del text[-1:]
        elif char.isprintable() or char in "\n\t":
            text.append(char)
    return "".join(text).strip("\n")


def _is_dark(answer: bytes) -> bool | None:
    found = _BACKGROUND.search(answer)
    if found is None:
        return None
    red, green, blue = (int(part, 16) / int(b"f" * len(part), 16) for part in found.groups())
    return 0.299 * red + 0.587 * green + 0.114 * blue < 0.5


def _answer(wait_s: float) -> bytes:
    """The terminal's answer within `wait_s`. Empty without a terminal."""
    try:
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return b""
    answer = b""
    try:
        before = termios.tcgetattr(terminal)
        try:
            # Without TCSAFLUSH: what the user has typed already is for the chat.
            tty.setcbreak(terminal, termios.TCSANOW)
            os.write(terminal, QUESTIONS)
            end = time.monotonic() + wait_s
            while not _ATTRIBUTES.search(answer) and (left := end - time.monotonic()) > 0:
                if not select.select([terminal], [], [], left)[0]:
                    break
                answer += os.read(terminal, 1024)
        finally:
            termios.tcsetattr(terminal, termios.TCSANOW, before)
    except (OSError, termios.error):
        return b""
    finally:
        os.close(terminal)
    return answer
