"""Suspending a run: agents start nothing new, and the run can be resumed later."""

from __future__ import annotations

from collections.abc import Callable


class Suspension:
    """Whether a run is being suspended, shared by all agents of the run."""

    def __init__(self, is_busy: Callable[[], bool]) -> None:
        self.reason: str | None = None
        """Why the run is being suspended; None while it runs."""
        self._is_busy = is_busy
        self._when_idle: Callable[[], None] | None = None

    def request(self, reason: str, when_idle: Callable[[], None] | None = None) -> None:
        """Let each agent report its partial result in its next turn, and pause.

        `when_idle` is called once, as soon as no agent is busy. Cancel the tasks then, or any time
        before. Agents that have not ended stay open in the journal.
        """
        self.reason, self._when_idle = reason, when_idle
        self.check_idle()

    def check_idle(self) -> None:
        """Call `when_idle` if no agent is busy any more. Called when an agent pauses or ends."""
        if self._when_idle is not None and not self._is_busy():
            when_idle, self._when_idle = self._when_idle, None
            when_idle()
