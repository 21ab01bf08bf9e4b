"""Rows as lines of text: which columns there are depends on the width.

A line is a sequence of spans. A tone says what a span means; which colour that is, or whether it is
one at all, is for whoever draws.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import NamedTuple

from retinue.interfaces.view.agent_tree import Mark, Row
from retinue.interfaces.view.formatting import (
    cells,
    clip,
    clip_reason,
    dollars,
    duration,
    fill,
    fill_left,
    short_count,
)

SIGNS = {
    Mark.FAILED: "✗",
    Mark.RUNNING: "●",
    Mark.STOPPED: "■",
    Mark.WAITING: "○",
    Mark.DONE: "✓",
}
SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
LEAST_TEXT = 16
# A name may be cut to what is enough before a figure goes, and to the least before the text does.
LEAST_NAME, ENOUGH_NAME, MOST_NAME = 8, 16, 24
MOST_TURN = 7


class Tone(StrEnum):
    PLAIN = "plain"
    DIM = "dim"
    STRONG = "strong"
    CODE = "code"
    ADDED = "added"
    REMOVED = "removed"
    USER = "user"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"
    WAITING = "waiting"


class Span(NamedTuple):
    text: str
    tone: Tone = Tone.PLAIN


Line = tuple[Span, ...]


class Column(NamedTuple):
    title: str
    width: int
    show: Callable[[Row], str]


def _turn(row: Row) -> str:
    if row.count > 1 or not row.turn:
        return ""
    return f"{row.turn}/{row.max_turns}" if row.mark is Mark.RUNNING else str(row.turn)


def _time(row: Row) -> str:
    if row.cached:
        return "cached"
    return duration(row.seconds) if row.seconds else ""


_TURN = Column("turn", 5, _turn)
_CALLS = Column("calls", 5, lambda row: str(row.tool_calls or ""))
_TOKENS = Column("tokens", 6, lambda row: short_count(row.tokens) if row.tokens else "")
_COST = Column("cost", 8, lambda row: dollars(row.cost_usd))
_TIME = Column("time", 7, _time)


class Columns:
    """How rows are laid out in `width` cells. `priced` is whether anything costs money.

    `names` is how many cells the longest name takes, with all that stands before it, and `turns`
    how many the longest turn does.
    """

    def __init__(
        self, width: int, *, priced: bool = False, names: int = MOST_NAME, turns: int = MOST_TURN
    ) -> None:
        self.width = width
        names = max(LEAST_NAME, min(names, MOST_NAME, width // 3))
        left = width - min(names, ENOUGH_NAME) - LEAST_TEXT - 1
        chosen = []
        # The first are the last to go where there is no room.
        turn = _TURN._replace(width=max(_TURN.width, min(turns, MOST_TURN)))
        for column in (_TIME, turn, _TOKENS, _COST, _CALLS):
            if column is _COST and not priced:
                continue
            if left < column.width + 1:
                break
            left -= column.width + 1
            chosen.append(column)
        self._figures = [c for c in (turn, _CALLS, _TOKENS, _COST, _TIME) if c in chosen]
        self._name = min(names, ENOUGH_NAME + max(0, left))
        figures = sum(column.width + 1 for column in self._figures)
        self._text = max(0, width - self._name - 1 - figures)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Columns) and self._measures == other._measures

    def __hash__(self) -> int:
        return hash(self._measures)

    @property
    def _measures(self) -> tuple[int, int, int]:
        return self.width, self._name, self._text

    @classmethod
    def fitting(cls, rows: Sequence[Row], width: int, *, priced: bool = False) -> Columns:
        """Columns for these rows, with as much for the names as they need."""
        names = max((2 * row.depth + 2 + cells(_name(row)) for row in rows), default=0)
        turns = max((cells(_turn(row)) for row in rows), default=0)
        return cls(width, priced=priced, names=names, turns=turns)

    def heading(self) -> str:
        titles = "".join(f" {fill_left(c.title, c.width)}" for c in self._figures)
        return fill("agent", self._name) + " " + fill("task", self._text) + titles

    def line(self, row: Row, *, sign: str | None = None) -> Line:
        """`row` in exactly `width` cells. `sign` stands for the usual one, such as a spinner's."""
        tone = Tone(row.mark)
        quiet = Tone.DIM if row.mark in (Mark.DONE, Mark.WAITING) else Tone.PLAIN
        # Deep rows keep half of the space for their name.
        indent = min(2 * row.depth, self._name // 2)
        name = _name(row)
        figures = "".join(f" {fill_left(c.show(row), c.width)}" for c in self._figures)
        return (
            Span(" " * indent),
            Span((sign or SIGNS[row.mark]) + " ", tone),
            Span(_named(name, max(0, self._name - indent - 2)), quiet),
            Span(" "),
            *self._words(row, quiet),
            Span(figures, Tone.DIM),
        )

    def _words(self, row: Row, quiet: Tone) -> Line:
        """The task and what is to be said about it, in exactly the width of the text."""
        width, spans = self._text, []
        if row.failed_below and not row.open:
            hint = clip(f"{row.failed_below:,} failed below ", width)
            spans.append(Span(hint, Tone.FAILED))
            width -= cells(hint)
        hidden = "" if row.open or not row.below or row.count > 1 else f" +{row.below}"
        if row.mark in (Mark.FAILED, Mark.STOPPED):
            # Why comes before what: the name already tells which one it is.
            why = clip_reason(row.doing, width)
            spans.append(Span(why, Tone(row.mark)))
            width -= cells(why)
            about = f"  {row.task}{hidden}" if row.task else hidden
            if width > 6:
                spans.append(Span(fill(about, width), Tone.DIM))
                width = 0
        else:
            task = row.task + hidden if row.count == 1 else row.task or str(row.mark)
            if row.doing and cells(task) + 8 < width:
                spans += [
                    Span(task, quiet),
                    Span(fill(f"  {row.doing}", width - cells(task)), Tone.DIM),
                ]
            else:
                spans.append(Span(fill(task, width), quiet))
            width = 0
        if width > 0:
            spans.append(Span(" " * width))
        return tuple(spans)


def _name(row: Row) -> str:
    return f"{row.count:,}× {row.name}" if row.count > 1 else row.name


def _named(name: str, width: int) -> str:
    """`name` in `width` cells. A number at its end tells siblings apart, so it is kept."""
    role, dot, number = name.rpartition(".")
    if cells(name) <= width or not dot:
        return fill(name, width)
    return fill(clip(role, width - cells(number) - 1) + dot + number, width)
