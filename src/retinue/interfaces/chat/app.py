"""The Textual app of the chat. It draws a `Chat` a few times a second, and handles keys."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from textual.app import App, ComposeResult, SuspendNotSupported
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.screen import Screen
from textual.worker import WorkerFailed

from retinue.domain.approval import ApprovalRequest
from retinue.domain.grant import Mode
from retinue.errors import UsageError
from retinue.interfaces.chat.agent_screen import AgentScreen
from retinue.interfaces.chat.chat import Chat
from retinue.interfaces.chat.input_box import InputBox
from retinue.interfaces.chat.keys import KEYS
from retinue.interfaces.chat.panes import AgentTreePane, ConversationPane, FixedLines
from retinue.interfaces.chat.slash_commands import answers, submit
from retinue.interfaces.chat.styles import THEME
from retinue.interfaces.cli.terminal.notify import notification
from retinue.interfaces.plan_review import open_in_editor
from retinue.interfaces.view.conversation_entries import Frame
from retinue.interfaces.view.formatting import cell_width, clip, one_line, plural, printable_lines
from retinue.interfaces.view.status_line import status_line
from retinue.interfaces.view.styled_text import Line, Span, Tone, clip_line, wrap
from retinue.interfaces.view.tool_calls import (
    approval_lines,
    call_text,
    diff_request_lines,
    edit_lines,
)

FRAMES_PER_S = 6
WIDE_COLUMNS = 110
TALL_LINES = 30
MANY_ROWS = 60
MAX_CALL_LINES = 10
MAX_KEY_LINES = 3
HINTS = "tab agents  ctrl+g failure  ctrl+o full output  f1 help  esc interrupt"
TREE_HINTS = "enter details  ←→ collapse/expand  x cancel  tab back to the input"
QUIT_CONFIRM_S = 3
TYPED_BEFORE_QUESTION = (
    "The question came while you were typing. If your text answers it, press enter again."
)
MODE_CYCLE = (Mode.PLAN, Mode.NORMAL, Mode.AUTO)


class ChatApp(App[None]):
    CSS = """
    Screen { background: ansi_default; color: ansi_default; layout: vertical; }
    #head, #status, #hints { height: 1; padding: 0 1; }
    .tall #head { margin-bottom: 1; }
    #body { height: 1fr; layout: vertical; }
    #conversation, #tree, #details {
        padding: 0 0 0 1; scrollbar-size-vertical: 1; scrollbar-gutter: stable;
    }
    #conversation { height: 1fr; width: 1fr; }
    #agents { height: auto; max-height: 40%; display: none; }
    #tree { height: auto; }
    #columns { height: 1; padding: 0 1; }
    .wide #body { layout: horizontal; }
    .wide #agents { width: 55%; height: 100%; max-height: 100%; }
    .wide #agents { border-left: solid ansi_bright_black; }
    .wide #tree { height: 1fr; }
    .with-agents #agents { display: block; }
    #question { height: auto; padding: 0 1; border-top: solid ansi_yellow; display: none; }
    .with-question #question { display: block; }
    #input-box { height: auto; border-top: solid ansi_bright_black; }
    #completions { height: auto; padding: 0 1; }
    #input-field {
        height: auto; max-height: 8; background: ansi_default; padding: 0 1; border: none;
    }
    #input-field .text-area--cursor {
        color: ansi_default; background: ansi_default; text-style: reverse;
    }
    #input-field .text-area--placeholder { color: ansi_default; text-style: dim; }
    #details { height: 1fr; }
    """
    AUTO_FOCUS = "#input-field"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        # With priority, because widgets of Textual bind many such keys themselves.
        Binding(key.keys, key.action, show=False, priority=key.keys.startswith(("ctrl+", "shift+")))
        for key in KEYS
        if key.action
    ]

    def __init__(self, chat: Chat) -> None:
        # Use the terminal's own colours, so that light and dark themes both work.
        super().__init__(ansi_color=True)
        self.chat = chat
        self._confirming_quit = False
        self._suspended = False
        self._agents_shown: bool | None = None
        self._frame = 0
        self._conversation = ConversationPane(id="conversation")
        self._input = InputBox(chat, id="input-box")
        names = ("head", "columns", "question", "status", "hints")
        self._lines = {name: FixedLines(id=name) for name in names}
        self._tree = AgentTreePane(chat.forest, self._lines["columns"], id="tree")

    def compose(self) -> ComposeResult:
        lines = self._lines
        yield lines["head"]
        with Container(id="body"):
            yield self._conversation
            with Container(id="agents"):
                yield lines["columns"]
                yield self._tree
        yield lines["question"]
        yield lines["status"]
        yield self._input
        yield lines["hints"]

    def on_mount(self) -> None:
        self.register_theme(THEME)
        self.theme = THEME.name
        self.chat.on_notify = self._notify
        self.chat.on_quit = self.action_quit_chat
        self.chat.on_edit = self._edit
        # Other programs have written to the terminal in the meantime.
        self.app_resume_signal.subscribe(self, lambda _: self.refresh(layout=True))
        self._serving = self.run_worker(self.chat.serve())
        self.set_interval(1 / FRAMES_PER_S, self._draw)
        self._draw()

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
        main.set_class(height >= TALL_LINES, "tall")
        main.set_class(self._agents_visible, "with-agents")
        main.set_class(bool(chat.questions.open), "with-question")
        if width < WIDE_COLUMNS:
            # As high as its rows, but it must not push the conversation off the screen.
            tree.styles.height = min(tree.count, max(3, height * 2 // 5))
        else:
            tree.styles.height = "1fr"
        self._show("head", self._head(width - 2))
        self._show("question", self._question(width - 2, height))
        self._input.question = chat.questions.first
        loads = chat.runtime.loads if chat.host.ready else ()
        line = status_line(chat.tree, chat.budget, width=width - 2, now=now, loads=loads)
        self._show("status", [line])
        self._show("hints", [clip_line((Span(self._hints(), Tone.DIM),), width - 2)])
        self._conversation.show(chat.conversation.entries, Frame(now))

    @property
    def _agents_visible(self) -> bool:
        """What the user chose; by default, whether a run has more than one agent."""
        if self._agents_shown is not None:
            return self._agents_shown
        return any(len(tree.run.agents) > 1 for tree in self.chat.forest.trees.values())

    def _show(self, name: str, lines: list[Line]) -> None:
        self._lines[name].show(lines)

    def _head(self, width: int) -> list[Line]:
        name = "retinue  "
        right = ""
        if self.chat.host.ready:
            runtime = self.chat.runtime
            model = clip(runtime.model, width // 2 - len(runtime.mode))
            right = f"{model}  {runtime.mode}"
        home, directory = str(self.chat.environment.home), str(self.chat.directory)
        if directory.startswith(home + "/"):
            directory = "~" + directory[len(home) :]
        room = width - cell_width(right) - len(name) - 2
        if cell_width(directory) > room:
            # The end of a path says more than its beginning.
            directory = f"…{directory[-room:]}" if room > 3 else ""
        gap = " " * (width - len(name) - cell_width(directory) - cell_width(right))
        return [(Span(name, Tone.STRONG), Span(directory + gap, Tone.DIM), Span(right, Tone.DIM))]

    def _question(self, width: int, height: int) -> list[Line]:
        if not self.chat.questions.open:
            return []
        question, *others = self.chat.questions.open
        more: list[Line] = []
        if others:
            more.append((Span(f"({plural(len(others), 'more question')} after this)", Tone.DIM),))
        request = question.request
        if request is None:
            lines: list[Line] = []
            if question.path:
                lines += wrap([Span(f"{question.path} asks", Tone.STOPPED)], width)
            for line in printable_lines(question.text):
                lines += wrap([Span(line)], width)
            if not question.choices:
                more.append((Span("Type your answer, then enter.", Tone.DIM),))
            return [*_both_ends(lines, height // 2), *more]
        # An edit is shown as a diff; of other calls, all arguments are shown.
        edit = edit_lines(request.tool, request.arguments, width, MAX_CALL_LINES)
        if request.diff:  # The conversation has all of it.
            lines = diff_request_lines(request, width)
        else:
            call = _call_request(request, width)
            lines = [*_edit_request(request, width), *edit] if edit else call
        reasons = wrap([Span(request.explanation, Tone.DIM)], width) if request.explanation else []
        keys = f"y yes   n no   a always: {one_line(str(request.rule))}   then enter"
        if request.children:
            keys = "y yes   a yes to all like this   n no, or n and a reason   then enter"
        key_lines = _both_ends(wrap([Span(keys, Tone.DIM)], width), MAX_KEY_LINES)
        return [*_both_ends(lines, height // 2), *more, *reasons, *key_lines]

    def _hints(self) -> str:
        if self._confirming_quit:
            return "ctrl+c again to quit"
        if self._tree.has_focus:
            return TREE_HINTS
        if self.chat.host.opening and self.chat.opening_status:
            return self.chat.opening_status
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
        page = max(1, self._conversation.size.height - 2)
        self._conversation.scroll_relative(y=by * page, animate=False)

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

    # Outside the screen

    async def _edit(self, text: str) -> str | None:
        """Open `text` in the user's editor, which uses the terminal meanwhile."""
        # The caller runs outside of Textual, so the suspension needs a worker.
        worker = self.run_worker(self._run_editor(text), exit_on_error=False)
        try:
            return await worker.wait()
        except WorkerFailed as failed:
            raise failed.error from None

    async def _run_editor(self, text: str) -> str | None:
        self._suspended = True
        try:
            with self.batch_update(), self.suspend():
                return await asyncio.to_thread(open_in_editor, text)
        except SuspendNotSupported:
            raise UsageError("This terminal cannot open an editor.") from None
        finally:
            self._suspended = False

    def _notify(self, text: str) -> None:
        """Send a terminal notification if the terminal does not have the focus."""
        if not self.app_focus and self._driver is not None and not self._suspended:
            self._driver.write(notification(self.chat.environment, f"retinue: {text}"))


def _edit_request(request: ApprovalRequest, width: int) -> list[Line]:
    call = Span(call_text(request.tool, request.arguments), Tone.STRONG)
    return wrap([Span(f"{request.path} requests ", Tone.STOPPED), call], width, rest="    ")


def _call_request(request: ApprovalRequest, width: int) -> list[Line]:
    lines: list[Line] = []
    for at, line in enumerate(approval_lines(request, MAX_CALL_LINES)):
        first = "  " if at else ""
        lines += wrap([Span(line.lstrip(), Tone.STRONG)], width, first=first, rest="    ")
    return lines


def _both_ends(lines: list[Line], most: int) -> list[Line]:
    """At most `most` lines: the beginning and the end, with a note about the lines between."""
    if len(lines) <= most:
        return lines
    head, tail = most // 2, (most - 1) // 2
    gap = f"[… {len(lines) - head - tail:,} lines not shown …]"
    return [*lines[:head], (Span(gap, Tone.STOPPED),), *lines[len(lines) - tail :]]
