"""A task under way in one line: `"Write tests for auth.ts" (turn 3/10, 12.4s)`."""

from __future__ import annotations

from retinue.domain.agent_state import AgentState
from retinue.domain.run_state import RunState
from retinue.interfaces.view.agent_table import Line, Span, Tone
from retinue.interfaces.view.agent_tree import SMALL_FAMILY, Mark, Row, mark_of, seconds
from retinue.interfaces.view.formatting import cells, clip, clip_reason, duration, one_line, some

DEEPEST = 6
LEAST_TASK, LEAST_DOING = 12, 8


def about(agent: AgentState, now: float) -> str:
    """What an agent does, as a line in a log."""
    running = mark_of(agent) is Mark.RUNNING
    turns = f"turn {agent.turn}/{agent.max_turns}, " if agent.turn and running else ""
    return f'"{one_line(agent.title)}" ({turns}{duration(seconds(agent, now))})'


def has_block(view: RunState, agent: AgentState) -> bool:
    """Is its end worth a block of its own? That of a child of the root, if there are few of them.

    Where a program leads, it tells of its children itself.
    """
    root = view.root
    if view.kind != "run" or root is None or agent.parent_id != root.id:
        return False
    return len(root.children) <= SMALL_FAMILY


def task_line(row: Row, *, width: int, sign: str) -> Line:
    """A row in at most `width` cells: who, what, how far, how long, and what it does just now."""
    tone = Tone(row.mark)
    quiet = Tone.DIM if row.mark in (Mark.DONE, Mark.WAITING) else Tone.PLAIN
    name = f"{row.count:,}× {row.name}" if row.count > 1 else row.name
    spans = [
        Span("  " * min(row.depth, DEEPEST)),
        Span(f"{sign} ", tone),
        Span(clip(name, width // 3), quiet),
    ]
    room = width - sum(cells(span.text) for span in spans)
    if row.failed_below and not row.open:
        spans.append(Span(clip(f" {row.failed_below:,} failed below", room), Tone.FAILED))
        room -= cells(spans[-1].text)
    ended_badly = row.mark in (Mark.FAILED, Mark.STOPPED)
    figures = _figures(row)
    if ended_badly and row.doing:
        # Why comes before what: the name already tells which one it is.
        spans.append(Span(clip(f" {clip_reason(row.doing, room - 1)}", room), tone))
        room -= cells(spans[-1].text)
    # What it does just now is told as well, beside a task of any length.
    doing = 0 if ended_badly else min(cells(row.doing) + 2, room // 3)
    left = room - cells(figures) - doing
    if row.task and left > LEAST_TASK:
        task = f'"{clip(row.task, left - 3)}"'
        spans.append(Span(f" {task}", Tone.DIM if ended_badly else quiet))
        room -= cells(spans[-1].text)
    if cells(figures) <= room:
        spans.append(Span(figures, Tone.DIM))
        room -= cells(figures)
    if row.doing and not ended_badly and room > LEAST_DOING:
        spans.append(Span(f"  {clip(row.doing, room - 2)}", Tone.DIM))
    return tuple(spans)


def _figures(row: Row) -> str:
    facts = []
    if row.count > 1:
        if row.tool_calls:
            facts.append(some(row.tool_calls, "tool call"))
    elif row.mark is Mark.RUNNING and row.turn:
        facts.append(f"turn {row.turn}/{row.max_turns}")
    elif row.turn:
        facts.append(some(row.turn, "turn"))
    if row.mark is Mark.WAITING:
        facts.append("waiting")
    elif row.cached:
        facts.append("cached")
    else:
        facts.append(duration(row.seconds))
    hidden = "" if row.open or not row.below or row.count > 1 else f", +{row.below:,}"
    return f" ({', '.join(facts)}{hidden})"
