"""A change of files as lines: a heading with its agent, then the patch."""

from __future__ import annotations

from retinue.interfaces.view.formatting import clip, one_line, printable_lines
from retinue.interfaces.view.styled_text import Line, Span, Tone, hard_wrap
from retinue.runtime.history.undo import ChangePatch

PATCH_TONES = {"+": Tone.ADDED, "-": Tone.REMOVED, "@": Tone.CODE}


def change_heading(change: ChangePatch) -> str:
    """`step 3, by a2 (root/executor.1): write a.py`, with a note where the change was undone."""
    what = "not merged" if change.number is None else f"step {change.number}"
    if change.state == "undone":
        what += ", undone"
    elif change.state == "made" and change.number is None:
        what = "applied by redo"
    agent = f"{change.agent_id} ({change.path})" if change.agent_id else "an unknown agent"
    return f"{what}, by {agent}: {one_line(change.title)}"


def diff_lines(change: ChangePatch, width: int) -> list[Line]:
    lines: list[Line] = [(Span(clip(change_heading(change), width), Tone.STRONG),)]
    for line in printable_lines(change.patch):
        if line.startswith(("diff --git ", "index ")):
            continue  # The --- and +++ lines name the files again.
        header = line.startswith(("+++ ", "--- "))
        tone = Tone.DIM if header else PATCH_TONES.get(line[:1], Tone.PLAIN)
        lines += hard_wrap(line, width, indent="  ", tone=tone)
    return lines
