"""Widgets that show styled lines: conversation, agent tree, headings, fixed lines.

They draw only visible lines, and only lines that changed.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Collection, Sequence
from itertools import accumulate
from typing import ClassVar

import msgspec
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.selection import Selection
from textual.strip import Strip
from textual.widget import Widget

from retinue.interfaces.chat.keys import TREE_KEYS
from retinue.interfaces.chat.styles import to_strip
from retinue.interfaces.view.agent_table import TableLayout
from retinue.interfaces.view.agent_tree import DisplayState, Forest, TreeRow
from retinue.interfaces.view.conversation_entries import Entry, Frame
from retinue.interfaces.view.styled_text import Line, Tone, styled

MAX_LINE_WIDTH = 110
WAITING_FOR_USER = "waiting for you"


class ScrollPane(ScrollView, inherit_bindings=False):
    """Lines that can be scrolled. Subclasses implement `line_at` and call `update_lines`.

    Textual's own key bindings are left out, because they scroll with an animation.
    """

    ALLOW_SELECT = True

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.count = 0
        self._width = 0
        self._drawn: dict[int, Line | None] = {}

    @abstractmethod
    def line_at(self, y: int) -> Line: ...

    def is_under_cursor(self, y: int) -> bool:
        return False

    @property
    def text_width(self) -> int:
        return max(8, self.scrollable_content_region.width)

    def lay_out(self) -> None:
        """Lay out the lines again for the current width."""

    def render_lines(self, crop: Region) -> list[Strip]:
        # The width may have changed since the last layout. Lines for the old width would show for
        # one frame, squeezed or cut off.
        if self.text_width != self._width:
            self._width = self.text_width
            self.lay_out()
        return super().render_lines(crop)

    def render_line(self, y: int) -> Strip:
        y += self.scroll_offset.y
        width = self.scrollable_content_region.width
        line = self._drawn[y] = self._line(y)
        if line is None:
            return Strip.blank(width, self.rich_style)
        under_cursor = self.is_under_cursor(y)
        strip = to_strip(line, width, under_cursor=under_cursor, base=self.rich_style)
        selection = self.text_selection
        if selection is not None and (span := selection.get_span(y)) is not None:
            start, end = span
            strip = _selected(strip, start, width if end == -1 else end)
        return strip.apply_offsets(0, y)

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        text = "\n".join(self.line_at(y).plain.rstrip() for y in range(self.count))
        return selection.extract(text), "\n"

    def update_lines(self, count: int) -> None:
        """Draw the visible lines that changed; there are `count` lines now."""
        if count != self.count:
            self.count = count
            self.virtual_size = Size(0, count)
        top = self.scroll_offset.y
        visible = range(top, top + self.size.height)
        self.redraw([y for y in visible if self._drawn.get(y) != self._line(y)])

    def _line(self, y: int) -> Line | None:
        return self.line_at(y) if y < self.count else None

    def redraw(self, numbers: Sequence[int]) -> None:
        top, height = self.scroll_offset.y, self.size.height
        regions = [
            Region(0, y - top, self.size.width, 1) for y in numbers if top <= y < top + height
        ]
        if regions:
            self.refresh(*regions)


def _selected(strip: Strip, start: int, end: int) -> Strip:
    before, inside, after = strip.crop(0, start), strip.crop(start, end), strip.crop(end)
    return Strip.join([before, inside.apply_style(Style(reverse=True)), after])


class ConversationPane(ScrollPane, can_focus=False):
    """The entries of the conversation."""

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self._entries: list[Entry] = []
        self._versions: list[tuple[int, int, bool]] = []
        self._blocks: list[list[Line]] = []
        self._starts: list[int] = []
        self._full: set[int] = set()
        self._all_full = False
        self._following = True
        self._last_frame = Frame(0.0)

    def line_at(self, y: int) -> Line:
        index = bisect_right(self._starts, y) - 1
        offset = y - self._starts[index]
        lines = self._blocks[index]
        return lines[offset] if offset < len(lines) else styled()

    def show(self, entries: list[Entry], frame: Frame) -> None:
        """Draw the entries that changed."""
        self._last_frame = frame
        width = min(self.text_width, MAX_LINE_WIDTH)
        if entries is not self._entries:
            self._entries, self._versions, self._blocks = entries, [], []
            self._full.clear()
        for index, entry in enumerate(entries):
            full = self._all_full or index in self._full
            version = (entry.version, width, full)
            if index == len(self._blocks):
                self._versions.append(version)
                self._blocks.append(entry.lines(width, frame, full=full))
            elif self._versions[index] != version or entry.animated:
                self._versions[index] = version
                self._blocks[index] = entry.lines(width, frame, full=full)
        # An empty line separates the entries.
        sizes = (len(block) + 1 if block else 0 for block in self._blocks)
        *self._starts, count = accumulate(sizes, initial=0)
        self.update_lines(count)
        self.follow()

    def follow(self) -> None:
        """Scroll to the end, unless the user has scrolled up."""
        if self._following and self.scroll_y < self.max_scroll_y:
            # With force, because before its first layout a widget does not know that it scrolls.
            self.scroll_to(y=self.max_scroll_y, animate=False, force=True)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        self._following = new_value >= self.max_scroll_y

    def lay_out(self) -> None:
        self.show(self._entries, self._last_frame)

    def lay_out_again(self) -> None:
        """Render every entry anew: code in it has other colours now."""
        self._versions = [(-1, 0, False)] * len(self._versions)
        for entry in self._entries:
            entry.forget_rendering()
        self._drawn.clear()
        self.lay_out()

    def scroll_to_last(self, *, seen: bool) -> None:
        """Scroll to the end; if the last entry is long and was not `seen`, to its beginning."""
        last = self._starts[-1] if self._starts else 0
        self._following = seen or self.count - last <= self.size.height
        if self._following:
            self.follow()
        else:
            self.scroll_to(y=last, animate=False, force=True)

    def toggle_full(self) -> None:
        self._all_full = not self._all_full
        self._full.clear()

    def on_click(self, event: events.Click) -> None:
        y = event.y + self.scroll_offset.y
        if 0 <= y < self.count and self.text_selection is None:
            self._full ^= {bisect_right(self._starts, y) - 1}


class ScrollableLines(ScrollPane, can_focus=True):
    """Lines that can be scrolled."""

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self._lines: list[Line] = []

    def line_at(self, y: int) -> Line:
        return self._lines[y]

    def show(self, lines: list[Line]) -> None:
        at_end = 0 < self.max_scroll_y <= self.scroll_y
        self._lines = lines
        self.update_lines(len(lines))
        if at_end:  # Keep following the end.
            self.scroll_end(animate=False)


class _RowMessage(Message):
    def __init__(self, row: TreeRow) -> None:
        super().__init__()
        self.row = row


class AgentTreePane(ScrollPane, can_focus=True):
    """The tree of agents, with a cursor."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(key.keys, key.action, show=False) for key in TREE_KEYS
    ]

    class Selected(_RowMessage):
        """The user wants to see the details of an agent."""

    class Cancelled(_RowMessage):
        """The user wants to cancel an agent."""

    def __init__(self, forest: Forest, heading: FixedLines, *, id: str) -> None:
        """`heading` shows the titles of the columns."""
        super().__init__(id=id)
        self._forest = forest
        self._heading = heading
        self._rows: list[TreeRow] = []
        self._table = TableLayout(40)
        self.natural_width = 0
        self._cursor = 0
        self._key = ""
        self._now = 0.0
        self._asking: Collection[str] = ()

    @property
    def row(self) -> TreeRow | None:
        return self._rows[self._cursor] if self._rows else None

    def is_under_cursor(self, y: int) -> bool:
        return y == self._cursor and self.has_focus

    def line_at(self, y: int) -> Line:
        row = self._rows[y]
        if row.path in self._asking and row.state is DisplayState.RUNNING:
            row = msgspec.structs.replace(row, activity=WAITING_FOR_USER)
        return self._table.line(row)

    def show(self, now: float, asking: Collection[str]) -> None:
        """Draw the rows. `asking` are the paths of agents that wait for the user."""
        self._now, self._asking = now, asking
        rows = self._rows = self._forest.rows(now)
        priced = any(tree.run.usage.cost_microusd for tree in self._forest.trees.values())
        self._table = TableLayout.fitting(rows, self.text_width, priced=priced)
        self.natural_width = TableLayout.natural_width(rows, priced=priced)
        self._heading.show([styled((self._table.heading(), Tone.DIM))])
        # The cursor stays on its row, or in its place if the row is gone.
        place = max(0, min(self._cursor, len(rows) - 1))
        self._cursor = next((i for i, row in enumerate(rows) if row.key == self._key), place)
        self._key = rows[self._cursor].key if rows else ""
        self.update_lines(len(rows))

    def _move_to(self, index: int) -> None:
        if not self._rows:
            return
        before = self._cursor
        self._cursor = max(0, min(index, len(self._rows) - 1))
        self._key = self._rows[self._cursor].key
        self.redraw([before, self._cursor])
        top, height = self.scroll_offset.y, self.scrollable_content_region.height
        if self._cursor < top:
            self.scroll_to(y=self._cursor, animate=False)
        elif self._cursor >= top + height:
            self.scroll_to(y=self._cursor - height + 1, animate=False)

    def action_move(self, by: int) -> None:
        self._move_to(self._cursor + by)

    def action_page(self, by: int) -> None:
        self._move_to(self._cursor + by * max(1, self.size.height - 1))

    def action_edge(self, index: int) -> None:
        self._move_to(index % len(self._rows) if self._rows else 0)

    def action_expand(self, expanded: bool) -> None:
        row = self.row
        if row is None:
            return
        if row.child_count and row.expanded is not expanded:
            self._forest.trees[row.run_id].set_expanded(row.key, expanded)
            self.show(self._now, self._asking)
        elif not expanded:
            above = [i for i in range(self._cursor) if self._rows[i].depth < row.depth]
            self._move_to(above[-1] if above else 0)
        else:
            self._move_to(self._cursor + 1)

    def action_select(self) -> None:
        row = self.row
        if row is None:
            return
        if row.count > 1:
            self.action_expand(not row.expanded)
        else:
            self.post_message(self.Selected(row))

    def action_cancel(self) -> None:
        if self.row is not None and self.row.count == 1:
            self.post_message(self.Cancelled(self.row))

    def on_click(self, event: events.Click) -> None:
        y = event.y + self.scroll_offset.y
        if 0 <= y < len(self._rows):
            if y == self._cursor and self.has_focus and event.chain > 1:
                self.action_select()
            self._move_to(y)

    def lay_out(self) -> None:
        self.show(self._now, self._asking)

    def on_focus(self) -> None:
        self.redraw([self._cursor])

    def on_blur(self) -> None:
        self.redraw([self._cursor])


class FixedLines(Widget):
    """A few lines that do not scroll."""

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self._lines: list[Line] = []

    def show(self, lines: list[Line]) -> None:
        if lines != self._lines:
            taller = len(lines) != len(self._lines)
            self._lines = lines
            self.refresh(layout=taller)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return len(self._lines)

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        if y >= len(self._lines):
            return Strip.blank(width, self.rich_style)
        return to_strip(self._lines[y], width, base=self.rich_style)
