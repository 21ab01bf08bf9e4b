"""A task in one line: `"Write tests for auth.ts" (turn 3/10, 12.4s)`."""

from __future__ import annotations

from retinue.domain.agent_state import AgentState
from retinue.domain.plural import plural
from retinue.domain.run_state import RunState
from retinue.interfaces.view.agent_tree import (
    MAX_UNGROUPED_CHILDREN,
    UNSUCCESSFUL_STATES,
    DisplayState,
    TreeRow,
    display_state,
    elapsed_s,
)
from retinue.interfaces.view.formatting import (
    cell_width,
    clip,
    clip_reason,
    format_duration,
    one_line,
)
from retinue.interfaces.view.styled_text import Line, Tone, styled

MAX_INDENT = 6
MIN_TASK_CELLS, MIN_ACTIVITY_CELLS = 12, 8


def task_summary(agent: AgentState, now: float) -> str:
    """Task and progress of an agent, for a log line."""
    running = display_state(agent) is DisplayState.RUNNING
    turns = f"turn {agent.turn}/{agent.max_turns}, " if agent.turn and running else ""
    return f'"{one_line(agent.title)}" ({turns}{format_duration(elapsed_s(agent, now))})'


def has_result_block(run: RunState, agent: AgentState) -> bool:
    """Whether a closed agent gets a result block: a child of the root, if the root has few.

    A program that leads a run prints the results of its children itself.
    """
    root = run.root
    if run.kind != "run" or root is None or agent.parent_id != root.id:
        return False
    return len(root.children) <= MAX_UNGROUPED_CHILDREN


def task_line(row: TreeRow, *, width: int, symbol: str) -> Line:
    """A row in at most `width` cells: name, task, progress, time and current activity."""
    tone = Tone(row.state)
    quiet = Tone.DIM if row.state in (DisplayState.DONE, DisplayState.WAITING) else Tone.PLAIN
    shown = styled(
        "  " * min(row.depth, MAX_INDENT),
        (f"{symbol} ", tone),
        (clip(row.label, width // 3), quiet),
    )

    def room() -> int:
        return width - cell_width(shown.plain)

    if row.failed_descendants and not row.expanded:
        shown.append(clip(f" {row.failed_descendants:,} failed below", room()), Tone.FAILED)
    ended_badly = row.state in UNSUCCESSFUL_STATES
    figures = _progress_text(row)
    if ended_badly and row.activity:
        # The reason comes before the task: the name already identifies the agent.
        shown.append(clip(f" {clip_reason(row.activity, room() - 1)}", room()), tone)
    # The activity keeps a third of the room, however long the task is.
    activity = 0 if ended_badly else min(cell_width(row.activity) + 2, room() // 3)
    left = room() - cell_width(figures) - activity
    if row.task and left > MIN_TASK_CELLS:
        task = f'"{clip(row.task, left - 3)}"'
        shown.append(f" {task}", Tone.DIM if ended_badly else quiet)
    if cell_width(figures) <= room():
        shown.append(figures, Tone.DIM)
    if row.activity and not ended_badly and room() > MIN_ACTIVITY_CELLS:
        shown.append(f"  {clip(row.activity, room() - 2)}", Tone.DIM)
    return shown


def _progress_text(row: TreeRow) -> str:
    facts = []
    if row.count > 1:
        if row.tool_calls:
            facts.append(plural(row.tool_calls, "tool call"))
    elif row.state is DisplayState.RUNNING and row.turn:
        facts.append(f"turn {row.turn}/{row.max_turns}")
    elif row.turn:
        facts.append(plural(row.turn, "turn"))
    if row.state is DisplayState.WAITING:
        facts.append("waiting")
    elif row.cached:
        facts.append("cached")
    elif row.elapsed_s or row.turn:  # A program that leads a run has neither.
        facts.append(format_duration(row.elapsed_s))
    if row.hidden_children:
        facts.append(f"+{row.hidden_children:,}")
    return f" ({', '.join(facts)})" if facts else ""
