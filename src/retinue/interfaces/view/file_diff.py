"""A change of files as lines: who made it, and what it put in the place of what."""

from __future__ import annotations

from retinue.interfaces.view.agent_table import Line, Span, Tone
from retinue.interfaces.view.formatting import clip, lines_of, one_line
from retinue.interfaces.view.markdown import chopped
from retinue.runtime.history.undo import ChangePatch

TONES = {"+": Tone.ADDED, "-": Tone.REMOVED, "@": Tone.CODE}


def change_head(change: ChangePatch) -> str:
    """Which step it is, whose, and what became of it."""
    what = "not integrated" if change.number is None else f"step {change.number}"
    if change.state == "undone":
        what += ", undone"
    elif change.state == "made" and change.number is None:
        what = "brought in by redo"
    who = f"{change.agent_id} ({change.path})" if change.agent_id else "nobody knows whom"
    return f"{what}, by {who}: {one_line(change.title)}"


def change_lines(change: ChangePatch, width: int) -> list[Line]:
    lines: list[Line] = [(Span(clip(change_head(change), width), Tone.STRONG),)]
    for line in lines_of(change.patch):
        if line.startswith(("diff --git ", "index ")):
            continue  # The lines below say it again.
        header = line.startswith(("+++ ", "--- "))
        tone = Tone.DIM if header else TONES.get(line[:1], Tone.PLAIN)
        lines += chopped(line, width, indent="  ", tone=tone)
    return lines
