"""Progress of a run in a Jupyter notebook: the tree of agents, redrawn in place."""

from __future__ import annotations

import html
import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

from retinue.domain.events import Event
from retinue.interfaces.view.agent_tree import STATE_SYMBOLS, Forest, TreeRow, fit_rows
from retinue.interfaces.view.formatting import short_count
from retinue.ports.person import Listeners

MAX_ROWS = 24
FRAME_S = 0.2


class NotebookCell:
    """The output of a notebook's cell, as something that can be replaced."""

    def __init__(self) -> None:
        self._handle: Any = None

    def __call__(self, text: str) -> None:
        # The notebook that runs this process has IPython; retinue does not depend on it.
        ipython = import_module("IPython.display")
        if self._handle is None:
            self._handle = ipython.display(ipython.HTML(text), display_id=True)
        else:
            self._handle.update(ipython.HTML(text))


class NotebookProgress:
    """Draws the agents of all runs below the cell that started them."""

    def __init__(self, draw: Callable[[str], None]) -> None:
        self._forest = Forest()
        self._draw = draw
        self._drawn_at = 0.0

    @property
    def listeners(self) -> Listeners:
        return Listeners(on_event=self._on_event)

    def _on_event(self, event: Event) -> None:
        self._forest.apply(event)
        if event.time - self._drawn_at >= FRAME_S:
            self._drawn_at = event.time
            self.draw()

    def draw(self) -> None:
        """Show the tree as it is now."""
        self._draw(self.html(time.time()))

    def html(self, now: float) -> str:
        """The tree as preformatted text."""
        rows, hidden = fit_rows(self._forest.rows(now), MAX_ROWS)
        lines = [_line(row) for row in rows]
        if hidden:
            lines.append(f"… and {hidden} more")
        return f"<pre>{html.escape(chr(10).join(lines))}</pre>"


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook. Imports nothing."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"


def _line(row: TreeRow) -> str:
    activity = f"  {row.activity}" if row.activity else ""
    symbol = STATE_SYMBOLS.get(row.state, "·")
    return f"{'  ' * row.depth}{symbol} {row.label}  {short_count(row.tokens)} tokens{activity}"
