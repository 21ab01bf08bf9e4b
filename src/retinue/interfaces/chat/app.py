"""The Textual app of the chat. It draws a `Chat` a few times a second, and handles keys."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import ClassVar

from textual.app import App, ComposeResult, SuspendNotSupported
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.screen import Screen
from textual.worker import WorkerFailed

from retinue.config.settings import Theme
from retinue.domain.grant import Mode
from retinue.domain.plural import plural
from retinue.errors import UsageError
from retinue.interfaces.chat.activity import Activity
from retinue.interfaces.chat.agent_screen import AgentScreen
from retinue.interfaces.chat.chat import Chat, Choice
from retinue.interfaces.chat.input_box import InputBox
from retinue.interfaces.chat.keys import KEYS
from retinue.interfaces.chat.panes import (
    AgentTreePane,
    ConversationPane,
    FixedLines,
    ScrollableLines,
)
from retinue.interfaces.chat.picker import Picker
from retinue.interfaces.chat.question_lines import answer_lines, question_lines
from retinue.interfaces.chat.questions import Question
from retinue.interfaces.chat.slash_commands import COMMANDS, answers, submit
from retinue.interfaces.chat.styles import palette_of, textual_theme
from retinue.interfaces.cli.terminal.notify import notification
from retinue.interfaces.plan_review import open_in_editor
from retinue.interfaces.view.conversation_entries import Frame
from retinue.interfaces.view.formatting import clip
from retinue.interfaces.view.status_line import status_line
from retinue.interfaces.view.styled_text import Line, Tone, clip_line, styled, use_palette
from retinue.project import current_branch

FRAMES_PER_S = 6
WIDE_COLUMNS = 118
# The conversation, with its edges; lines of text are never wider than 110.
MIN_CONVERSATION_COLUMNS, ENOUGH_CONVERSATION_COLUMNS = 78, 114
IDLE_AGENTS_COLUMNS = 42
MANY_ROWS = 60
HINTS = "tab agents  ctrl+g failure  ctrl+o full output  f1 help  esc interrupt"
TREE_HINTS = "enter details  ←→ collapse/expand  x cancel  tab back to the input"
QUIT_CONFIRM_S = 3
MAX_MODEL, MAX_BRANCH = 50, 30
TYPED_BEFORE_QUESTION = (
    "The question came while you were typing. If your text answers it, press enter again."
)
MODE_CYCLE = (Mode.PLAN, Mode.NORMAL, Mode.AUTO)


class ChatApp(App[None]):
    CSS_PATH = "chat.tcss"
    AUTO_FOCUS = "#input-field"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        # With priority, because widgets of Textual bind many such keys themselves.
        Binding(key.keys, key.action, show=False, priority=key.keys.startswith(("ctrl+", "shift+")))
        for key in KEYS
        if key.action
    ]

    def __init__(
        self,
        chat: Chat,
        *,
        theme: Theme = Theme.TERMINAL,
        dark_background: bool | None = None,
        draft: str = "",
    ) -> None:
        """`draft` is in the input line at the start."""
        # Without this, Textual replaces the colours of the terminal.
        super().__init__(ansi_color=True)
        self.chat = chat
        self._theme = theme
        self._dark_background = dark_background
        self._confirming_quit = False
        self._suspended = False
        self._agents_shown: bool | None = None
        self._frame = 0
        self._conversation = ConversationPane(id="conversation")
        self._input = InputBox(chat, id="input-box")
        self._draft = draft
        self._question = ScrollableLines(id="question")
        self._question.can_focus = False
        self._shown_question: tuple[Question, int] | None = None
        names = ("columns", "answers", "activity", "status", "hints")
        self._lines = {name: FixedLines(id=name) for name in names}
        self._agents = Container(id="agents")
        self._widest_agents = 0
        self._activity = Activity(chat)
        self._tree = AgentTreePane(chat.forest, self._lines["columns"], id="tree")

    def compose(self) -> ComposeResult:
        lines = self._lines
        with Container(id="body"):
            yield self._conversation
            with self._agents:
                yield lines["columns"]
                yield self._tree
        yield self._question
        yield lines["answers"]
        yield lines["activity"]
        yield self._input
        yield lines["status"]
        yield lines["hints"]

    def on_mount(self) -> None:
        self._use_theme(self._theme)
        if self._draft:
            self._input.set_text(self._draft)
        self.chat.on_notify = self._notify
        self.chat.on_quit = self.action_quit_chat
        self.chat.on_edit = self._edit
        self.chat.on_pick = self._pick
        self.chat.on_copy = self.copy_to_clipboard
        self.chat.on_draft = self._input.set_text
        self.chat.on_theme = self._use_theme
        # Other programs have written to the terminal in the meantime.
        self.app_resume_signal.subscribe(self, lambda _: self.refresh(layout=True))
        self._serving = self.run_worker(self.chat.serve())
        self.set_interval(1 / FRAMES_PER_S, self._draw)
        self._draw()

    def _use_theme(self, theme: Theme) -> None:
        palette = palette_of(theme, self._dark_background)
        use_palette(palette)
        # `auto` fits the background that is there, so it does not paint another one.
        chosen = textual_theme(palette, painted=theme is not Theme.AUTO)
        self.register_theme(chosen)
        self.theme = chosen.name
        self._conversation.lay_out_again()

    # Drawing

    @property
    def _main(self) -> Screen[None]:
        return self.screen_stack[0]

    def on_resize(self) -> None:
        self._draw()

    def _draw(self) -> None:
        if not self._conversation.is_attached or self.screen is not self._main:
            return  # The widgets are gone, or hidden; hidden ones are drawn when they show again.
        chat, main = self.chat, self._main
        width, height = self.size
        now = chat.clock.now()
        tree = self._tree
        self._frame += 1
        # A long list changes in many places at once: draw it only twice a second.
        if tree.count <= MANY_ROWS or self._frame % (FRAMES_PER_S // 2) == 0:
            tree.show(now, {question.path for question in chat.questions.open})
        main.set_class(width >= WIDE_COLUMNS, "wide")
        main.set_class(self._agents_visible, "with-agents")
        main.set_class(bool(chat.questions.open), "with-question")
        if width < WIDE_COLUMNS:
            # As high as its rows, but it must not push the conversation off the screen.
            tree.styles.height = min(tree.count, max(3, height * 2 // 5))
            self._agents.styles.width = "100%"
        else:
            tree.styles.height = "1fr"
            self._agents.styles.width = self._agents_width(width)
        frame = Frame(now)
        activity = self._activity.line(frame, width - 2)
        self._show("activity", [] if activity is None else [activity])
        self._draw_question(width - 2, height)
        window = chat.runtime.window if chat.host.ready else None
        self._show(
            "status",
            [
                status_line(
                    self._place, chat.tree, chat.budget, width=width - 2, now=now, window=window
                )
            ],
        )
        self._show(
            "hints",
            [
                clip_line(
                    styled((self._hints(), Tone.DIM)),
                    width - 2,
                )
            ],
        )
        self._conversation.show(chat.conversation.entries, frame)

    def _agents_width(self, width: int) -> int:
        """Width that the rows need, within what the conversation leaves; narrow when idle."""
        most = max(IDLE_AGENTS_COLUMNS, width - ENOUGH_CONVERSATION_COLUMNS)
        most = min(most, width - MIN_CONVERSATION_COLUMNS)
        if not any(tree.active for tree in self.chat.forest.trees.values()):
            self._widest_agents = 0
            return min(most, IDLE_AGENTS_COLUMNS)
        # It does not shrink while agents work: the conversation would be laid out again and again.
        self._widest_agents = max(self._widest_agents, self._tree.natural_width + 3)
        return max(IDLE_AGENTS_COLUMNS, min(most, self._widest_agents))

    @property
    def _agents_visible(self) -> bool:
        """The user's choice; by default, whether a run has more than one agent."""
        if self._agents_shown is not None:
            return self._agents_shown
        return any(len(tree.run.agents) > 1 for tree in self.chat.forest.trees.values())

    def _show(self, name: str, lines: list[Line]) -> None:
        self._lines[name].show(lines)

    @property
    def _place(self) -> str:
        """The model, the mode and the branch of the project."""
        if not self.chat.host.ready:
            return ""
        runtime = self.chat.runtime
        parts = [clip(runtime.model.partition("@")[0], MAX_MODEL), f"{runtime.mode} mode"]
        if branch := current_branch(self.chat.directory):
            parts.append(clip(branch, MAX_BRANCH))
        return "  ".join(parts)

    def _draw_question(self, width: int, height: int) -> None:
        question, others = self.chat.questions.first, self.chat.questions.open[1:]
        self._input.show_question(question, others=len(others), title=self.chat.title)
        if question is None:
            self._shown_question = None
            return
        if self._shown_question != (question, width):
            if self._shown_question is None or self._shown_question[0] is not question:
                self._question.scroll_home(animate=False)
            self._shown_question = (question, width)
            self._question.show(question_lines(question, width))
        # One or two lines more than half of the screen need no scrolling.
        room = height // 2
        room += max(0, self._question.count - room) if self._question.count <= room + 2 else 0
        self._question.styles.height = 1 + min(self._question.count, room)  # And the border.
        hidden = self._question.count - room
        below = hidden - self._question.scroll_offset.y
        more = f"  ↓ {plural(below, 'more line')}: page down" if below > 0 else ""
        if hidden > 0 and not more:
            more = "  (end)"
        self._show("answers", answer_lines(question, more, width))

    def _hints(self) -> str:
        if self._confirming_quit:
            return "ctrl+c again to quit"
        if self._tree.has_focus:
            return TREE_HINTS
        if self.chat.unread_messages:
            return f"{plural(len(self.chat.unread_messages), 'unread message')}  esc interrupt"
        return HINTS

    # Keys

    def on_input_box_sent(self, event: InputBox.Sent) -> None:
        question = self.chat.questions.first
        if question and question is not event.question and answers(question, event.text):
            # Text that was meant for something else must not approve a call.
            self._input.set_text(event.text)
            self.chat.conversation.add_notice(TYPED_BEFORE_QUESTION, Tone.STOPPED)
            self._draw()
            return
        before = self.chat.conversation.entries[-1:]
        submit(self.chat, event.text)
        self._draw()
        # Show an immediate answer from its beginning; otherwise follow the end.
        seen = self.chat.conversation.entries[-1:] == before
        self._conversation.scroll_to_last(seen=seen)

    def on_agent_tree_pane_selected(self, event: AgentTreePane.Selected) -> None:
        self._show_agent(event.row.run_id, event.row.agent_id)

    def on_agent_tree_pane_cancelled(self, event: AgentTreePane.Cancelled) -> None:
        submit(self.chat, f"/cancel {event.row.agent_id}")

    def _show_agent(self, run_id: str, agent_id: str) -> None:
        self.push_screen(AgentScreen(self.chat, run_id, agent_id))

    def action_failure(self) -> None:
        if isinstance(self.screen, AgentScreen):
            self.screen.action_failure()
        elif failures := self.chat.failed_agents():
            self._show_agent(*failures[0])
        else:
            self.chat.conversation.add_notice("No agent has failed.")

    def action_toggle_full(self) -> None:
        if isinstance(self.screen, AgentScreen):
            self.screen.action_toggle_full()
        else:
            self._conversation.toggle_full()
            self._draw()

    def action_agents(self) -> None:
        self._agents_shown = not self._agents_visible
        self._draw()

    def action_escape(self) -> None:
        if self._tree.has_focus:
            self._input.field.focus()
        else:
            self.chat.interrupt()

    def action_mode(self) -> None:
        if self.chat.host.ready:
            mode = self.chat.runtime.mode
            index = MODE_CYCLE.index(mode) + 1 if mode in MODE_CYCLE else 0
            submit(self.chat, f"/mode {MODE_CYCLE[index % len(MODE_CYCLE)]}")

    def action_scroll(self, by: int) -> None:
        # A question that is longer than its place is read before it is answered.
        long = self.chat.questions.first is not None and self._question.max_scroll_y > 0
        pane = self._question if long else self._conversation
        pane.scroll_relative(y=by * max(1, pane.size.height - 2), animate=False)
        self._draw()

    def action_help(self) -> None:
        self.post_message(InputBox.Sent("/help", None))

    def action_interrupt(self) -> None:
        if text := self.screen.get_selected_text():
            self.copy_to_clipboard(text)
        elif self.chat.interrupt():
            pass
        elif self._input.text:
            self._input.set_text("")
        elif self._confirming_quit:
            self.action_quit_chat()
        else:
            self._confirming_quit = True
            self.set_timer(QUIT_CONFIRM_S, self._reset_quit)

    def _reset_quit(self) -> None:
        self._confirming_quit = False

    def action_quit_chat(self) -> None:
        self.run_worker(self._quit())

    async def close(self) -> None:
        """Close the runtime. Every agent is closed when this returns."""
        self.chat.host.close()
        await self._serving.wait()

    async def _quit(self) -> None:
        await self.close()
        self.exit()

    # Lists to choose from

    def _pick(
        self,
        title: str,
        choices: Sequence[Choice],
        then: Callable[[str], None],
        delete: Callable[[str], None] | None = None,
    ) -> None:
        def chosen(value: str | None) -> None:
            if value is not None:
                then(value)
            self._draw()

        # The caller may be a task of the host, outside of Textual's context.
        self.call_later(self.push_screen, Picker(title, choices, delete), chosen)

    def action_history(self) -> None:
        lines = [(line, "") for line in self.chat.history.latest_first()]
        self._pick("History", lines, self._input.set_text)

    def action_palette(self) -> None:
        commands = [(f"/{command.name}", command.help) for command in COMMANDS]
        self._pick("Commands", commands, lambda name: self._input.set_text(f"{name} "))

    # Outside the screen

    def action_edit(self) -> None:
        self.run_worker(self._edit_input(), exit_on_error=False)

    async def _edit_input(self) -> None:
        try:
            text = await self._run_editor(self._input.text, ".md")
        except UsageError as error:
            self.chat.show_error(error)
        else:
            if text is not None:
                self._input.set_text(text.rstrip("\n"))
        self._draw()

    async def _edit(self, text: str) -> str | None:
        """Open `text` in the user's editor, which uses the terminal meanwhile."""
        # The caller runs outside of Textual, so the suspension needs a worker.
        worker = self.run_worker(self._run_editor(text, ".toml"), exit_on_error=False)
        try:
            return await worker.wait()
        except WorkerFailed as failed:
            raise failed.error from None

    async def _run_editor(self, text: str, extension: str) -> str | None:
        self._suspended = True
        try:
            with self.batch_update(), self.suspend():
                return await asyncio.to_thread(open_in_editor, text, extension)
        except SuspendNotSupported:
            raise UsageError("This terminal cannot open an editor.") from None
        finally:
            self._suspended = False

    def _notify(self, text: str) -> None:
        """Send a terminal notification if the terminal does not have the focus."""
        if not self.app_focus and self._driver is not None and not self._suspended:
            self._driver.write(notification(self.chat.environment, f"retinue: {text}"))
