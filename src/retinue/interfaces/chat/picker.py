"""A list to choose from: typing filters it, enter chooses an entry, esc closes the list."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from retinue.interfaces.chat.chat import Choice
from retinue.interfaces.view.formatting import clip, one_line
from retinue.interfaces.view.styled_text import Tone, rendering_console, styled

HINT = "Type to filter; enter chooses, esc closes"


class Picker(ModalScreen[str | None]):
    """Choices are values with a help text. The value that was chosen is the result.

    With `delete`, the delete key pressed twice deletes an entry.
    """

    CSS = """
    Picker { align: center middle; background: transparent; }
    #picker { width: 90%; max-width: 100; height: auto; max-height: 80%; border: round $primary; }
    #picker, #picker Input, #picker OptionList { background: $background; color: $foreground; }
    #picker Input { border: none; height: 1; }
    #picker OptionList { border: none; height: auto; max-height: 20; }
    #picker OptionList > .option-list--option-highlighted {
        color: $foreground; background: $background; text-style: bold reverse;
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", show=False)]

    def __init__(
        self, title: str, choices: Sequence[Choice], delete: Callable[[str], None] | None = None
    ) -> None:
        super().__init__()
        self._title = title
        self._choices = list(choices)
        self._delete = delete
        self._deleting: str | None = None
        """The value that the delete key deletes if it is pressed again."""
        self._input = Input(placeholder=HINT if delete is None else f"{HINT}, del deletes")
        self._list = OptionList()

    def compose(self) -> ComposeResult:
        with Vertical(id="picker") as box:
            box.border_title = self._title
            self._box = box
            yield self._input
            yield self._list

    def on_mount(self) -> None:
        self._filter("")
        self._input.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        self._filter(event.value)

    def _filter(self, typed: str) -> None:
        found = matching(self._choices, typed)
        self._list.clear_options()
        self._list.add_options([Option(_prompt(*choice), id=None) for choice in found])
        self._found = [value for value, _ in found]
        self._list.highlighted = 0 if found else None

    @property
    def _value(self) -> str | None:
        at = self._list.highlighted
        return None if at is None else self._found[at]

    def on_key(self, event: events.Key) -> None:
        moves: dict[str, Callable[[], object]] = {
            "up": self._list.action_cursor_up,
            "down": self._list.action_cursor_down,
            "pageup": self._list.action_page_up,
            "pagedown": self._list.action_page_down,
        }
        if event.key in moves:
            moves[event.key]()
            event.stop()
        elif event.key == "delete" and self._delete is not None and not self._input.value:
            event.stop()
            self._press_delete(self._delete)
            return
        self._deleting, self._box.border_subtitle = None, ""

    def _press_delete(self, delete: Callable[[str], None]) -> None:
        value = self._value
        if value is None:
            return
        if value != self._deleting:
            self._deleting = value
            self._box.border_subtitle = f"del again: delete {clip(value, 20)} permanently"
            return
        delete(value)
        self._choices = [choice for choice in self._choices if choice[0] != value]
        self._filter("")
        self._deleting, self._box.border_subtitle = None, ""

    def on_input_submitted(self) -> None:
        self.dismiss(self._value)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._found[event.option_index])


def matching(choices: Sequence[Choice], typed: str) -> list[Choice]:
    """Choices that have every typed word: an exact value first, then values that begin with it."""
    words = typed.lower().split()
    found = [c for c in choices if all(word in f"{c[0]} {c[1]}".lower() for word in words)]

    def rank(choice: Choice) -> int:
        value, text = choice[0].lower(), typed.strip().lower()
        return 0 if value == text else 1 if value.startswith(text) else 2

    return sorted(found, key=rank)


def _prompt(value: str, help: str) -> Text:
    shown = styled((one_line(value), Tone.STRONG), f"  {one_line(help)}" if help else "")
    # Textual does not know the names of tones.
    return Text.assemble(
        *((s.text, s.style or "") for s in shown.render(rendering_console())), no_wrap=True
    )
