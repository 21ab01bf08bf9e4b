"""The status line of a run: counts of its agents, model slots, and used budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from retinue.domain.budget import Budget
from retinue.domain.server_info import EndpointLoad
from retinue.interfaces.view.agent_tree import COUNT_ORDER, STATE_SYMBOLS, AgentTree
from retinue.interfaces.view.formatting import cell_width, format_cost, format_duration, short_count
from retinue.interfaces.view.styled_text import Line, Tone, styled

# Above this fraction of a limit, the figure has the warning tone.
WARN_FRACTION = 0.8

TonedText = tuple[str, Tone]


def status_line(
    tree: AgentTree | None,
    budget: Budget | None,
    *,
    width: int,
    now: float,
    loads: Sequence[EndpointLoad] = (),
) -> Line:
    """Counts and slots on the left, budget on the right, in at most `width` cells."""
    if tree is None or tree.run.root is None:
        return styled()
    numbers = tree.current_counts()
    counts = [
        (f"{STATE_SYMBOLS[state]} {numbers[state]:,} {state}", Tone(state))
        for state in COUNT_ORDER
        if numbers[state]
    ]
    short_counts = [(text[: text.rindex(" ")], tone) for text, tone in counts]
    if tree.active:
        counts += _slots(loads)
    figures = _budget_spans(tree, budget, now)
    for shown_counts, shown_figures in (
        (counts, figures),
        (counts, figures[-3:]),
        (short_counts, figures[-3:]),
        (short_counts, figures[-2:]),
        (short_counts, figures[-1:]),
    ):
        left, right = _spaced(shown_counts), _spaced(shown_figures)
        gap = width - cell_width(left.plain) - cell_width(right.plain)
        if gap >= 2:
            return styled(left, " " * gap, right)
    return _spaced(short_counts)


def _slots(loads: Sequence[EndpointLoad]) -> list[TonedText]:
    """Requests in flight and queued; empty if nothing is queued and a limit is unknown."""
    queued = sum(load.waiting for load in loads)
    if not queued and not all(load.known for load in loads):
        return []
    busy, limit = sum(load.in_flight for load in loads), sum(load.limit for load in loads)
    text = f"{busy:,}/{limit:,} slots{f', {queued:,} queued' if queued else ''}"
    return [(text, Tone.DIM)] if limit else []


def _budget_spans(tree: AgentTree, budget: Budget | None, now: float) -> list[TonedText]:
    """Used budget, the least important figure first: it is the first to be left out."""
    run, root = tree.run, tree.run.root
    assert root is not None
    figures = []
    if root.context_tokens:
        figures.append((f"{short_count(root.context_tokens)} context", Tone.DIM))
    if root.tool_calls:
        most = None if budget is None or run.kind != "run" else budget.max_tool_calls
        figures.append(_used_of_limit(root.tool_calls, most, str, "calls"))
    if run.usage.tokens:
        most = None if budget is None else budget.max_tokens
        figures.append(_used_of_limit(run.usage.tokens, most, short_count, "tokens"))
    if run.usage.cost_usd:
        limit = None if budget is None else budget.max_cost_usd
        of = "" if limit is None else f" of ${limit:g}"
        near = limit is not None and run.usage.cost_usd > WARN_FRACTION * limit
        figures.append((format_cost(run.usage.cost_usd) + of, Tone.STOPPED if near else Tone.DIM))
    if run.kind == "run":
        ended_at = root.paused_at if run.finished_at is None else run.finished_at
        end = now if ended_at is None else ended_at
        figures.append((format_duration(end - run.started_at - run.idle_s), Tone.DIM))
    return figures


def _used_of_limit(
    used: int, most: int | None, shown: Callable[[int], str], noun: str
) -> TonedText:
    if most is None:
        return (f"{shown(used)} {noun}", Tone.DIM)
    tone = Tone.STOPPED if used > WARN_FRACTION * most else Tone.DIM
    return (f"{shown(used)}/{shown(most)} {noun}", tone)


def _spaced(parts: list[TonedText]) -> Line:
    return styled("  ").join(map(styled, parts))
