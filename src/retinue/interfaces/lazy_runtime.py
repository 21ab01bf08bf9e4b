"""A runtime that is opened by its first use, for servers that must answer before that."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from contextvars import copy_context
from typing import TYPE_CHECKING

from retinue.errors import RetinueError
from retinue.runtime.core.task_group import TaskGroup

if TYPE_CHECKING:
    from retinue.runtime.runtime import Runtime


class LazyRuntime:
    """Keeps a runtime open from its first use until `close`. It can be used again after that."""

    def __init__(
        self, open_runtime: Callable[[], AbstractAsyncContextManager[Runtime]], tasks: TaskGroup
    ) -> None:
        self._open_runtime = open_runtime
        self._tasks = tasks
        # Not the context of the first use, which belongs to one request.
        self._context = copy_context()
        self._opened: asyncio.Future[Runtime] | None = None
        self._task: asyncio.Task[None] | None = None
        self._close = asyncio.Event()

    @property
    def runtime(self) -> Runtime | None:
        """The runtime, if it is open."""
        opened = self._opened
        return opened.result() if opened and opened.done() and not opened.exception() else None

    async def get(self) -> Runtime:
        """The runtime. Raises RetinueError if it cannot be opened; the next call tries again."""
        if (opened := self._opened) is None:
            opened = self._opened = asyncio.get_running_loop().create_future()
            self._close.clear()
            self._task = self._tasks.create_task(
                self._keep_open(opened), context=self._context.copy()
            )
        try:
            return await asyncio.shield(opened)
        except RetinueError:
            if self._opened is opened:
                self._opened = None
            raise

    async def _keep_open(self, opened: asyncio.Future[Runtime]) -> None:
        try:
            async with self._open_runtime() as runtime:
                opened.set_result(runtime)
                await self._close.wait()
        except RetinueError as error:
            if opened.done():
                raise
            opened.set_exception(error)

    def suspend(self, why: str, then: Callable[[], None] | None = None) -> None:
        """Suspend what runs. `then` is called when every agent is between two turns."""
        if self.runtime is not None:
            self.runtime.suspend(why, then)
        elif then is not None:
            then()

    async def close(self, *, suspended: bool = False) -> None:
        """Close the runtime. If it was `suspended`, its runs stay open, to be resumed."""
        task, self._task, self._opened = self._task, None, None
        if task is not None:
            if suspended:
                task.cancel()
            self._close.set()
            await asyncio.wait([task])
