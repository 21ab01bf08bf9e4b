"""Where the user types: several lines, what was typed before, and what is proposed."""

from __future__ import annotations

from typing import ClassVar

from textual import events, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import TextArea

from retinue.interfaces.chat.chat import Chat
from retinue.interfaces.chat.completion import FileNames, Proposal, proposals
from retinue.interfaces.chat.panes import LinePane
from retinue.interfaces.chat.questions import Question
from retinue.interfaces.view.formatting import clip, pad
from retinue.interfaces.view.styled_text import Line, Span, Tone, clip_line


class Prompt(Vertical):
    """The line, and above it what is proposed for it."""

    class Sent(Message):
        """`question` is the one that was seen when the text was begun."""

        def __init__(self, text: str, question: Question | None) -> None:
            super().__init__()
            self.text = text
            self.question = question

    class Scrolled(Message):
        """The user wants to see what is above, or below."""

        def __init__(self, by: int) -> None:
            super().__init__()
            self.by = by

    def __init__(self, chat: Chat, *, id: str) -> None:
        super().__init__(id=id)
        self._chat = chat
        self._files = FileNames(chat.directory)
        self._asked_for_files = False
        self._proposed: list[Proposal] = []
        self._chosen = 0
        self._recalled: str | None = None
        self.question: Question | None = None
        """The one that is on the screen."""
        self._begun_at: Question | None = None
        self._begun = False
        self.field = Field(self)

    def compose(self) -> ComposeResult:
        yield LinePane(id="proposals")
        yield self.field

    @property
    def text(self) -> str:
        return self.field.text

    def put(self, text: str) -> None:
        """Have `text` in the line, with the cursor behind it."""
        self.field.text = text
        self.field.move_cursor(self.field.document.end)

    def on_text_area_changed(self) -> None:
        self._begin()
        # Nothing is proposed for what was sent before, so that up and down go on through it.
        if self.text == self._recalled:
            self.dismiss()
        else:
            self._recalled = None
            self._propose()

    def _propose(self) -> None:
        before = self.field.before_cursor()
        self._proposed = proposals(self._chat, self._files, before)
        self._chosen = 0
        self._draw()
        if "@" in before and not self._asked_for_files:
            self._asked_for_files = True
            self._load_files()

    @work
    async def _load_files(self) -> None:
        await self._files.load()
        self._propose()

    def _draw(self) -> None:
        width = self.size.width
        lines: list[Line] = []
        for index, proposal in enumerate(self._proposed):
            cursor = "❯ " if index == self._chosen else "  "
            tone = Tone.STRONG if index == self._chosen else Tone.PLAIN
            name = clip(proposal.text.strip(), 40)
            lines.append(
                clip_line((Span(cursor, Tone.USER), Span(pad(name, 20) + "  ", tone),
                     Span(proposal.help, Tone.DIM)), width)
            )  # fmt: skip
        self.query_one("#proposals", LinePane).show(lines)

    # What the field asks for. Each answers whether it was of use.

    def take(self) -> bool:
        """Put in what is proposed."""
        if not self._proposed:
            return False
        proposal = self._proposed[self._chosen]
        self.field.replace_before_cursor(proposal.start, proposal.text)
        return True

    def choose(self, by: int) -> bool:
        if len(self._proposed) < 2:
            return False
        self._chosen = (self._chosen + by) % len(self._proposed)
        self._draw()
        return True

    def dismiss(self) -> bool:
        """Propose nothing, until something else is typed."""
        was, self._proposed = bool(self._proposed), []
        self._draw()
        return was

    def recall(self, by: int) -> bool:
        history = self._chat.history
        text = history.earlier(self.text) if by < 0 else history.later()
        if text is not None:
            self._recalled = text
            self.put(text)
        return text is not None

    def send(self) -> None:
        # A command that is only begun is finished first; one that is whole is sent as it is.
        typed = self.text.strip()
        if self._proposed and typed.startswith("/") and " " not in typed:
            whole = self._proposed[self._chosen].text.strip()
            if whole != typed and whole.startswith(typed):
                self.put(whole + " ")
                return
        if typed:
            self._begin()
            self.post_message(self.Sent(typed, self._begun_at))
            self.field.text = ""
            self._begun = False

    def _begin(self) -> None:
        """Note what was asked when the first letter was typed."""
        if not self._begun:
            self._begun_at = self.question
        self._begun = bool(self.text)


class Field(TextArea):
    """The text itself. Enter sends it."""

    # As in a shell; ctrl+z, which Textual has for it, is the terminal's.
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+underscore", "undo", show=False)]

    def __init__(self, prompt: Prompt) -> None:
        super().__init__(
            compact=True,
            soft_wrap=True,
            tab_behavior="focus",
            highlight_cursor_line=False,
            placeholder="Say what you want done.  /help  @file  @role  !command",
            id="field",
        )
        self._prompt = prompt

    def before_cursor(self) -> str:
        """The text up to the cursor."""
        row, column = self.cursor_location
        lines = self.text.split("\n")
        return "\n".join([*lines[:row], lines[row][:column]])

    def replace_before_cursor(self, start: int, text: str) -> None:
        before = self.before_cursor()
        row, column = self.cursor_location
        size = len(before) - start
        self.replace(text, (row, column - size), (row, column))

    async def _on_key(self, event: events.Key) -> None:
        row, last = self.cursor_location[0], self.document.line_count - 1
        prompt = self._prompt
        match event.key:
            case "enter" if self.text.endswith("\\"):
                self.action_delete_left()
                self.insert("\n")
            case "enter":
                prompt.send()
            case "ctrl+j" | "shift+enter" | "alt+enter":
                self.insert("\n")
            case "tab":
                if not prompt.take():
                    return
            case "up":
                if not (prompt.choose(-1) or (row == 0 and prompt.recall(-1))):
                    return
            case "down":
                if not (prompt.choose(1) or (row == last and prompt.recall(1))):
                    return
            case "pageup" | "pagedown":
                prompt.post_message(Prompt.Scrolled(-1 if event.key == "pageup" else 1))
            case "escape":
                if not prompt.dismiss():
                    return
            case _:
                await super()._on_key(event)
                return
        event.stop()
        event.prevent_default()
