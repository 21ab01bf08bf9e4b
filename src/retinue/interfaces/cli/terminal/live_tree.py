"""Work under way as a tree at the end of a terminal, and above it what stays to be read."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

import msgspec

from retinue.domain.agent_state import AgentState
from retinue.domain.events import (
    CircuitBreakerTripped,
    Event,
    ModelReplied,
    SilenceDetected,
    ToolDenied,
    ToolFinished,
    ToolStarted,
)
from retinue.interfaces.cli.terminal.screen import Screen
from retinue.interfaces.view.agent_table import SIGNS, SPINNER, Line, Span, Tone
from retinue.interfaces.view.agent_tree import SMALL_FAMILY, WAITS, Mark, Row, Tree, fit
from retinue.interfaces.view.formatting import cells, clip, dollars, one_line, short_count, some
from retinue.interfaces.view.result_blocks import agent_block, paused_blocks
from retinue.interfaces.view.task_lines import has_block, task_line
from retinue.interfaces.view.tool_calls import call_text
from retinue.runtime.core.task_group import TaskGroup

FIRST_S = 0.3  # What is over sooner needs no tree.
FRAME_S = 0.1
TALLEST = 24  # What was printed before should stay to be seen.
RESULT_LINES = 3
THINKING = "thinking"
LAST_WORDS = 60


class LiveTree:
    """Draws the tree of a run, and of one after the other, for as long as it is `shown`."""

    def __init__(self, screen: Screen, *, hint: str, stays: bool = False) -> None:
        """`hint` is what to do about it. The tree of a large family stays at the end, or any."""
        self._screen = screen
        self._hint = hint
        self._stays = stays
        self._tree = Tree()
        self._waiting = ""
        self._saying: dict[str, str] = {}
        self._last_calls: dict[str, str] = {}
        self._aside = False
        self._held: list[Line] = []
        self._over = False

    @asynccontextmanager
    async def shown(self) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTSTP, self._suspend)
        async with TaskGroup() as nursery:
            drawing = nursery.create_task(self._keep_drawing())
            try:
                yield
            finally:
                drawing.cancel()
                loop.remove_signal_handler(signal.SIGTSTP)
                self._screen.close()

    def finish(self) -> None:
        """Take the tree away; what is too much for blocks stays, folded."""
        self._over = True
        self._screen.close()
        root = self._tree.run.root
        if root is not None and (self._stays or len(root.children) > SMALL_FAMILY):
            width, _ = self._screen.size
            self._screen.print(self._lines(width, TALLEST, time.time()))

    @contextmanager
    def aside(self) -> Iterator[None]:
        """While inside, somebody else writes to the terminal."""
        self._aside = True
        self._screen.close()
        try:
            yield
        finally:
            self._aside = False
            self._screen.print(self._held)
            self._held = []

    def hear(self, agent_id: str, text: str) -> None:
        """Words that an agent's model has just said."""
        self._saying[agent_id] = (self._saying.get(agent_id, "") + text)[-LAST_WORDS:]

    def wait(self, what: str) -> None:
        """Say what is waited for before anything happens."""
        self._waiting = what

    def recall(self, event: Event) -> None:
        """Know of an event of long ago."""
        self._tree.apply(event)

    def listen(self, event: Event) -> None:
        if event.type == "run.started":
            self._tree, self._over = Tree(), False
        self._tree.apply(event)
        agent = self._tree.run.agents.get(event.agent_id)
        if agent is not None and (told := self._told(event, agent)):
            if self._aside:
                self._held += told
            else:
                self._screen.print(told)

    # Inside

    def _told(self, event: Event, agent: AgentState) -> list[Line]:
        """What stays to be read of an event."""
        width, _ = self._screen.size
        if event.type == "agent.subagent_closed" and has_block(self._tree.run, agent):
            return agent_block(agent, width=width, lines=RESULT_LINES)
        if event.type == "run.suspended":
            return paused_blocks(self._tree.run, width=width, lines=RESULT_LINES)
        fact = event.fact
        if event.type in ("turn.started", "model.replied"):
            self._saying.pop(agent.id, None)
        if isinstance(fact, ToolStarted) and fact.tool not in WAITS:
            self._last_calls[agent.id] = call_text(fact.tool, fact.arguments)
        match fact:
            case CircuitBreakerTripped() | SilenceDetected():
                return [(Span(clip(f"  {agent.path}: {fact.summary}", width), Tone.STOPPED),)]
            case _ if agent.parent_id is not None:
                return []
            case ModelReplied(calls=calls, content=content) if calls and content.strip():
                return [(Span(clip(f"  {one_line(content)}", width), Tone.DIM),)]
            case ToolStarted() if fact.tool not in WAITS:
                text = f"  {self._last_calls[agent.id]}"
                return [(Span(clip(text, width), Tone.DIM),)]
            case ToolFinished() | ToolDenied() if fact.tool not in WAITS and not _ok(fact):
                text = f"    {one_line(fact.content)}"
                return [(Span(clip(text, width), Tone.STOPPED),)]
        return []

    async def _keep_drawing(self) -> None:
        await asyncio.sleep(FIRST_S)
        while True:
            # The terminal may be gone, which is no reason to stop working.
            with suppress(OSError):
                if not self._aside and not self._over and self._screen.in_front:
                    width, height = self._screen.size
                    lines = self._lines(width, min(height - 2, TALLEST), time.time())
                    self._screen.draw(lines)
            await asyncio.sleep(FRAME_S)

    def _suspend(self) -> None:
        """Give the terminal back before stopping, as Ctrl-Z asks for."""
        self._screen.close()
        os.kill(os.getpid(), signal.SIGSTOP)

    def _lines(self, width: int, height: int, now: float) -> list[Line]:
        frame = SPINNER[int(now / FRAME_S) % len(SPINNER)]
        if self._tree.run.root is None:
            text = clip(f"{frame} {self._waiting}", width) if self._waiting else ""
            return [(Span(text, Tone.DIM),)]
        rows, left_out = fit(self._tree.rows(now), height - 1)
        lines = []
        for row in rows:
            if self._over and row.mark is Mark.RUNNING:
                continue  # A program that leads is not over before it says so itself.
            sign = frame if row.mark is Mark.RUNNING else SIGNS[row.mark]
            lines.append(task_line(self._doing(row), width=width, sign=sign))
        return [*lines, self._sums(width, left_out)]

    def _doing(self, row: Row) -> Row:
        """While a model thinks: what it is saying, or what it called last."""
        if row.doing != THINKING or row.count > 1:
            return row
        words = one_line(self._saying.get(row.agent_id, ""))
        doing = f"…{words}" if words else self._last_calls.get(row.agent_id, THINKING)
        return msgspec.structs.replace(row, doing=doing)

    def _sums(self, width: int, left_out: int) -> Line:
        """The last line: how many there are of each kind, and what it has cost so far."""
        counts = {**self._tree.counts, Mark.WAITING: self._tree.waiting}
        usage, failed = self._tree.run.usage, counts[Mark.FAILED]
        parts = [
            f"{counts[mark]:,} {mark}" for mark in Mark if counts[mark] and mark is not Mark.FAILED
        ]
        parts.append(f"{short_count(usage.tokens)} tokens")
        if usage.cost_usd:
            parts.append(dollars(usage.cost_usd))
        if left_out:
            parts.append(f"{some(left_out, 'row')} not shown")
        if not self._over:
            parts.append(self._hint)
        head = f"  {failed:,} failed" if failed else ""
        start, room = " · " if head else "  ", width - len(head)
        # What there is no room for goes as a whole, the last first.
        while len(parts) > 1 and cells(start + " · ".join(parts)) > room:
            parts.pop()
        rest = clip(start + " · ".join(parts), room)
        return (Span(head, Tone.FAILED), Span(rest, Tone.DIM))


def _ok(fact: ToolFinished | ToolDenied) -> bool:
    return isinstance(fact, ToolFinished) and fact.receipt.ok
