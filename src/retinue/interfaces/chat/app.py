"""The screen of the chat. It draws what `Chat` knows, a few times a second, and passes keys on."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from textual import work
from textual.app import App, ComposeResult, SuspendNotSupported
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.screen import Screen
from textual.worker import WorkerFailed

from retinue.domain.approval import ApprovalRequest
from retinue.domain.grant import Mode
from retinue.errors import UsageError
from retinue.interfaces.chat.agent_screen import Detail
from retinue.interfaces.chat.chat import Chat
from retinue.interfaces.chat.input_box import Prompt
from retinue.interfaces.chat.keys import KEYS
from retinue.interfaces.chat.panes import Heading, LinePane, TalkPane, TreePane
from retinue.interfaces.chat.slash_commands import answers, submit
from retinue.interfaces.chat.styles import THEME
from retinue.interfaces.cli.terminal.notify import notification
from retinue.interfaces.plan_review import open_in_editor
from retinue.interfaces.view.conversation_entries import Frame
from retinue.interfaces.view.formatting import cell_width, clip, one_line, plural, printable_lines
from retinue.interfaces.view.status_line import status_line
from retinue.interfaces.view.styled_text import Line, Span, Tone, clip_line, wrap
from retinue.interfaces.view.tool_calls import approval_lines, call_text, edit_lines

FRAMES_A_SECOND = 6
SIDE_BY_SIDE = 110
TALL = 30
MANY_ROWS = 60
QUESTION_LINES = 10
RULE_LINES = 3
HINTS = "tab agents  ctrl+g failure  ctrl+o all output  f1 help  esc stop"
TOO_SOON = "This was asked while you typed; press enter again if your words are the answer to it."
MODES = (Mode.PLAN, Mode.NORMAL, Mode.AUTO)


class ChatApp(App[None]):
    CSS = """
    Screen { background: ansi_default; color: ansi_default; layout: vertical; }
    #head, #status, #hints { height: 1; padding: 0 1; }
    .tall #head { margin-bottom: 1; }
    #body { height: 1fr; layout: vertical; }
    #talk, #tree, #sheet {
        padding: 0 0 0 1; scrollbar-size-vertical: 1; scrollbar-gutter: stable;
    }
    #talk { height: 1fr; width: 1fr; }
    #agents { height: auto; max-height: 40%; display: none; }
    #tree { height: auto; }
    #columns { height: 1; padding: 0 1; }
    .wide #body { layout: horizontal; }
    .wide #agents { width: 55%; height: 100%; max-height: 100%; }
    .wide #agents { border-left: solid ansi_bright_black; }
    .wide #tree { height: 1fr; }
    .some #agents { display: block; }
    #question { height: auto; padding: 0 1; border-top: solid ansi_yellow; display: none; }
    .asked #question { display: block; }
    #prompt { height: auto; border-top: solid ansi_bright_black; }
    #proposals { height: auto; padding: 0 1; }
    #field { height: auto; max-height: 8; background: ansi_default; padding: 0 1; border: none; }
    #field .text-area--cursor {
        color: ansi_default; background: ansi_default; text-style: reverse;
    }
    #field .text-area--placeholder { color: ansi_default; text-style: dim; }
    #sheet { height: 1fr; }
    """
    AUTO_FOCUS = "#field"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        # Before what the widgets make of such a key, which Textual's own do of many.
        Binding(key.keys, key.action, show=False, priority=key.keys.startswith(("ctrl+", "shift+")))
        for key in KEYS
        if key.action
    ]

    def __init__(self, chat: Chat) -> None:
        # The terminal's own colours, which are light or dark as the user has them.
        super().__init__(ansi_color=True)
        self.chat = chat
        self._about_to_leave = False
        self._away = False
        self._agents_wanted: bool | None = None
        self._frame = 0
        self._talk = TalkPane(id="talk")
        self._tree = TreePane(chat.forest, id="tree")
        self._prompt = Prompt(chat, id="prompt")
        self._heading = Heading(self._tree, id="columns")
        names = ("head", "question", "status", "hints")
        self._lines = {name: LinePane(id=name) for name in names}

    def compose(self) -> ComposeResult:
        lines = self._lines
        yield lines["head"]
        with Container(id="body"):
            yield self._talk
            with Container(id="agents"):
                yield self._heading
                yield self._tree
        yield lines["question"]
        yield lines["status"]
        yield self._prompt
        yield lines["hints"]

    def on_mount(self) -> None:
        self.register_theme(THEME)
        self.theme = THEME.name
        self.chat.on_attention = self._attention
        self.chat.on_quit = self.action_leave
        self.chat.on_edit = self._edit
        # Others have written to the terminal since.
        self.app_resume_signal.subscribe(self, lambda _: self.refresh(layout=True))
        self._serving = self._serve()
        self.set_interval(1 / FRAMES_A_SECOND, self._draw)
        self._draw()

    # Drawing

    @property
    def _main(self) -> Screen[None]:
        return self.screen_stack[0]

    def on_resize(self) -> None:
        self._draw()

    def _draw(self) -> None:
        if not self._talk.is_attached or self.screen is not self._main:
            return  # It is gone, or hidden and drawn again when it is not.
        chat, main = self.chat, self._main
        width, height = self.size
        now = chat.clock.now()
        tree = self._tree
        self._frame += 1
        # A long list moves in many places at once: twice a second is soon enough for it.
        if tree.count <= MANY_ROWS or self._frame % (FRAMES_A_SECOND // 2) == 0:
            tree.show(now, {question.path for question in chat.questions.open})
        main.set_class(width >= SIDE_BY_SIDE, "wide")
        main.set_class(height >= TALL, "tall")
        main.set_class(self._shows_agents, "some")
        main.set_class(bool(chat.questions.open), "asked")
        if width < SIDE_BY_SIDE:
            # What it needs, and never so much that the conversation is pushed out.
            tree.styles.height = min(tree.count, max(3, height * 2 // 5))
        else:
            tree.styles.height = "1fr"
        self._show("head", self._head(width - 2))
        self._heading.show()
        self._show("question", self._question(width - 2, height))
        self._prompt.question = next(iter(chat.questions.open), None)
        loads = chat.runtime.loads if chat.engine.ready else ()
        line = status_line(chat.tree, chat.budget, width=width - 2, now=now, loads=loads)
        self._show("status", [line])
        self._show("hints", [clip_line((Span(self._hints(), Tone.DIM),), width - 2)])
        self._talk.show(chat.conversation.entries, Frame(now))

    @property
    def _shows_agents(self) -> bool:
        """As the user said; else where there are more than one in a run."""
        if self._agents_wanted is not None:
            return self._agents_wanted
        return any(len(tree.run.agents) > 1 for tree in self.chat.forest.trees.values())

    def _show(self, name: str, lines: list[Line]) -> None:
        self._lines[name].show(lines)

    def _head(self, width: int) -> list[Line]:
        name = "retinue  "
        right = ""
        if self.chat.engine.ready:
            policy = self.chat.runtime.policy
            model = clip(policy.model, width // 2 - len(policy.mode))
            right = f"{model}  {policy.mode}"
        home, place = str(self.chat.environment.home), str(self.chat.directory)
        if place.startswith(home + "/"):
            place = "~" + place[len(home) :]
        room = width - cell_width(right) - len(name) - 2
        if cell_width(place) > room:
            # The end of it tells more.
            place = f"…{place[-room:]}" if room > 3 else ""
        gap = " " * (width - len(name) - cell_width(place) - cell_width(right))
        return [(Span(name, Tone.STRONG), Span(place + gap, Tone.DIM), Span(right, Tone.DIM))]

    def _question(self, width: int, height: int) -> list[Line]:
        if not self.chat.questions.open:
            return []
        question, *others = self.chat.questions.open
        more: list[Line] = []
        if others:
            more.append((Span(f"({len(others):,} more after this)", Tone.DIM),))
        wish = question.wish
        if wish is None:
            lines: list[Line] = []
            if question.path:
                lines += wrap([Span(f"{question.path} asks", Tone.STOPPED)], width)
            for line in printable_lines(question.text):
                lines += wrap([Span(line)], width)
            if not question.words:
                more.append((Span("Type your answer, and enter.", Tone.DIM),))
            return [*_both_ends(lines, height // 2), *more]
        # An edit is more easily read as one; of all else, everything is shown that was sent.
        edit = edit_lines(wish.tool, wish.arguments, width, QUESTION_LINES)
        lines = [*_edited(wish, width), *edit] if edit else _wanted(wish, width)
        terms = wrap([Span(wish.explanation, Tone.DIM)], width) if wish.explanation else []
        keys = f"y yes   n no   a always: {one_line(str(wish.rule))}   and enter"
        how = _both_ends(wrap([Span(keys, Tone.DIM)], width), RULE_LINES)
        return [*_both_ends(lines, height // 2), *more, *terms, *how]

    def _hints(self) -> str:
        if self._about_to_leave:
            return "ctrl+c again to leave"
        if self._tree.has_focus:
            return "enter all about it  ←→ fold  x stop  tab back to the prompt"
        if self.chat.engine.opening and self.chat.waiting:
            return self.chat.waiting
        if self.chat.queued:
            return f"{plural(len(self.chat.queued), 'message')} waiting to be read  esc stop"
        return HINTS

    # Keys

    def on_prompt_sent(self, event: Prompt.Sent) -> None:
        question = next(iter(self.chat.questions.open), None)
        if question and question is not event.question and answers(question, event.text):
            # A word that was meant for something else must not allow anything.
            self._prompt.put(event.text)
            self.chat.conversation.add_notice(TOO_SOON, Tone.STOPPED)
            self._draw()
            return
        before = self.chat.conversation.entries[-1:]
        submit(self.chat, event.text)
        self._draw()
        # An answer at once is read from its beginning; of what is to come, the latest is seen.
        seen = self.chat.conversation.entries[-1:] == before
        self._talk.go_to_last(seen=seen)

    def on_prompt_scrolled(self, event: Prompt.Scrolled) -> None:
        self.action_scroll(event.by)

    def on_tree_pane_chosen(self, event: TreePane.Chosen) -> None:
        self._see(event.row.run_id, event.row.agent_id)

    def on_tree_pane_stopped(self, event: TreePane.Stopped) -> None:
        submit(self.chat, f"/cancel {event.row.agent_id}")

    def _see(self, run_id: str, agent_id: str) -> None:
        self.push_screen(Detail(self.chat, run_id, agent_id))

    def action_failure(self) -> None:
        if isinstance(self.screen, Detail):
            self.screen.action_failure()
        elif failures := self.chat.failures():
            self._see(*failures[0])
        else:
            self.chat.conversation.add_notice("No agent has failed.")

    def action_whole(self) -> None:
        if isinstance(self.screen, Detail):
            self.screen.action_whole()
        else:
            self._talk.toggle_whole()
            self._draw()

    def action_agents(self) -> None:
        self._agents_wanted = not self._shows_agents
        self._draw()

    def action_escape(self) -> None:
        if self._tree.has_focus:
            self._prompt.field.focus()
        else:
            self.chat.interrupt()

    def action_mode(self) -> None:
        if self.chat.engine.ready:
            mode = self.chat.runtime.policy.mode
            place = MODES.index(mode) + 1 if mode in MODES else 0
            submit(self.chat, f"/mode {MODES[place % len(MODES)]}")

    def action_scroll(self, by: int) -> None:
        page = max(1, self._talk.size.height - 2)
        self._talk.scroll_relative(y=by * page, animate=False)

    def action_help(self) -> None:
        self.post_message(Prompt.Sent("/help", None))

    def action_interrupt(self) -> None:
        if text := self.screen.get_selected_text():
            self.copy_to_clipboard(text)
        elif self.chat.interrupt():
            pass
        elif self._prompt.text:
            self._prompt.put("")
        elif self._about_to_leave:
            self.action_leave()
        else:
            self._about_to_leave = True
            self.set_timer(3, self._stay)

    def _stay(self) -> None:
        self._about_to_leave = False

    def action_leave(self) -> None:
        """Close what is open, and only then go."""
        self._leave()

    async def closed(self) -> None:
        """Close what is open; every agent is closed when this returns."""
        self.chat.engine.close()
        await self._serving.wait()

    @work
    async def _serve(self) -> None:
        await self.chat.serve()

    @work
    async def _leave(self) -> None:
        await self.closed()
        self.exit()

    # Beyond the screen

    async def _edit(self, text: str) -> str | None:
        """What the user's editor makes of `text`; it has the terminal meanwhile."""
        # In a worker, since whoever asks does not know of Textual.
        worker = self.run_worker(self._edited(text), exit_on_error=False)
        try:
            return await worker.wait()
        except WorkerFailed as failed:
            raise failed.error from None

    async def _edited(self, text: str) -> str | None:
        self._away = True
        try:
            with self.batch_update(), self.suspend():
                return await asyncio.to_thread(open_in_editor, text)
        except SuspendNotSupported:
            raise UsageError("No editor can be opened on this terminal.") from None
        finally:
            self._away = False

    def _attention(self, text: str) -> None:
        """Tell somebody who looks elsewhere."""
        if not self.app_focus and self._driver is not None and not self._away:
            self._driver.write(notification(self.chat.environment, f"retinue: {text}"))


def _edited(wish: ApprovalRequest, width: int) -> list[Line]:
    said = Span(call_text(wish.tool, wish.arguments), Tone.STRONG)
    return wrap([Span(f"{wish.path} wants ", Tone.STOPPED), said], width, rest="    ")


def _wanted(wish: ApprovalRequest, width: int) -> list[Line]:
    lines: list[Line] = []
    for at, line in enumerate(approval_lines(wish, QUESTION_LINES)):
        first = "  " if at else ""
        lines += wrap([Span(line.lstrip(), Tone.STRONG)], width, first=first, rest="    ")
    return lines


def _both_ends(lines: list[Line], most: int) -> list[Line]:
    """As many of the lines as there is room for, from the beginning and from the end."""
    if len(lines) <= most:
        return lines
    head, tail = most // 2, (most - 1) // 2
    gap = f"[… {len(lines) - head - tail:,} lines not shown …]"
    return [*lines[:head], (Span(gap, Tone.STOPPED),), *lines[len(lines) - tail :]]
