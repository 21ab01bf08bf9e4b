"""`retinue chat`, as far as it is not the chat itself."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.interfaces.cli.conftest import Script, Start


def test_chat_ends_when_its_terminal_closes(terminal: Start, script: Script) -> None:
    term = terminal("chat", "-m", script("steps: [{say: never, delay_s: 3000}]"))
    term.see("/help lists commands and keys.")
    term.type("Go\r")
    term.see("❯ Go", "never")
    # A code of its own: the kernel's alarm, which is there for the worst, would be a signal.
    assert term.hang_up() == 128 + signal.SIGHUP
