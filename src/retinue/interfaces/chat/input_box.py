"""The input box: a text field of several lines, with completions and history."""

from __future__ import annotations

import re
from math import inf
from typing import ClassVar

from rich.markup import escape
from textual import events, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import TextArea

from retinue.domain.plural import plural
from retinue.interfaces.chat.chat import Chat
from retinue.interfaces.chat.completion import Completion, ProjectFiles, completions
from retinue.interfaces.chat.panes import FixedLines
from retinue.interfaces.chat.questions import Question
from retinue.interfaces.view.formatting import clip, one_line, pad
from retinue.interfaces.view.styled_text import Line, Tone, clip_line, styled

PLACEHOLDER = "Describe a task.  /help  @file  @role  !command"
ANSWER_PLACEHOLDER = "Answer the question above, or type a message."
# Keys that were typed before the question could be read do not answer it.
TYPE_AHEAD_S = 0.5
# The first letter of a word answers; these are what is left of the word.
REST_OF_WORD = {"y": ("es",), "a": ("lways", "ll"), "n": ("no, o",)}
SECOND_NO = re.compile(r"no, (?:o[\s,.:;!]+|\s+)")
MAX_TITLE = 60


class InputBox(Vertical):
    """The text field, with completions above it."""

    class Sent(Message):
        """`question` was on the screen when the user started to type the text."""

        def __init__(self, text: str, question: Question | None) -> None:
            super().__init__()
            self.text = text
            self.question = question

    def __init__(self, chat: Chat, *, id: str) -> None:
        super().__init__(id=id)
        self._chat = chat
        self._files = ProjectFiles(chat.directory)
        self._files_requested = False
        self._completions: list[Completion] = []
        self._selected = 0
        self._recalled: str | None = None
        self._completed = ""
        self.question: Question | None = None
        """The question that is on the screen."""
        self._question_at_start: Question | None = None
        self._typing = False
        self._asked_at = 0.0
        self._answer_key = ""
        """The key that has answered, until the next text is sent."""
        self.field = InputField(self)

    def compose(self) -> ComposeResult:
        yield FixedLines(id="completions")
        yield self.field

    @property
    def text(self) -> str:
        return self.field.text

    def show_question(self, question: Question | None, *, others: int, title: str) -> None:
        """`question` is on the screen now; `others` wait after it. `title` is the session's."""
        if question is not self.question:
            self.question = question
            self._asked_at = self._chat.clock.now()
            self.field.placeholder = PLACEHOLDER if question is None else ANSWER_PLACEHOLDER
        waiting = f", {plural(others, 'more question')} waiting" if others else ""
        shown = escape(clip(one_line(title), MAX_TITLE))
        self.border_title = shown if question is None else f"your answer{waiting}"

    def answer_with_key(self, key: str | None) -> bool:
        """Answer an approval with one key. A key pressed just after it appeared is type-ahead."""
        question = self.question
        if question is None or question.request is None or self.text:
            return False
        if self._chat.clock.now() - self._asked_at < TYPE_AHEAD_S:
            return False
        match key:
            case "y" | "a":
                self.post_message(self.Sent(key, question))
                self._asked_at = inf  # No other key answers it again.
            case "n":
                self.set_text("no, ")
            case "e" if not question.request.children:
                self.set_text(f"always {one_line(str(question.request.rule))}")
            case _:
                return False
        self._answer_key = key
        return True

    def set_text(self, text: str) -> None:
        """Replace the text, with the cursor at its end."""
        self.field.text = text
        self.field.move_cursor(self.field.document.end)

    def on_text_area_changed(self) -> None:
        if self._answer_key == "n" and (again := SECOND_NO.match(self.text)):
            self.set_text(f"no, {self.text[again.end() :]}")
        self._completed = self.text
        self._note_question()
        # Without completions for a recalled line, up and down keep browsing the history.
        if self.text == self._recalled:
            self.dismiss_completions()
        else:
            self._recalled = None
            self._complete()

    def _complete(self) -> None:
        before = self.field.before_cursor()
        self._completions = completions(self._chat, self._files, before)
        self._selected = 0
        self._draw()
        if "@" in before and not self._files_requested:
            self._files_requested = True
            self._load_files()

    @work
    async def _load_files(self) -> None:
        await self._files.load()
        self._complete()

    def _draw(self) -> None:
        width = self.size.width
        lines: list[Line] = []
        for index, completion in enumerate(self._completions):
            cursor = "❯ " if index == self._selected else "  "
            tone = Tone.STRONG if index == self._selected else Tone.PLAIN
            name = clip(completion.text.strip(), 40)
            lines.append(
                clip_line(styled((cursor, Tone.USER), (pad(name, 20) + "  ", tone),
                     (completion.help, Tone.DIM)), width)
            )  # fmt: skip
        self.query_one("#completions", FixedLines).show(lines)

    # Called by the field. Each returns whether it did something.

    def accept_completion(self) -> bool:
        if not self._completions:
            return False
        completion = self._completions[self._selected]
        self.field.replace_before_cursor(completion.start, completion.text)
        return True

    def select_completion(self, by: int) -> bool:
        if len(self._completions) < 2:
            return False
        self._selected = (self._selected + by) % len(self._completions)
        self._draw()
        return True

    def dismiss_completions(self) -> bool:
        """Show no completions until the text changes."""
        shown, self._completions = bool(self._completions), []
        self._draw()
        return shown

    def browse_history(self, by: int) -> bool:
        history = self._chat.history
        text = history.earlier(self.text) if by < 0 else history.later()
        if text is not None:
            self._recalled = text
            self.set_text(text)
        return text is not None

    def send(self) -> None:
        # Keys that arrive together are handled before the message about the change.
        if self._completed != self.text:
            self.on_text_area_changed()
        # Enter completes the beginning of a command first, and sends a complete command.
        typed = self.text.strip()
        if self._completions and typed.startswith("/") and " " not in typed:
            command = self._completions[self._selected].text.strip()
            if command != typed and command.startswith(typed):
                self.set_text(command + " ")
                return
        if typed:
            self._note_question()
            is_rest = typed in REST_OF_WORD.get(self._answer_key, ())
            if self._answer_key == "n" or not is_rest:
                sent = "no" if is_rest else typed
                self.post_message(self.Sent(sent, self._question_at_start))
            self.field.text, self._answer_key = "", ""
            self._typing = False

    def _note_question(self) -> None:
        """Remember which question was on the screen when the first letter was typed."""
        if not self._typing:
            self._question_at_start = self.question
        self._typing = bool(self.text)


class InputField(TextArea):
    """The text field. Enter sends the text."""

    BINDINGS: ClassVar[list[BindingType]] = [
        # As in a shell. Textual's own key for undo is ctrl+z, which suspends the process here.
        Binding("ctrl+underscore", "undo", show=False),
        Binding("pageup", "app.scroll(-1)", show=False),
        Binding("pagedown", "app.scroll(1)", show=False),
    ]

    def __init__(self, box: InputBox) -> None:
        super().__init__(
            compact=True,
            soft_wrap=True,
            tab_behavior="focus",
            highlight_cursor_line=False,
            placeholder=PLACEHOLDER,
            id="input-field",
        )
        self._box = box

    def before_cursor(self) -> str:
        """The text up to the cursor."""
        return self.get_text_range((0, 0), self.cursor_location)

    def replace_before_cursor(self, start: int, text: str) -> None:
        row, column = self.cursor_location
        size = len(self.before_cursor()) - start
        self.replace(text, (row, column - size), (row, column))

    async def _on_key(self, event: events.Key) -> None:
        row, last = self.cursor_location[0], self.document.line_count - 1
        box = self._box
        match event.key:
            case key if box.answer_with_key(key):
                pass
            case "enter" if self.text.endswith("\\"):
                self.action_delete_left()
                self.insert("\n")
            case "enter":
                box.send()
            case "ctrl+j" | "shift+enter" | "alt+enter":
                self.insert("\n")
            case "tab":
                if not box.accept_completion():
                    return
            case "up":
                if not (box.select_completion(-1) or (row == 0 and box.browse_history(-1))):
                    return
            case "down":
                if not (box.select_completion(1) or (row == last and box.browse_history(1))):
                    return
            case "escape":
                if not box.dismiss_completions():
                    return
            case _:
                await super()._on_key(event)
                return
        event.stop()
        event.prevent_default()
