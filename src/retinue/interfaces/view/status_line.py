"""The line about the run under way: its agents, its queue, and what is left of its budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from retinue.domain.budget import Budget
from retinue.domain.server_info import EndpointLoad
from retinue.interfaces.view.agent_table import SIGNS, Line, Span, Tone
from retinue.interfaces.view.agent_tree import Mark, Tree
from retinue.interfaces.view.formatting import cells, dollars, duration, short_count

SHOWN = (Mark.RUNNING, Mark.WAITING, Mark.DONE, Mark.STOPPED, Mark.FAILED)
# A limit is shown in another colour when so much of it is used.
NEARLY = 0.8


def status(
    tree: Tree | None,
    budget: Budget | None,
    *,
    width: int,
    now: float,
    loads: Sequence[EndpointLoad] = (),
) -> Line:
    """Counts and slots on the left, the budget on the right, in at most `width` cells."""
    if tree is None or tree.run.root is None:
        return ()
    numbers = {**tree.counts, Mark.WAITING: tree.waiting}
    words = [
        Span(f"{SIGNS[mark]} {numbers[mark]:,} {mark}", Tone(mark))
        for mark in SHOWN
        if numbers[mark]
    ]
    bare = [Span(text[: text.rindex(" ")], tone) for text, tone in words]
    if tree.at_work:
        words += _slots(loads)
    budgeted = _budget(tree, budget, now)
    for counts, figures in (
        (words, budgeted),
        (bare, budgeted),
        (bare, budgeted[-2:]),
        (bare, budgeted[-1:]),
    ):
        left, right = _joined(counts), _joined(figures)
        gap = width - _size(left) - _size(right)
        if gap >= 2:
            return (*left, Span(" " * gap), *right)
    return tuple(_joined(bare))


def _slots(loads: Sequence[EndpointLoad]) -> list[Span]:
    """What the endpoints work on and who waits for them, where that is known or matters."""
    queued = sum(load.waiting for load in loads)
    if not queued and not all(load.known for load in loads):
        return []
    busy, limit = sum(load.in_flight for load in loads), sum(load.limit for load in loads)
    text = f"{busy:,}/{limit:,} slots{f', {queued:,} queued' if queued else ''}"
    return [Span(text, Tone.DIM)] if limit else []


def _budget(tree: Tree, budget: Budget | None, now: float) -> list[Span]:
    """The least important first: it is the first to go."""
    run, root = tree.run, tree.run.root
    assert root is not None
    figures = []
    if root.tool_calls:
        most = None if budget is None or run.kind != "run" else budget.max_tool_calls
        figures.append(_figure(root.tool_calls, most, str, "calls"))
    if run.usage.tokens:
        most = None if budget is None else budget.max_tokens
        figures.append(_figure(run.usage.tokens, most, short_count, "tokens"))
    if run.usage.cost_usd:
        limit = None if budget is None else budget.max_cost_usd
        of = "" if limit is None else f" of ${limit:g}"
        near = limit is not None and run.usage.cost_usd > NEARLY * limit
        figures.append(Span(dollars(run.usage.cost_usd) + of, Tone.STOPPED if near else Tone.DIM))
    if run.kind == "run":
        ended_at = root.paused_at if run.finished_at is None else run.finished_at
        end = now if ended_at is None else ended_at
        figures.append(Span(duration(end - run.started_at), Tone.DIM))
    return figures


def _figure(used: int, most: int | None, shown: Callable[[int], str], noun: str) -> Span:
    if most is None:
        return Span(f"{shown(used)} {noun}", Tone.DIM)
    tone = Tone.STOPPED if used > NEARLY * most else Tone.DIM
    return Span(f"{shown(used)}/{shown(most)} {noun}", tone)


def _joined(spans: list[Span]) -> list[Span]:
    joined: list[Span] = []
    for span in spans:
        if joined:
            joined.append(Span("  "))
        joined.append(span)
    return joined


def _size(spans: list[Span]) -> int:
    return sum(cells(span.text) for span in spans)
