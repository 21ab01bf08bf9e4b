"""Rows of agents as a table. The width decides which columns the table has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import NamedTuple

from retinue.interfaces.view.agent_tree import (
    STATE_SYMBOLS,
    UNSUCCESSFUL_STATES,
    DisplayState,
    TreeRow,
)
from retinue.interfaces.view.formatting import (
    cell_width,
    clip,
    clip_reason,
    format_cost,
    format_duration,
    pad,
    pad_left,
    short_count,
)
from retinue.interfaces.view.styled_text import Line, Tone, styled

MIN_TEXT = 14
# In a narrow table, names shrink to ENOUGH_NAME before a column goes, and to MIN_NAME before the
# text does.
MIN_NAME, ENOUGH_NAME, MAX_NAME = 8, 16, 24
MAX_TURN = 7
NARROW = 50
# Tasks of siblings that begin alike are told apart by what follows.
MIN_ALIKE, MIN_SHARED = 3, 8


class Column(NamedTuple):
    title: str
    width: int
    show: Callable[[TreeRow], str]


def _turn(row: TreeRow) -> str:
    if row.count > 1 or not row.turn:
        return ""
    return f"{row.turn}/{row.max_turns}" if row.state is DisplayState.RUNNING else str(row.turn)


def _time(row: TreeRow) -> str:
    if row.cached:
        return "cached"
    return format_duration(row.elapsed_s) if row.elapsed_s else ""


_TURN = Column("turn", 5, _turn)
_CALLS = Column("calls", 5, lambda row: str(row.tool_calls or ""))
_TOKENS = Column("tokens", 6, lambda row: short_count(row.tokens) if row.tokens else "")
_COST = Column("cost", 8, lambda row: format_cost(row.cost_usd))
_TIME = Column("time", 7, _time)


class TableLayout:
    """Layout of rows in `width` cells.

    `priced` adds a column for the cost. `name_width` is the width of the longest name with its
    indent, and `turn_width` the width of the longest turn. A task that does not fit is shown
    without the beginning `shared`.
    """

    def __init__(
        self,
        width: int,
        *,
        priced: bool = False,
        name_width: int = MAX_NAME,
        turn_width: int = MAX_TURN,
        shared: str = "",
    ) -> None:
        share = width // 2 if width < NARROW else width // 3
        name_width = max(MIN_NAME, min(name_width, MAX_NAME, share))
        left = width - min(name_width, ENOUGH_NAME) - MIN_TEXT - 1
        chosen = []
        # In order of importance: the last are left out first.
        turn = _TURN._replace(width=max(_TURN.width, min(turn_width, MAX_TURN)))
        for column in (_TIME, turn, _TOKENS, _COST, _CALLS):
            if column is _COST and not priced:
                continue
            if left < column.width + 1:
                break
            left -= column.width + 1
            chosen.append(column)
        self._columns = [c for c in (turn, _CALLS, _TOKENS, _COST, _TIME) if c in chosen]
        self._name_width = min(name_width, ENOUGH_NAME + max(0, left))
        figures = sum(column.width + 1 for column in self._columns)
        self._text_width = max(0, width - self._name_width - 1 - figures)
        self._shared = shared

    @classmethod
    def fitting(cls, rows: Sequence[TreeRow], width: int, *, priced: bool = False) -> TableLayout:
        """Layout for these rows, with as much room for the names as they need."""
        name_width = max((2 * row.depth + 2 + cell_width(row.label) for row in rows), default=0)
        turn_width = max((cell_width(_turn(row)) for row in rows), default=0)
        shared = _shared_beginning([row.task for row in rows if row.depth and row.count == 1])
        return cls(
            width, priced=priced, name_width=name_width, turn_width=turn_width, shared=shared
        )

    @staticmethod
    def natural_width(rows: Sequence[TreeRow], *, priced: bool = False) -> int:
        """Width in which nothing of these rows is cut."""
        names = max((2 * row.depth + 2 + cell_width(row.label) for row in rows), default=0)
        texts = max((cell_width(f"{row.task}  {row.activity}".rstrip()) for row in rows), default=0)
        columns = [_TURN, _CALLS, _TOKENS, _TIME, *([_COST] if priced else [])]
        return names + 1 + texts + sum(column.width + 1 for column in columns)

    def heading(self) -> str:
        titles = "".join(f" {pad_left(c.title, c.width)}" for c in self._columns)
        return pad("agent", self._name_width) + " " + pad("task", self._text_width) + titles

    def line(self, row: TreeRow) -> Line:
        """`row` in exactly `width` cells."""
        tone = Tone(row.state)
        quiet = Tone.DIM if row.state in (DisplayState.DONE, DisplayState.WAITING) else Tone.PLAIN
        # The indent of deep rows leaves at least half of the width to the name.
        indent = min(2 * row.depth, self._name_width // 2)
        figures = "".join(f" {pad_left(c.show(row), c.width)}" for c in self._columns)
        return styled(
            " " * indent,
            (STATE_SYMBOLS[row.state] + " ", tone),
            (_padded_name(row.label, max(0, self._name_width - indent - 2)), quiet),
            " ",
            self._text(row, quiet),
            (figures, Tone.DIM),
        )

    def _text(self, row: TreeRow, quiet: Tone) -> Line:
        """Task and activity, in exactly the width of the text column."""
        width, shown = self._text_width, styled()
        if row.failed_descendants and not row.expanded:
            hint = clip(f"{row.failed_descendants:,} failed below ", width)
            shown.append(hint, Tone.FAILED)
            width -= cell_width(hint)
        hidden = f" +{row.hidden_children}" if row.hidden_children else ""
        if row.state in UNSUCCESSFUL_STATES:
            # The reason comes before the task: the name already identifies the agent.
            reason = clip_reason(row.activity, width)
            shown.append(reason, Tone(row.state))
            width -= cell_width(reason)
            rest = f"  {row.task}{hidden}" if row.task else hidden
            if width > 6:
                shown.append(pad(rest, width), Tone.DIM)
                width = 0
        else:
            task = row.task + hidden if row.count == 1 else row.task or str(row.state)
            if self._shared and cell_width(task) > width:
                before, shared, rest = task.partition(self._shared)
                task = f"…{rest}" if shared and not before else task
            if row.activity and cell_width(task) + 8 < width:
                shown.append(task, quiet)
                shown.append(pad(f"  {row.activity}", width - cell_width(task)), Tone.DIM)
            else:
                shown.append(pad(task, width), quiet)
            width = 0
        if width > 0:
            shown.append(" " * width)
        return shown


def _shared_beginning(tasks: Sequence[str]) -> str:
    """The words that all tasks begin with; empty if these are few tasks, or short words."""
    if len(tasks) < MIN_ALIKE:
        return ""
    first, last = min(tasks), max(tasks)  # These two share what all share.
    pairs = zip(first, last, strict=False)
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    shared = first[: first.rfind(" ", 0, same) + 1] if first != last else ""
    return shared if len(shared) >= MIN_SHARED else ""


def _padded_name(name: str, width: int) -> str:
    """`name` in `width` cells. Keeps a number at its end, which tells siblings apart."""
    role, dot, number = name.rpartition(".")
    if cell_width(name) <= width or not dot:
        return pad(name, width)
    return pad(clip(role, width - cell_width(number) - 1) + dot + number, width)
