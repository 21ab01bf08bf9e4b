"""Fixtures: a chat in a temporary project with a scripted model, and its screen as text."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from textual.app import App
from textual.pilot import Pilot

from retinue.config.environment import Environment
from retinue.interfaces.chat.app import ChatApp
from retinue.interfaces.chat.chat import Chat
from retinue.interfaces.chat.input_box import InputField
from retinue.interfaces.view.agent_tree import SPINNER_FRAMES
from retinue.interfaces.view.conversation_entries import Frame
from retinue.interfaces.view.styled_text import plain_text
from retinue.testing.clock import FakeClock

Opened = Callable[..., AbstractAsyncContextManager[Chat]]


@pytest.fixture
def new(tmp_path: Path, project: Path) -> Callable[..., Chat]:
    """Make a chat that is not open yet."""
    # Discovery would find other servers on this machine.
    settings = tmp_path / ".config" / "retinue" / "config.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text("discovery = false\n")

    def make(model: Any, **options: Any) -> Chat:
        options.setdefault("clock", FakeClock())
        options.setdefault("environment", Environment(variables={"HOME": str(tmp_path)}))
        return Chat(project, model=model, **options)

    return make


@pytest.fixture
def opened(new: Callable[..., Chat]) -> Opened:
    """Open a chat without a screen."""

    @asynccontextmanager
    async def opening(model: Any, **options: Any) -> AsyncIterator[Chat]:
        chat = new(model, **options)
        serving = asyncio.create_task(chat.serve())
        try:
            await until(
                lambda: (
                    chat.host.ready or bool(chat.conversation.entries) or bool(chat.questions.open)
                )
            )
            yield chat
        finally:
            chat.host.close()
            await serving

    return opening


async def until(condition: Callable[[], Any]) -> None:
    """Wait for a condition, at most a minute."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "timeout"
        await asyncio.sleep(0.005)


@pytest.fixture
def wait() -> Callable[[Callable[[], Any]], Any]:
    return until


@pytest.fixture
def said() -> Callable[[Chat], str]:
    """Text of the whole conversation."""

    def text(chat: Chat, width: int = 100, *, full: bool = False) -> str:
        frame = Frame(chat.clock.now())
        return "\n\n".join(
            plain_text(e.lines(width, frame, full=full)) for e in chat.conversation.entries
        )

    return text


# The screen


class Screen:
    """The chat on a terminal of some size."""

    def __init__(self, app: ChatApp, pilot: Pilot[None]) -> None:
        self.app = app
        self.chat = app.chat
        self.pilot = pilot

    async def type(self, text: str) -> None:
        """Type text, and press enter at the end of each line.

        Textual waits 40 ms after each key, so the text of a line is inserted at once.
        """
        for part in re.split(r"(\n)", text):
            if part == "\n":
                await self.pilot.press("enter")
            elif part:
                self.field.insert(part)
                await self.pilot.pause()

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)

    async def shows(self, *texts: str) -> str:
        """Wait until all of these texts are on the screen; return the screen."""
        await until_shown(self, texts)
        return self.text

    @property
    def field(self) -> InputField:
        return self.app.screen_stack[0].query_one("#input-field", InputField)

    async def rest(self) -> None:
        """Wait until the screen does not change any more."""
        same, before = 0, ""
        while same < 10:
            await self.pilot.pause(0.1)
            same, before = (same + 1 if self.text == before else 0), self.text

    @property
    def text(self) -> str:
        return screen_text(self.app)


async def until_shown(screen: Screen, texts: tuple[str, ...]) -> None:
    end = time.monotonic() + 60
    while missing := [text for text in texts if text not in screen.text]:
        assert time.monotonic() < end, f"{missing} never showed:\n{screen.text}"
        await screen.pilot.pause(0.02)


def screen_text(app: App[Any]) -> str:
    """Text of the screen, from its SVG export, with the spinner in its first position."""
    svg = app.export_screenshot()
    width, height = app.size
    grid = [[" "] * width for _ in range(height)]
    pattern = r'<text class="[^"]*" x="([\d.]+)" y="[\d.]+" [^>]*-line-(\d+)\)">(.*?)</text>'
    for x, line, text in re.findall(pattern, svg, re.DOTALL):
        column = round(float(x) / CELL_WIDTH)
        for offset, char in enumerate(unescape(text).replace("\xa0", " ")):
            if column + offset < width and int(line) < height:
                grid[int(line)][column + offset] = (
                    SPINNER_FRAMES[0] if char in SPINNER_FRAMES else char
                )
    return "\n".join("".join(row).rstrip() for row in grid)


CELL_WIDTH = 12.2


@pytest.fixture
def screen(new: Callable[..., Chat]) -> Callable[..., AbstractAsyncContextManager[Screen]]:
    @asynccontextmanager
    async def opening(
        model: Any, *, size: tuple[int, int] = (80, 24), ready: bool = True, **options: Any
    ) -> AsyncIterator[Screen]:
        app = ChatApp(new(model, **options))
        async with app.run_test(size=size) as pilot:
            shown = Screen(app, pilot)
            if ready:
                await until(lambda: app.chat.host.ready or bool(app.chat.conversation.entries))
            yield shown
            if app.is_running:
                app.action_quit_chat()
                await until(lambda: not app.is_running)

    return opening
