"""`retinue chat`, as far as it is not the chat itself."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from retinue.interfaces.cli.terminal.background import QUESTIONS

if TYPE_CHECKING:
    from tests.interfaces.cli.conftest import Script, Start


def test_chat_ends_when_its_terminal_closes(terminal: Start, script: Script) -> None:
    term = terminal("chat", "-m", script("steps: [{say: never, delay_s: 3000}]"))
    term.see("/help lists commands and keys.")
    term.type("Go\r")
    term.see("❯ Go", "never")
    # A code of its own: the kernel's alarm, which is there for the worst, would be a signal.
    assert term.hang_up() == 128 + signal.SIGHUP


def test_keys_typed_while_the_chat_starts_are_in_its_input_line(
    terminal: Start, script: Script
) -> None:
    term = terminal("chat", "-m", script("steps: [{say: done}]"))
    term.until(lambda: QUESTIONS in term.raw, "the question for the background")
    term.type("Fix the \x1b]11;rgb:0000/0000/0000\x1b\\test\x1b[?1;2c")
    term.see("/help lists commands and keys.", "Fix the test")
    term.type(" now\r")
    term.see("❯ Fix the test now", "done")
