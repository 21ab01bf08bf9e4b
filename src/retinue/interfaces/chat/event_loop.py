"""An event loop in which the screen goes before the agents."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from time import perf_counter
from typing import Any, TypeVarTuple

Ts = TypeVarTuple("Ts")

# How long agents have the loop before whoever draws, or waits for a key, has a turn.
SLICE_S = 0.002

_YIELDS: ContextVar[bool] = ContextVar("yields", default=False)


def yielding() -> Context:
    """A context whose tasks, and all that they begin, let others go first in a `PoliteLoop`."""
    context = copy_context()
    context.run(_YIELDS.set, True)
    return context


class PoliteLoop(asyncio.SelectorEventLoop):
    """What is ready in a `yielding` context is run in slices, in its order; all else as ever.

    A key takes several rounds of the loop from the terminal to the screen. When hundreds of agents
    are ready at once, as after a commit to the journal, a round would last as long as all of them.
    """

    def __init__(self) -> None:
        super().__init__()
        self._waiting: deque[tuple[asyncio.Handle, Callable[..., object], Any, Context]] = deque()
        self._slice_is_due = False

    def call_soon(
        self,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        context = copy_context() if context is None else context
        if not context.get(_YIELDS, False):
            return super().call_soon(callback, *args, context=context)
        handle = asyncio.Handle(callback, args, self, context)
        self._waiting.append((handle, callback, args, context))
        if not self._slice_is_due:
            self._slice_is_due = True
            super().call_soon(self._run_slice, context=_NOBODY)
        return handle

    def _run_slice(self) -> None:
        waiting, end = self._waiting, perf_counter() + SLICE_S
        while waiting and perf_counter() < end:
            handle, callback, args, context = waiting.popleft()
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
        self._slice_is_due = bool(waiting)
        if waiting:
            super().call_soon(self._run_slice, context=_NOBODY)


_NOBODY = Context()
