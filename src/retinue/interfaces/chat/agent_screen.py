"""All about one agent, on a screen of its own."""

from __future__ import annotations

from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen

from retinue.domain.contract import Contract
from retinue.domain.events import Event
from retinue.domain.lifecycle import State
from retinue.errors import RetinueError
from retinue.interfaces.chat.chat import Chat
from retinue.interfaces.chat.keys import DETAIL_KEYS
from retinue.interfaces.chat.panes import LONGEST_LINE, LinePane, Pane
from retinue.interfaces.view.agent_details import agent_details
from retinue.interfaces.view.styled_text import Line, Span, Tone
from retinue.runtime.history.undo import ChangePatch

HINTS = "esc back  n/p next/previous  f failure  t transcript  o all output  x stop"


class Sheet(Pane, can_focus=True):
    """Lines, as they are given."""

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self._lines: list[Line] = []

    def line_at(self, y: int) -> Line:
        return self._lines[y]

    def show(self, lines: list[Line]) -> None:
        if lines == self._lines:
            return
        at_end = 0 < self.max_scroll_y <= self.scroll_y
        self._lines = lines
        self.resized_to(len(lines))
        self.refresh()
        if at_end:  # Who reads the latest goes on with what comes.
            self.scroll_end(animate=False)


class Detail(Screen[None]):
    """What is on record of an agent; it is read again while the agent works."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(key.keys, key.action, show=False) for key in DETAIL_KEYS
    ]

    def __init__(self, chat: Chat, run_id: str, agent_id: str) -> None:
        super().__init__()
        self._chat = chat
        self._run_id = run_id
        self._agent_id = agent_id
        self._contract: Contract | None = None
        self._events: list[Event] = []
        self._changes: list[ChangePatch] = []
        self._worked: object = None
        self._problem = ""
        self._known = -1
        self._whole = False
        self._titles: dict[str, int] = {}

    def compose(self) -> ComposeResult:
        yield Sheet(id="sheet")
        yield LinePane(id="hints")

    @property
    def sheet(self) -> Sheet:
        return self.query_one("#sheet", Sheet)

    def on_mount(self) -> None:
        self.sheet.focus()
        self._look_up()
        self.set_interval(0.5, self._look_up)

    def on_resize(self) -> None:
        self._draw()

    def _look_up(self) -> None:
        """Read the journal again if it has grown."""
        tree = self._chat.forest.trees[self._run_id]
        if tree.run.last_seq != self._known:
            self._known = tree.run.last_seq
            self._read()
        else:
            self._draw()

    @work(exclusive=True)
    async def _read(self) -> None:
        try:
            self._contract, self._events = await self._chat.record(self._run_id, self._agent_id)
            agent = self._chat.forest.trees[self._run_id].run.agents[self._agent_id]
            worked = len(agent.change_numbers), len(agent.unmerged_files), agent.state
            if worked != self._worked and self._chat.engine.ready:
                runtime = self._chat.runtime
                self._worked = worked
                self._changes = await runtime.diff(self._run_id, self._agent_id)
        except RetinueError as error:
            self._problem = str(error)
        self._draw()

    def _draw(self) -> None:
        agent = self._chat.forest.trees[self._run_id].run.agents[self._agent_id]
        width = min(self.sheet.text_width, LONGEST_LINE)
        sections = agent_details(
            agent,
            self._contract,
            self._events,
            width=width,
            now=self._chat.clock.now(),
            changes=self._changes,
            streamed=self._chat.saying(self._run_id, self._agent_id),
            full=self._whole,
        )
        lines: list[Line] = []
        for title, content in sections:
            if lines:
                lines.append(())
            self._titles[title] = len(lines)
            if title:
                rule = "─" * max(0, width - len(title) - 1)
                lines.append((Span(f"{title} ", Tone.STRONG), Span(rule, Tone.DIM)))
            lines += content
        if self._problem:
            lines.append((Span(self._problem, Tone.FAILED),))
        self.sheet.show(lines)
        self.query_one("#hints", LinePane).show([(Span(HINTS, Tone.DIM),)])

    def see(self, run_id: str, agent_id: str) -> None:
        """Show another agent."""
        self._run_id, self._agent_id = run_id, agent_id
        self._contract, self._events, self._problem, self._known = None, [], "", -1
        self._changes, self._worked = [], None
        self.sheet.scroll_home(animate=False, immediate=True)
        self._look_up()

    def action_back(self) -> None:
        self.dismiss()

    def action_next(self, by: int) -> None:
        tree = self._chat.forest.trees[self._run_id]
        agents = list(tree.run.agents)
        place = (agents.index(self._agent_id) + by) % len(agents)
        self.see(self._run_id, agents[place])

    def action_failure(self) -> None:
        failures = self._chat.failures()
        if not failures:
            return
        here = (self._run_id, self._agent_id)
        place = failures.index(here) + 1 if here in failures else 0
        self.see(*failures[place % len(failures)])

    def action_whole(self) -> None:
        self._whole = not self._whole
        self._draw()

    def action_transcript(self) -> None:
        self.sheet.scroll_to(y=self._titles["Transcript"], animate=False)

    def action_stop(self) -> None:
        tree = self._chat.forest.trees[self._run_id]
        if tree.run.agents[self._agent_id].state is not State.CLOSED:
            self._chat.runtime.cancel(self._agent_id, run_id=self._run_id)

    def action_by(self, lines: int) -> None:
        self.sheet.scroll_relative(y=lines, animate=False)

    def action_page(self, by: int) -> None:
        self.sheet.scroll_relative(y=by * max(1, self.sheet.size.height - 2), animate=False)

    def action_edge(self, end: int) -> None:
        if end:
            self.sheet.scroll_end(animate=False)
        else:
            self.sheet.scroll_home(animate=False)
