"""The status line of the chat: model, mode and branch, and how much of the budget is used."""

from __future__ import annotations

from collections.abc import Callable

from retinue.domain.budget import Budget
from retinue.interfaces.view.agent_tree import AgentTree
from retinue.interfaces.view.formatting import (
    cell_width,
    clip,
    format_cost,
    format_duration,
    short_count,
)
from retinue.interfaces.view.styled_text import Line, Tone, styled

# Above this fraction of a limit, the figure has the warning tone, and a sign.
WARN_FRACTION = 0.8
MIN_PLACE = 12

TonedText = tuple[str, Tone]


def status_line(
    place: str,
    tree: AgentTree | None,
    budget: Budget | None,
    *,
    width: int,
    now: float,
    window: int | None = None,
) -> Line:
    """`place` (the model, the mode, the branch) on the left, figures on the right.

    `window` is how many tokens fit into a request of the model, if that is known.
    """
    figures = [] if tree is None else _figures(tree, budget, window, now)
    while figures:
        right = styled("  ").join(map(styled, figures))
        room = width - cell_width(right.plain) - 2
        if cell_width(place) <= room or (len(figures) == 1 and room >= MIN_PLACE):
            left = clip(place, room)
            gap = " " * (width - cell_width(left) - cell_width(right.plain))
            return styled((left + gap, Tone.DIM), right)
        figures = figures[1:]
    return styled((clip(place, width), Tone.DIM))


def _figures(
    tree: AgentTree, budget: Budget | None, window: int | None, now: float
) -> list[TonedText]:
    """The least important figure first: it is the first to be left out."""
    run, root = tree.run, tree.run.root
    if root is None:
        return []
    figures = []
    if root.tool_calls:
        most = None if budget is None or run.kind != "run" else budget.max_tool_calls
        figures.append(_used_of_limit(root.tool_calls, most, str, "calls"))
    if run.kind == "run":
        ended_at = root.paused_at if run.finished_at is None else run.finished_at
        ended_at = root.asked_at if ended_at is None else ended_at
        end = now if ended_at is None else ended_at
        figures.append((format_duration(end - run.started_at - run.idle_s), Tone.DIM))
    if run.usage.tokens:
        most = None if budget is None else budget.max_tokens
        figures.append(_used_of_limit(run.usage.tokens, most, short_count, "tokens"))
    if root.context_tokens:
        given = None if budget is None else budget.max_context_tokens
        figures.append(_context(root.context_tokens, given or window))
    if run.usage.cost_usd:
        limit = None if budget is None else budget.max_cost_usd
        of = "" if limit is None else f" of ${limit:g}"
        near = limit is not None and run.usage.cost_usd > WARN_FRACTION * limit
        figures.append(_marked(format_cost(run.usage.cost_usd) + of, near))
    return figures


def _context(used: int, window: int | None) -> TonedText:
    if not window:
        return f"{short_count(used)} context", Tone.DIM
    return _marked(
        f"{min(100, round(100 * used / window))}% of {short_count(window)} context",
        used > WARN_FRACTION * window,
    )


def _used_of_limit(
    used: int, most: int | None, shown: Callable[[int], str], noun: str
) -> TonedText:
    if most is None:
        return (f"{shown(used)} {noun}", Tone.DIM)
    return _marked(f"{shown(used)}/{shown(most)} {noun}", used > WARN_FRACTION * most)


def _marked(text: str, near_limit: bool) -> TonedText:
    return (f"! {text}", Tone.STOPPED) if near_limit else (text, Tone.DIM)
