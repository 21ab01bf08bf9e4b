"""Lists to choose from, in the chat."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from retinue.config.settings_file import read_settings
from retinue.interfaces.chat.picker import Picker, matching
from retinue.interfaces.chat.slash_commands import submit
from retinue.interfaces.view.palettes import DARK, LIGHT
from retinue.models.scripted.model import ScriptedModel, say

Opening = Callable[..., AbstractAsyncContextManager[Any]]


def test_an_exact_value_comes_first_and_every_word_counts() -> None:
    choices = [("model", "Change it"), ("mode", "What agents may do"), ("demo", "a model")]
    assert [value for value, _ in matching(choices, "mode")] == ["mode", "model", "demo"]
    assert [value for value, _ in matching(choices, "mode agents")] == ["mode"]
    assert matching(choices, "zzz") == []
    assert matching(choices, "") == choices


async def test_mode_is_chosen_from_a_list(screen: Opening, wait: Any) -> None:
    async with screen(ScriptedModel([])) as shown:
        await shown.type("/mode")
        await shown.press("enter")
        await shown.shows("Mode (now normal)", "agents only read")
        await shown.press("p", "l", "enter")
        await shown.shows("Mode changed to plan")
        await wait(lambda: shown.chat.host.ready)
        await shown.type("/mode")
        await shown.press("enter")
        await shown.shows("Mode (now plan)")
        await shown.press("escape")
        await wait(lambda: not isinstance(shown.app.screen, Picker))
        assert shown.chat.runtime.mode == "plan"


async def test_the_last_answer_or_its_code_is_copied(screen: Opening, wait: Any) -> None:
    answer = "Use this:\n\n```sh\nmake all\n```\n\nThat is it."
    async with screen(ScriptedModel([say(answer)])) as shown:
        submit(shown.chat, "/copy")
        await shown.shows("There is nothing to copy yet.")
        submit(shown.chat, "How?")
        await shown.shows("That is it.")
        submit(shown.chat, "/copy")
        await shown.shows("Copied 7 lines.")
        assert shown.app.clipboard == answer
        submit(shown.chat, "/copy code")
        await shown.shows("Copied 1 line.")
        assert shown.app.clipboard == "make all"


async def test_a_list_that_a_task_opens_can_be_chosen_from(screen: Opening, wait: Any) -> None:
    """The sessions are read from the journal by a task, outside of Textual's context."""
    async with screen(ScriptedModel([say("Fine.")])) as shown:
        await shown.type("How are you?\n")
        await shown.shows("Fine.")
        await wait(lambda: not shown.chat.host.busy)
        await shown.type("/clear\n/sessions\n")
        await shown.shows("Sessions", "How are you?")
        await shown.press("enter")
        await shown.shows("❯ How are you?", "Fine.")


async def test_a_session_is_deleted_from_the_list(screen: Opening, wait: Any) -> None:
    async with screen(ScriptedModel([say("Fine.")])) as shown:
        for text in ("How are you?\n", "/rename Health\n"):
            await shown.type(text)
            await shown.shows("Fine.")
            await wait(lambda: not shown.chat.host.busy)
        await shown.shows("This conversation is now called 'Health'.")
        await shown.type("/clear\n/sessions\n")
        await shown.shows("Sessions", "Health", "del deletes")
        await shown.press("delete")
        await shown.shows("del again: delete")
        await shown.press("delete")
        await wait(lambda: not shown.chat.host.busy)
        await shown.press("escape")
        await shown.shows("Deleted the session 'Health'.")
        await shown.type("/sessions\n")
        await shown.shows("There is no earlier conversation to resume.")


async def test_a_theme_is_chosen_and_saved(screen: Opening, tmp_path: Path) -> None:
    async with screen(ScriptedModel([say("Use `x`.\n\n```python\nreturn 1\n```")])) as shown:
        await shown.type("How?\n")
        await shown.shows("return 1")
        for theme, palette in (
            ("light", LIGHT),
            ("dark", DARK),
            ("auto", None),
            ("terminal", None),
        ):
            await shown.type(f"/theme {theme}\n")
            await shown.shows(f"Theme changed to {theme}, and saved in ~/.config/retinue/")
            picture = shown.app.export_screenshot()
            # Without an answer from the terminal, `auto` uses its colours.
            used = [each for each in (LIGHT, DARK) if each.code in picture]
            assert used == [each for each in (LIGHT, DARK) if each is palette]
        settings = tmp_path / ".config" / "retinue" / "config.toml"
        assert read_settings(settings).theme == "terminal"
        await shown.type("/theme\n")
        await shown.shows("light or dark, from the background of the terminal")
        await shown.press("escape")
        await shown.type("/theme pink\n")
        await shown.shows("Unknown theme 'pink'; use one of: auto, light, dark, terminal.")


async def test_a_role_is_chosen_from_a_list(screen: Opening) -> None:
    async with screen(ScriptedModel([])) as shown:
        await shown.type("/agents\n")
        await shown.shows("Agents", "researcher  Gathers")
        await shown.press("t", "e", "s", "t", "enter")
        await shown.shows(" @tester")
        assert shown.field.text == "@tester "
