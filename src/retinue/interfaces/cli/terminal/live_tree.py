"""Progress as a live tree at the bottom of a terminal, with permanent lines above it."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

import msgspec

from retinue.domain import events
from retinue.domain.agent_state import ROOT_ID, AgentState
from retinue.domain.plural import plural
from retinue.domain.result import Receipt
from retinue.interfaces.cli.terminal.progress import Progress
from retinue.interfaces.cli.terminal.screen import Screen
from retinue.interfaces.view.activity_line import fan_out_progress, root_activity
from retinue.interfaces.view.agent_tree import (
    MAX_UNGROUPED_CHILDREN,
    SPINNER_FRAMES,
    STATE_SYMBOLS,
    THINKING,
    WAITING_TOOLS,
    AgentTree,
    DisplayState,
    TreeRow,
    fit_rows,
    short_name,
)
from retinue.interfaces.view.formatting import cell_width, clip, format_cost, one_line, short_count
from retinue.interfaces.view.result_blocks import agent_block, paused_blocks
from retinue.interfaces.view.styled_text import Line, Tone, styled, wrap
from retinue.interfaces.view.task_lines import has_result_block, task_line
from retinue.interfaces.view.tool_calls import answer_text, call_text
from retinue.runtime.core.task_group import TaskGroup

FIRST_S = 0.3  # A shorter run shows no tree.
FRAME_S = 0.1
MAX_HEIGHT = 24  # Keep earlier output in view.
MAX_RESULT_LINES = 3
SHOWN_CHARS = 60


class LiveTree(Progress):
    """Draws the tree of the current run while `live`."""

    def __init__(self, screen: Screen, *, hint: str, keep_final_tree: bool = False) -> None:
        """`hint` ends the status line. `keep_final_tree` leaves even a small tree on screen."""
        self._screen = screen
        self._hint = hint
        self._keep_final_tree = keep_final_tree
        self._tree = AgentTree()
        self._waiting = ""
        self._thinking = False
        self._streamed: dict[str, str] = {}
        self._last_calls: dict[str, str] = {}
        self._paused = False
        self._pending: list[Line] = []
        self._finished = False

    @asynccontextmanager
    async def live(self) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTSTP, self._suspend)
        async with TaskGroup() as tasks:
            drawing = tasks.create_task(self._keep_drawing())
            try:
                yield
            finally:
                drawing.cancel()
                loop.remove_signal_handler(signal.SIGTSTP)
                self._screen.close()

    def finish(self) -> None:
        """Erase the tree. A large one stays, folded, since its agents have no blocks."""
        self._finished = True
        self._screen.close()
        root = self._tree.run.root
        if root is not None and (
            self._keep_final_tree or len(root.children) > MAX_UNGROUPED_CHILDREN
        ):
            width, _ = self._screen.size
            self._screen.print(self._lines(width, MAX_HEIGHT, time.time()))

    @contextmanager
    def paused(self) -> Iterator[None]:
        """While inside, the tree is erased and permanent lines wait."""
        self._paused = True
        self._screen.close()
        try:
            yield
        finally:
            self._paused = False
            self._screen.print(self._pending)
            self._pending = []

    def on_text(self, agent_id: str, text: str) -> None:
        self._thinking = self._thinking or (agent_id == ROOT_ID and not text)
        self._streamed[agent_id] = (self._streamed.get(agent_id, "") + text)[-SHOWN_CHARS:]

    def on_progress(self, run_id: str, agent_id: str, tool: str, text: str) -> None:
        if run_id == self._tree.run.id:
            self._tree.report(agent_id, text)

    def on_wait(self, reason: str) -> None:
        self._waiting = reason

    def on_past_event(self, event: events.Event) -> None:
        self._tree.apply(event)

    def on_event(self, event: events.Event) -> None:
        if event.type == "run.started":
            self._tree, self._finished = AgentTree(), False
        self._tree.apply(event)
        agent = self._tree.run.agents.get(event.agent_id)
        if agent is not None and (lines := self._permanent_lines(event, agent)):
            if self._paused:
                self._pending += lines
            else:
                self._screen.print(lines)

    def _permanent_lines(self, event: events.Event, agent: AgentState) -> list[Line]:
        """The lines to print above the tree for an event."""
        width, _ = self._screen.size
        if event.type == "agent.subagent_closed" and has_result_block(self._tree.run, agent):
            return agent_block(agent, width=width, max_lines=MAX_RESULT_LINES)
        if event.type == "run.suspended":
            return paused_blocks(self._tree.run, width=width, max_lines=MAX_RESULT_LINES)
        fact = event.fact
        if event.type in ("turn.started", "model.replied"):
            self._streamed.pop(agent.id, None)
            self._thinking = self._thinking and agent.parent_id is not None
        text, tone = "", Tone.DIM
        about = "" if agent.parent_id is None else f"{short_name(agent)}: "
        match fact:
            case events.CircuitBreakerTripped() | events.SilenceDetected():
                text, tone = f"  {about}{fact}", Tone.STOPPED
            case events.HookFinished() if fact.notable:
                said = styled((f"{about}{fact}", Tone.STOPPED))
                return wrap(said, width, first="  ", rest="    ")
            case events.ToolStarted() if fact.tool not in WAITING_TOOLS:
                call = self._last_calls[agent.id] = call_text(fact.tool, fact.arguments)
                text = f"  {call}" if agent.parent_id is None else ""
            case _ if agent.parent_id is not None:
                pass
            case events.ModelReplied() if fact.calls and fact.content.strip():
                text = f"  {one_line(fact.content)}"
            case events.ToolFinished(tool=tool) if tool in WAITING_TOOLS and not (
                self._tree.failed_to_spawn(agent.id, fact)
            ):
                pass
            case events.ToolFinished(receipt=Receipt(ok=False)) | events.ToolDenied():
                said = styled((one_line(answer_text(fact)), Tone.STOPPED))
                return wrap(said, width, first="    ", rest="    ")
        return [styled((clip(text, width), tone))] if text else []

    async def _keep_drawing(self) -> None:
        await asyncio.sleep(FIRST_S)
        while True:
            # A closed terminal must not stop the run.
            with suppress(OSError):
                if not self._paused and not self._finished and self._screen.in_foreground:
                    width, height = self._screen.size
                    lines = self._lines(width, min(height - 2, MAX_HEIGHT), time.time())
                    self._screen.draw(lines)
            await asyncio.sleep(FRAME_S)

    def _suspend(self) -> None:
        """Restore the terminal before Ctrl-Z stops the process."""
        self._screen.close()
        os.kill(os.getpid(), signal.SIGSTOP)

    def _lines(self, width: int, height: int, now: float) -> list[Line]:
        frame = SPINNER_FRAMES[int(now / FRAME_S) % len(SPINNER_FRAMES)]
        if self._tree.run.root is None:
            text = clip(f"{frame} {self._waiting}", width) if self._waiting else ""
            return [styled((text, Tone.DIM))]
        rows, left_out = fit_rows(self._tree.rows(now), height - 1)
        lines = []
        for row in rows:
            if self._finished and row.state is DisplayState.RUNNING:
                continue  # The root of a fan-out is closed only after this.
            symbol = frame if row.state is DisplayState.RUNNING else STATE_SYMBOLS[row.state]
            lines.append(task_line(self._doing(row, now), width=width, symbol=symbol))
        return [*lines, self._status_line(width, left_out, now)]

    def _doing(self, row: TreeRow, now: float) -> TreeRow:
        """While a model thinks, show the text it streams, what the root waits for, or a call."""
        if row.activity != THINKING or row.count > 1:
            return row
        root, text = self._tree.run.root, one_line(self._streamed.get(row.agent_id, ""))
        if text:
            doing = f"…{text}"
        elif root is not None and row.agent_id == root.id and self._tree.is_model_led:
            doing = root_activity(
                root,
                self._tree,
                now=now,
                writing=False,
                thinking=self._thinking,
                loads=self.loads(),
            )
        else:
            doing = self._last_calls.get(row.agent_id, THINKING)
        return msgspec.structs.replace(row, activity=doing)

    def _status_line(self, width: int, left_out: int, now: float) -> Line:
        """The status line: how far the run is, how many agents in each state, tokens and cost."""
        counts = self._tree.current_counts()
        usage, failed = self._tree.run.usage, counts[DisplayState.FAILED]
        # Without the noun: the rows above show what they are.
        progress = (
            "" if self._finished else fan_out_progress(self._tree, now).replace(" agents", "")
        )
        left_out_states = (DisplayState.FAILED, *([DisplayState.DONE] if progress else []))
        parts = [
            f"{counts[state]:,} {state}"
            for state in DisplayState
            if counts[state] and state not in left_out_states
        ]
        parts += [progress] if progress else []
        if left_out:
            parts.append(f"{plural(left_out, 'row')} not shown")
        parts.append(f"{short_count(usage.tokens)} tokens")
        if usage.cost_usd:
            parts.append(format_cost(usage.cost_usd))
        if not self._finished:
            parts.append(self._hint)
        head = f"  {failed:,} failed" if failed else ""
        start, room = " · " if head else "  ", width - len(head)
        # Drop whole parts that do not fit, the last ones first.
        while len(parts) > 1 and cell_width(start + " · ".join(parts)) > room:
            parts.pop()
        rest = clip(start + " · ".join(parts), room)
        return styled((head, Tone.FAILED), (rest, Tone.DIM))
