from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from retinue.models.scripted.model import ScriptedModel, say

Opening = Callable[..., AbstractAsyncContextManager[Any]]


async def test_enter_completes_a_command_first(screen: Opening) -> None:
    async with screen(ScriptedModel([])) as shown:
        await shown.type("/stat")
        await shown.shows("❯ /status")
        await shown.press("enter")
        assert shown.field.text == "/status "
        await shown.press("enter")
        await shown.shows("sandbox")


async def test_enter_completes_a_command_that_was_typed_in_one_go(
    screen: Opening, wait: Any
) -> None:
    from textual import events

    async with screen(ScriptedModel([])) as shown:
        for character in "/stat":
            shown.app.post_message(events.Key(character, character))
        shown.app.post_message(events.Key("enter", "\r"))
        await wait(lambda: shown.field.text == "/status ")


async def test_pasting_does_not_send(screen: Opening, wait: Any) -> None:
    from textual import events

    async with screen(ScriptedModel([say("ok")])) as shown:
        shown.field.post_message(events.Paste("first\nsecond\n" + "x" * 300))
        await wait(lambda: "second" in shown.field.text)
        assert "❯ first" not in shown.text, "pasting does not send"
        await shown.press("enter")
        await shown.shows("❯ first", " ok")
