"""Calling somebody back to a terminal that they may have left."""

from __future__ import annotations

from retinue.config.environment import Environment
from retinue.interfaces.view.formatting import one_line

BELL = "\a"
# Those that show a text as a notification of the desktop. Others may print what they do not know.
PROGRAMS = ("iTerm.app", "WezTerm", "ghostty")
TERMS = ("xterm-kitty", "xterm-ghostty")


def notice(environment: Environment, text: str) -> str:
    """What makes this terminal call for attention: OSC 9 where it is known, else the bell."""
    known = environment.get("TERM_PROGRAM") in PROGRAMS or environment.get("TERM") in TERMS
    # A multiplexer keeps the first to itself, and hands the bell on.
    if not known or environment.get("TMUX") or environment.get("STY"):
        return BELL
    return f"\x1b]9;{one_line(text)}\x1b\\"
