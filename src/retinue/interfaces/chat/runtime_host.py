"""Keeps a runtime open for the chat, reopens it when options change, and runs tasks with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from retinue.app import open_runtime
from retinue.errors import RetinueError, UsageError
from retinue.interfaces.chat.event_loop import background_context
from retinue.runtime.core.task_group import TaskGroup
from retinue.runtime.runtime import Runtime


class RuntimeHost:
    """`serve` keeps a runtime open until `close`. Call the other methods while it serves.

    The options of a runtime are fixed, so a change of model, mode or budget opens a new runtime. If
    a runtime cannot be opened, `on_error` receives the error, and the earlier options stay.
    """

    def __init__(
        self,
        options: dict[str, Any],
        *,
        on_open: Callable[[Runtime], None],
        on_close: Callable[[Runtime], None],
        on_error: Callable[[RetinueError], None],
    ) -> None:
        self.options = options
        self._on_open = on_open
        self._on_close = on_close
        self._on_error = on_error
        self.opening = True
        self._runtime: Runtime | None = None
        self._working_options: dict[str, Any] | None = None
        """Options with which a runtime was opened."""
        self._changed = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None
        self._closing = False
        self._task_group: TaskGroup | None = None
        self._context = background_context()
        self._tasks: set[asyncio.Task[None]] = set()
        self._blocking: set[asyncio.Task[None]] = set()

    @property
    def runtime(self) -> Runtime:
        if self.opening:
            raise UsageError("Still starting; try again in a moment.")
        if self._runtime is None:
            raise UsageError("No model is set. Choose one with /model NAME.")
        return self._runtime

    @property
    def ready(self) -> bool:
        return self._runtime is not None

    @property
    def busy(self) -> bool:
        """Whether a task runs that blocks, other than the one that asks."""
        return bool(self._blocking - {asyncio.current_task()})

    def check_idle(self) -> None:
        """Raise UsageError while a task runs."""
        if self.busy:
            raise UsageError("Agents are running. Wait for them, or stop them with /cancel.")

    def reopen(self, **options: Any) -> None:
        """Open a new runtime with these options changed."""
        self.check_idle()
        self.options = {**self.options, **options}
        self._end_serving()
        self._runtime, self.opening = None, True

    def close(self) -> None:
        self._closing = True
        self._end_serving()

    def _end_serving(self) -> None:
        self._changed.set()
        # A runtime that is being opened may wait for a person, or for slow servers.
        if self.opening and self._serving is not None:
            self._serving.cancel()

    def start_task(
        self, work: Coroutine[Any, Any, None], *, blocks: bool = True
    ) -> asyncio.Task[None]:
        """Run `work` as a task. Its RetinueError goes to `on_error`.

        If it `blocks`, the user waits for it before the options change; otherwise it is cancelled.
        """
        assert self._task_group is not None, "serve() is running"
        # The caller may run in this context. With eager tasks, which Textual uses from Python 3.12
        # on, a context cannot be entered twice, so each task gets a copy.
        task = self._task_group.create_task(self._report_error(work), context=self._context.copy())
        for tasks in (self._tasks, self._blocking) if blocks else (self._tasks,):
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        # A task that is cancelled before its first step never awaits `work`.
        task.add_done_callback(lambda _: work.close())
        return task

    async def _report_error(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except RetinueError as error:
            self._on_error(error)

    async def serve(self, first: Coroutine[Any, Any, None]) -> None:
        """Await `first`, then keep a runtime open until `close`."""
        async with TaskGroup() as self._task_group:
            await self._report_error(first)
            while not self._closing:
                self._changed.clear()
                self._serving = self._task_group.create_task(
                    self._serve(), context=self._context.copy()
                )
                await asyncio.wait([self._serving])
            for task in self._tasks:
                task.cancel()

    async def _serve(self) -> None:
        try:
            async with open_runtime(**self.options) as runtime:
                self._runtime, self.opening = runtime, False
                self._working_options = self.options
                self._on_open(runtime)
                await self._changed.wait()
                self._runtime = None
                self._on_close(runtime)
                for task in self._tasks:
                    task.cancel()
                if self._tasks:
                    await asyncio.wait(self._tasks)
        except RetinueError as error:
            self._on_error(error)
            if self._working_options not in (None, self.options):
                self.options = self._working_options
                return
            self.opening = False
            await self._changed.wait()
