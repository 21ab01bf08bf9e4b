"""The tree of a recorded run, folded and coloured like the live tree, with ids of agents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from textwrap import wrap

import msgspec

from retinue.domain.events import Event
from retinue.interfaces.view.agent_tree import (
    ACTIVE_STATES,
    STATE_SYMBOLS,
    UNSUCCESSFUL_STATES,
    AgentTree,
    DisplayState,
    TreeRow,
)
from retinue.interfaces.view.formatting import one_line
from retinue.interfaces.view.run_status import agent_status
from retinue.interfaces.view.styled_text import Line, Tone, styled
from retinue.interfaces.view.task_lines import MAX_INDENT, task_line

MAX_UNFOLDED_FAILURES = 10
"""A larger group of agents that failed for the same reason stays folded."""
MIN_TEXT_WIDTH = 20


def run_tree(
    events: Iterable[Event], *, width: int, active: bool, now: float, unfolded: bool = False
) -> tuple[list[Line], bool]:
    """The lines of the tree, and whether some agents are folded away.

    Agents of a run that no process works on (`active`) are shown as stopped.
    """
    tree = AgentTree()
    for event in events:
        tree.apply(event)
    ended_at = now if active else event.time
    while to_unfold := [
        row
        for row in tree.rows(ended_at)
        if not row.expanded and row.child_count and _is_unfolded(row, unfolded)
    ]:
        for row in to_unfold:
            tree.set_expanded(row.key, True)
    rows = tree.rows(ended_at)
    lines = [line for row in rows for line in _lines(tree, row, width=width, active=active)]
    return lines, any(row.child_count and not row.expanded for row in rows)


def _is_unfolded(row: TreeRow, unfolded: bool) -> bool:
    few_failures = row.state in UNSUCCESSFUL_STATES and row.child_count <= MAX_UNFOLDED_FAILURES
    return unfolded or (row.count > 1 and few_failures)


def _lines(tree: AgentTree, row: TreeRow, *, width: int, active: bool) -> Iterator[Line]:
    agent = tree.run.agents[row.agent_id]
    if row.state in ACTIVE_STATES and not active:
        status = agent_status(tree.run, agent, active=active)
        row = msgspec.structs.replace(row, state=DisplayState.STOPPED, activity=status)
    if row.count > 1:
        yield task_line(row, width=width, symbol=STATE_SYMBOLS[row.state])
        return
    row = msgspec.structs.replace(row, name=f"{row.agent_id} {row.name}")
    indent = "  " * (min(row.depth, MAX_INDENT) + 2)
    details: list[tuple[str, Tone]] = []
    if row.state in UNSUCCESSFUL_STATES and agent is not tree.run.root:
        room = width - len(indent) - len(row.name)
        if len(row.activity) > room:  # Whole below the row, not cut in the row.
            details.append((row.activity, Tone.FAILED))
            row = msgspec.structs.replace(row, activity="")
    if agent.unverified:
        details.append((f"unverified: {one_line(agent.unverified)}", Tone.STOPPED))
    yield task_line(row, width=width, symbol=STATE_SYMBOLS[row.state])
    for text, tone in details:
        for line in wrap(text, max(MIN_TEXT_WIDTH, width - len(indent))):
            yield styled((f"{indent}{line}", tone))
