"""Suspending a run, so that it can be resumed later: at a request, or without a model endpoint."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Suspension:
    """Whether a run is being suspended, shared by all agents of the run."""

    def __init__(self, is_busy: Callable[[], bool]) -> None:
        self.reason: str | None = None
        """Why the run is being suspended; None while it runs."""
        self.raises = False
        """Whether agents that pause raise RunSuspended to their callers."""
        self.answered_models: set[str] = set()
        """Models that have replied in this run, or were used before it was resumed."""
        self.reader_has_room: asyncio.Event | None = None
        """Not set while the program that reads the run as a stream is far behind."""
        self._is_busy = is_busy
        self._when_idle: list[Callable[[], None]] = []
        self.on_request: list[Callable[[], None]] = []
        """Called when the suspension is requested."""

    def request(self, reason: str, when_idle: Callable[[], None] | None = None) -> None:
        """Let each agent report its partial result in its next turn, and pause.

        `when_idle` is called once, as soon as no agent is busy. Cancel the tasks then, or any time
        before. Agents that have not ended stay open in the journal.
        """
        self.reason = reason
        for listener in list(self.on_request):
            listener()
        if when_idle is not None:
            self._when_idle.append(when_idle)
        self.check_idle()

    def check_idle(self) -> None:
        """Call each `when_idle` if no agent is busy any more, when an agent pauses or ends."""
        if self._when_idle and not self._is_busy():
            callbacks, self._when_idle = self._when_idle, []
            for when_idle in callbacks:
                when_idle()
