"""The screen with the details of one agent."""

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
from retinue.interfaces.chat.keys import AGENT_SCREEN_KEYS
from retinue.interfaces.chat.panes import MAX_LINE_WIDTH, FixedLines, ScrollableLines
from retinue.interfaces.view.agent_details import agent_details
from retinue.interfaces.view.styled_text import Line, Tone, styled
from retinue.runtime.history.undo import ChangePatch

REFRESH_S = 0.5
HINTS = "esc back  n/p next/previous  f failure  t transcript  o full output  x cancel"


class AgentScreen(Screen[None]):
    """Details of an agent from the journal. They are updated while the agent runs."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(key.keys, key.action, show=False) for key in AGENT_SCREEN_KEYS
    ]

    def __init__(self, chat: Chat, run_id: str, agent_id: str) -> None:
        super().__init__()
        self._chat = chat
        self._full = False
        self._section_starts: dict[str, int] = {}
        self._details = ScrollableLines(id="details")
        self._hints = FixedLines(id="hints")
        self._choose_agent(run_id, agent_id)

    def compose(self) -> ComposeResult:
        yield self._details
        yield self._hints

    def _choose_agent(self, run_id: str, agent_id: str) -> None:
        self._run_id = run_id
        self._agent_id = agent_id
        self._contract: Contract | None = None
        self._events: list[Event] = []
        self._changes: list[ChangePatch] = []
        self._changes_version: object = None
        self._error_text = ""
        self._last_seq = -1

    def on_mount(self) -> None:
        self._details.focus()
        self._refresh_details()
        self.set_interval(REFRESH_S, self._refresh_details)

    def on_resize(self) -> None:
        self._draw()

    def _refresh_details(self) -> None:
        """Read the journal if it has grown, and draw."""
        tree = self._chat.forest.trees[self._run_id]
        if tree.run.last_seq != self._last_seq:
            self._last_seq = tree.run.last_seq
            self._read()
        else:
            self._draw()

    @work(exclusive=True)
    async def _read(self) -> None:
        try:
            self._contract, self._events = await self._chat.agent_record(
                self._run_id, self._agent_id
            )
            agent = self._chat.forest.trees[self._run_id].run.agents[self._agent_id]
            version = len(agent.change_numbers), len(agent.unmerged_files), agent.state
            if version != self._changes_version and self._chat.host.ready:
                self._changes_version = version
                self._changes = await self._chat.runtime.diff(self._run_id, self._agent_id)
        except RetinueError as error:
            self._error_text = str(error)
        self._draw()

    def _draw(self) -> None:
        agent = self._chat.forest.trees[self._run_id].run.agents[self._agent_id]
        width = min(self._details.text_width, MAX_LINE_WIDTH)
        sections = agent_details(
            agent,
            self._contract,
            self._events,
            width=width,
            now=self._chat.clock.now(),
            changes=self._changes,
            streamed=self._chat.streamed_text(self._run_id, self._agent_id),
            full=self._full,
        )
        lines: list[Line] = []
        for title, content in sections:
            if lines:
                lines.append(styled())
            self._section_starts[title] = len(lines)
            if title:
                rule = "─" * max(0, width - len(title) - 1)
                lines.append(styled((f"{title} ", Tone.STRONG), (rule, Tone.DIM)))
            lines += content
        if self._error_text:
            lines.append(styled((self._error_text, Tone.FAILED)))
        self._details.show(lines)
        self._hints.show([styled((HINTS, Tone.DIM))])

    def show_agent(self, run_id: str, agent_id: str) -> None:
        self._choose_agent(run_id, agent_id)
        self._details.scroll_home(animate=False, immediate=True)
        self._refresh_details()

    def action_back(self) -> None:
        self.dismiss()

    def action_next(self, by: int) -> None:
        tree = self._chat.forest.trees[self._run_id]
        agents = list(tree.run.agents)
        index = (agents.index(self._agent_id) + by) % len(agents)
        self.show_agent(self._run_id, agents[index])

    def action_failure(self) -> None:
        failures = self._chat.failed_agents()
        if not failures:
            return
        current = (self._run_id, self._agent_id)
        index = failures.index(current) + 1 if current in failures else 0
        self.show_agent(*failures[index % len(failures)])

    def action_toggle_full(self) -> None:
        self._full = not self._full
        self._draw()

    def action_transcript(self) -> None:
        self._details.scroll_to(y=self._section_starts["Transcript"], animate=False)

    def action_cancel(self) -> None:
        tree = self._chat.forest.trees[self._run_id]
        if tree.run.agents[self._agent_id].state is not State.CLOSED:
            self._chat.runtime.cancel(self._agent_id, run_id=self._run_id)

    def action_scroll_by(self, lines: int) -> None:
        self._details.scroll_relative(y=lines, animate=False)

    def action_page(self, by: int) -> None:
        self._details.scroll_relative(y=by * max(1, self._details.size.height - 2), animate=False)

    def action_edge(self, end: int) -> None:
        if end:
            self._details.scroll_end(animate=False)
        else:
            self._details.scroll_home(animate=False)
