"""A run as a stream: text, events and progress, as fast as the reader takes them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import suppress
from typing import Any

import msgspec

from retinue.domain.agent_state import ROOT_ID
from retinue.domain.events import Event
from retinue.domain.plan.outcome import RunResult
from retinue.ports.person import Listeners

MAX_UNREAD = 64
"""With so many items unread, no agent of the run begins another turn."""
LEFT = "the program stopped reading the stream"


class TextDelta(msgspec.Struct, frozen=True, gc=False):
    """Text of a model, as it arrives. The root is the agent `a0`.

    ```python
    async for item in rt.stream("What does this project do?"):
        if isinstance(item, retinue.TextDelta):
            print(item.agent_id, item.text)
    ```
    """

    run_id: str
    agent_id: str
    text: str


class ToolProgress(msgspec.Struct, frozen=True, gc=False):
    """Progress that a tool reports while it runs.

    ```python
    async for item in rt.stream("What does this project do?"):
        if isinstance(item, retinue.ToolProgress):
            print(item.agent_id, item.tool, item.text)
    ```
    """

    run_id: str
    agent_id: str
    tool: str
    text: str


class StreamBuffer:
    """The items of a stream that its reader has not read yet."""

    def __init__(self) -> None:
        self._items: deque[TextDelta | ToolProgress | Event] = deque()
        self._arrived = asyncio.Event()
        self._started = asyncio.Event()
        self._result: RunResult[Any] | None = None
        self._error: Exception | None = None
        self.has_room = asyncio.Event()
        """Agents wait for this between two turns."""
        self.has_room.set()

    def listeners(self, others: Listeners, run_id: str) -> Listeners:
        """Listeners of the run that fill the buffer and then call the `others`."""

        def on_event(event: Event) -> None:
            self._put(event)
            if others.on_event is not None:
                others.on_event(event)

        def on_text(text: str) -> None:
            if text:  # An empty text is only a sign of life.
                self._put(TextDelta(run_id, ROOT_ID, text))
            if others.on_text is not None:
                others.on_text(text)

        def on_child_text(run_id: str, agent_id: str, text: str) -> None:
            if text:
                self._put(TextDelta(run_id, agent_id, text))
            if others.on_child_text is not None:
                others.on_child_text(run_id, agent_id, text)

        def on_progress(run_id: str, agent_id: str, tool: str, text: str) -> None:
            self._put(ToolProgress(run_id, agent_id, tool, text))
            if others.on_progress is not None:
                others.on_progress(run_id, agent_id, tool, text)

        return msgspec.structs.replace(
            others,
            on_event=on_event,
            on_text=on_text,
            on_child_text=on_child_text,
            on_progress=on_progress,
        )

    def _put(self, item: TextDelta | ToolProgress | Event) -> None:
        self._items.append(item)
        self._arrived.set()
        if len(self._items) >= MAX_UNREAD:
            self.has_room.clear()

    async def keep(self, run: Callable[[], Coroutine[Any, Any, RunResult[Any]]]) -> None:
        """Keep the result of the run, or its error, for the reader."""
        self._started.set()
        try:
            self._result = await run()
        except Exception as error:
            self._error = error

    async def read(
        self, task: asyncio.Task[None]
    ) -> AsyncGenerator[TextDelta | ToolProgress | Event | RunResult[Any], None]:
        """Everything that arrives in the buffer while `task` runs, and last the result.

        Closing this generator cancels the task.
        """
        task.add_done_callback(lambda _: self._arrived.set())
        try:
            await self._started.wait()
            while self._items or not task.done():
                while self._items:
                    item = self._items.popleft()
                    if len(self._items) < MAX_UNREAD:
                        self.has_room.set()
                    yield item
                self._arrived.clear()
                if not (self._items or task.done()):
                    await self._arrived.wait()
            await task
            if self._error is not None:
                raise self._error
            assert self._result is not None, "the run has ended"
            yield self._result
        finally:
            self.has_room.set()
            if not task.done():
                # A task that is cancelled before its first step would not record how the run ended.
                await self._started.wait()
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
