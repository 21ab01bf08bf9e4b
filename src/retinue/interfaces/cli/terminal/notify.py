"""Desktop notifications and bells that a terminal understands."""

from __future__ import annotations

from retinue.config.environment import Environment
from retinue.interfaces.view.formatting import one_line

BELL = "\a"
# Terminals that show OSC 9 as a desktop notification. Unknown ones may print its text.
PROGRAMS = ("iTerm.app", "WezTerm", "ghostty")
TERMS = ("xterm-kitty", "xterm-ghostty")


def notification(environment: Environment, text: str) -> str:
    """The characters that make this terminal notify: OSC 9 where supported, else the bell."""
    known = environment.get("TERM_PROGRAM") in PROGRAMS or environment.get("TERM") in TERMS
    # tmux and screen swallow OSC 9, and pass the bell on.
    if not known or environment.get("TMUX") or environment.get("STY"):
        return BELL
    return f"\x1b]9;{one_line(text)}\x1b\\"
