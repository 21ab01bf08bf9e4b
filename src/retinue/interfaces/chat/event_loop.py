"""An event loop that runs the user interface before the agents."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from time import perf_counter
from typing import Any, TypeVarTuple

Ts = TypeVarTuple("Ts")

# How long agents run before the user interface gets a turn.
BACKGROUND_SLICE_S = 0.002

_IN_BACKGROUND: ContextVar[bool] = ContextVar("in_background", default=False)
_EMPTY_CONTEXT = Context()


def background_context() -> Context:
    """A context whose tasks, and all tasks that they start, have low priority."""
    context = copy_context()
    context.run(_IN_BACKGROUND.set, True)
    return context


class UiPriorityLoop(asyncio.SelectorEventLoop):
    """Runs callbacks of a `background_context` in order, in short slices; all others as usual.

    A key press takes several iterations of the loop from the terminal to the screen. When hundreds
    of agents are ready at once, as after a commit to the journal, one iteration would run them all.
    """

    def __init__(self) -> None:
        super().__init__()
        self._background: deque[tuple[asyncio.Handle, Callable[..., object], Any, Context]]
        self._background = deque()
        self._slice_scheduled = False

    def call_soon(
        self,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        context = copy_context() if context is None else context
        if not context.get(_IN_BACKGROUND, False):
            return super().call_soon(callback, *args, context=context)
        handle = asyncio.Handle(callback, args, self, context)
        self._background.append((handle, callback, args, context))
        if not self._slice_scheduled:
            self._slice_scheduled = True
            super().call_soon(self._run_slice, context=_EMPTY_CONTEXT)
        return handle

    def _run_slice(self) -> None:
        background, end = self._background, perf_counter() + BACKGROUND_SLICE_S
        while background and perf_counter() < end:
            handle, callback, args, context = background.popleft()
            if handle.cancelled():
                continue
            try:
                context.run(callback, *args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:
                self.call_exception_handler(
                    {"message": f"Exception in {callback!r}", "exception": error, "handle": handle}
                )
        self._slice_scheduled = bool(background)
        if background:
            super().call_soon(self._run_slice, context=_EMPTY_CONTEXT)
