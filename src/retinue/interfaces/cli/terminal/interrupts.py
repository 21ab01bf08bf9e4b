"""Turns SIGINT, SIGTERM and SIGHUP into a suspended run."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import Protocol

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
INTERRUPTED = "interrupted by the user"
GRACE_S = 3.0
"""How long agents have to report what they have after the first signal."""


class Suspendable(Protocol):
    """A runtime, or several."""

    def suspend(self, why: str, then: Callable[[], None] | None = None) -> None: ...


class Interrupts:
    """While entered, the signals suspend `runtime`, then cancel the `with` block.

    A cancelled block ends without an error: execution continues after it.

    After the first signal agents have GRACE_S to report what they have; a second signal cancels at
    once. Enter it around the opening of the runtime, not inside: the handlers must still be
    installed while the runtime closes.
    """

    def __init__(self, *, on_first: Callable[[], None] | None = None) -> None:
        self.runtime: Suspendable | None = None
        self.interrupt: Callable[[], None] = lambda: None
        """Does what a signal does."""
        self._cancelled = False
        self._on_first = on_first
        self._grace: asyncio.TimerHandle | None = None

    def __enter__(self) -> Interrupts:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None

        def cancel() -> None:
            if not self._cancelled:
                self._cancelled = True
                task.cancel()

        def interrupt() -> None:
            first = self._grace is None
            if first:
                self._grace = loop.call_later(GRACE_S, cancel)
            if not first or self.runtime is None:
                cancel()
                return
            if self._on_first is not None:
                self._on_first()
            self.runtime.suspend(INTERRUPTED, cancel)

        self.interrupt = interrupt
        for number in SIGNALS:
            loop.add_signal_handler(number, interrupt)
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        if self._grace is not None:
            self._grace.cancel()
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.remove_signal_handler(number)
        return self._cancelled and isinstance(error, asyncio.CancelledError)
