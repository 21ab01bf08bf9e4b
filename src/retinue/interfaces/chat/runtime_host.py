"""The runtime behind a chat: opened, opened anew with other settings, and given work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from retinue.app import open_runtime
from retinue.errors import RetinueError, UsageError
from retinue.interfaces.chat.event_loop import yielding
from retinue.runtime.core.task_group import TaskGroup
from retinue.runtime.runtime import Runtime


class Engine:
    """`serve` keeps a runtime open until `close`; everything else is called meanwhile.

    What a runtime is opened with is fixed for its life, so a change of model, mode or budget opens
    another. What cannot be opened is told to `on_problem`, and the next change tries again.
    """

    def __init__(
        self,
        options: dict[str, Any],
        *,
        on_open: Callable[[Runtime], None],
        on_close: Callable[[Runtime], None],
        on_problem: Callable[[RetinueError], None],
    ) -> None:
        self.options = options
        self._on_open = on_open
        self._on_close = on_close
        self._on_problem = on_problem
        self.opening = True
        self._runtime: Runtime | None = None
        self._changed = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None
        self._closing = False
        self._nursery: TaskGroup | None = None
        self._context = yielding()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def runtime(self) -> Runtime:
        if self.opening:
            raise UsageError("One moment: it is being opened.")
        if self._runtime is None:
            raise UsageError("There is no model to talk to yet; choose one with /model NAME.")
        return self._runtime

    @property
    def ready(self) -> bool:
        return self._runtime is not None

    @property
    def busy(self) -> bool:
        return bool(self._tasks)

    def check_idle(self) -> None:
        """Raise UsageError while there is work under way."""
        if self.busy:
            raise UsageError("Agents are at work; wait for them, or stop them with /cancel.")

    def change(self, **options: Any) -> None:
        """Open the runtime anew, with these options changed."""
        self.check_idle()
        self.options = {**self.options, **options}
        self._leave_off()
        self._runtime, self.opening = None, True

    def close(self) -> None:
        self._closing = True
        self._leave_off()

    def _leave_off(self) -> None:
        self._changed.set()
        # What is being opened may wait for a person, or for servers that are slow.
        if self.opening and self._serving is not None:
            self._serving.cancel()

    def begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Do some work, with the runtime or without. What the user can act on is told."""
        assert self._nursery is not None, "it is being served"
        # A copy: who begins it may be in that context, and where tasks begin at once, as Textual
        # has it from Python 3.12 on, nobody can enter it again.
        task = self._nursery.create_task(self._told(work), context=self._context.copy())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # One that is cancelled before its first step has not begun to await it.
        task.add_done_callback(lambda _: work.close())
        return task

    async def _told(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except RetinueError as error:
            self._on_problem(error)

    async def serve(self, first: Coroutine[Any, Any, None]) -> None:
        """Open runtimes, one after the other, after `first` is done."""
        async with TaskGroup() as self._nursery:
            await self._told(first)
            while not self._closing:
                self._changed.clear()
                self._serving = self._nursery.create_task(
                    self._serve(), context=self._context.copy()
                )
                await asyncio.wait([self._serving])
            for task in self._tasks:
                task.cancel()

    async def _serve(self) -> None:
        try:
            async with open_runtime(**self.options) as runtime:
                self._runtime, self.opening = runtime, False
                self._on_open(runtime)
                await self._changed.wait()
                self._runtime = None
                self._on_close(runtime)
                for task in self._tasks:
                    task.cancel()
                if self._tasks:
                    await asyncio.wait(self._tasks)
        except RetinueError as error:
            self.opening = False
            self._on_problem(error)
            await self._changed.wait()
