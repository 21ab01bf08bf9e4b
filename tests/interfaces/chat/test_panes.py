from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from retinue.models.scripted.model import ScriptedModel, call, say

Opening = Callable[..., AbstractAsyncContextManager[Any]]


async def test_click_on_calls_shows_full_output(screen: Opening, wait: Any) -> None:
    async with screen(ScriptedModel([call("list_dir", path="."), say("ok")])) as shown:
        await shown.type("Go\n")
        text = await shown.shows("· list_dir .", " ok")
        line = text.split("\n").index("   · list_dir .")
        await shown.pilot.click("#conversation", offset=(5, line))
        await shown.shows("[The directory is empty.]")
