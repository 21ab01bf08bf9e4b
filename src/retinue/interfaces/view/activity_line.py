"""One line about the present: what the user waits for, since when, and how much is left."""

from __future__ import annotations

from collections.abc import Sequence

from retinue.domain.agent_state import AgentState
from retinue.domain.plural import plural
from retinue.domain.server_info import EndpointLoad
from retinue.interfaces.view.agent_tree import (
    COUNT_ORDER,
    STATE_SYMBOLS,
    AgentTree,
    DisplayState,
    is_active,
)
from retinue.interfaces.view.formatting import cell_width, clip, format_duration, short_count
from retinue.interfaces.view.styled_text import Line, Tone, styled
from retinue.interfaces.view.tool_calls import call_text

# An estimate from fewer agents would jump.
MIN_DONE_FOR_ESTIMATE = 2


def activity_line(what: str, since_s: float, counts: Line, *, spinner: str, width: int) -> Line:
    """`⠋ thinking  4.2s`, with counts of agents on the right if there is room for them."""
    took = "" if since_s < 1 else f"  {format_duration(since_s)}"
    left = clip(f"{spinner} {what}{took}", width)
    gap = width - cell_width(left) - cell_width(counts.plain)
    line = styled((left, Tone.RUNNING))
    return styled(line, " " * gap, counts) if gap >= 2 else line


def agent_counts(tree: AgentTree, loads: Sequence[EndpointLoad]) -> Line:
    """How many agents of the run are in each state, and how busy the model servers are."""
    numbers = tree.current_counts()
    parts = [
        (f"{STATE_SYMBOLS[state]} {numbers[state]:,} {state}", Tone(state))
        for state in COUNT_ORDER
        if numbers[state]
    ]
    return styled("  ").join(map(styled, [*parts, *_slots(loads)]))


def root_activity(
    root: AgentState,
    tree: AgentTree,
    *,
    now: float,
    writing: bool,
    thinking: bool,
    loads: Sequence[EndpointLoad],
) -> str:
    """The activity of the root agent, or the event that it waits for."""
    if root.questions:
        return "waiting for your answer"
    if progress := fan_out_progress(tree, now):
        return progress
    if root.pending_calls:
        call = next(reversed(root.pending_calls.values()))
        more = len(root.pending_calls) - 1
        return call_text(call.tool, call.arguments) + (f" and {more} more" if more else "")
    if writing:
        return "writing"
    if thinking:
        return "thinking"
    if root.model_error:
        loading = "loading" in root.model_error.lower()
        return "the server is loading the model" if loading else root.model_error
    busy = [load for load in loads if load.waiting and load.in_flight >= load.limit]
    if busy:
        return f"queued behind {plural(sum(load.in_flight for load in busy), 'request')}"
    size = f" {short_count(root.context_tokens)} tokens" if root.context_tokens else ""
    return f"waiting for the model to read{size or ' the prompt'}"


def fan_out_progress(tree: AgentTree, now: float) -> str:
    """`12 of 31 agents done, about 40s left`; empty if the run has no children at work."""
    run, numbers = tree.run, tree.current_counts()
    if run.root is None or not (numbers[DisplayState.RUNNING] or numbers[DisplayState.WAITING]):
        return ""
    total = sum(numbers.values())
    planned = run.root.plan_steps
    noun = "steps" if planned else "agents"
    total = max(total, planned, run.given_tasks)
    if total < 2:
        return ""
    ended = [agent for agent in run.agents.values() if agent.parent_id and not is_active(agent)]
    progress = f"{len(ended):,} of {total:,} {noun} done"
    left_s = remaining_s(ended, total, now)
    if left_s is None:
        return progress
    # A tenth of a second is no estimate.
    left = f"{round(left_s)}s" if left_s < 99.5 else format_duration(left_s)
    return f"{progress}, about {left} left"


def remaining_s(ended: Sequence[AgentState], total: int, now: float) -> float | None:
    """How long the agents that have not ended will take, if they end as often as those before."""
    ran = [agent for agent in ended if agent.started_at is not None]
    if len(ran) < MIN_DONE_FOR_ESTIMATE:
        return None
    elapsed_s = max(0.0, now - min(agent.started_at or 0.0 for agent in ran))
    return elapsed_s / len(ran) * (total - len(ended))


def _slots(loads: Sequence[EndpointLoad]) -> list[tuple[str, Tone]]:
    """Requests in flight and queued; empty if nothing is queued and a limit is unknown."""
    queued = sum(load.waiting for load in loads)
    if not queued and not all(load.known for load in loads):
        return []
    busy, limit = sum(load.in_flight for load in loads), sum(load.limit for load in loads)
    text = f"{busy:,}/{limit:,} slots{f', {queued:,} queued' if queued else ''}"
    return [(text, Tone.DIM)] if limit else []
