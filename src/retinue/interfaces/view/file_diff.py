"""A change of files as lines: a heading with its agent, then the patch."""

from __future__ import annotations

from retinue.interfaces.view.formatting import clip, one_line
from retinue.interfaces.view.styled_text import Line, Span, Tone
from retinue.interfaces.view.tool_calls import patch_lines
from retinue.runtime.history.undo import ChangePatch


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
    heading = Span(clip(change_heading(change), width), Tone.STRONG)
    return [(heading,), *patch_lines(change.patch, width)]
