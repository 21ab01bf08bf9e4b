"""Where the events of runs are reported for traces and metrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from retinue.domain.events import Event, RunStarted


class Telemetry(Protocol):
    """Follows the events of all runs. It is called on the event loop, and never raises."""

    @property
    def caller(self) -> str:
        """The `traceparent` that this process was started with, or ""."""
        ...

    @property
    def on_event(self) -> Callable[[Event], None] | None:
        """Called with each event as it happens; None if telemetry is off."""
        ...

    def resume(self, run_id: str, started: RunStarted) -> None:
        """Continue the trace of a run that is about to be resumed, and that began as `started`."""
        ...

    def traceparent(self, run_id: str, seq: int) -> str:
        """The `traceparent` for processes of the tool call whose event has the number `seq`."""
        ...


class NoTelemetry:
    """Reports nothing. Processes of tool calls belong to the caller's trace, if there is one."""

    on_event = None

    def __init__(self, caller: str = "") -> None:
        self.caller = caller

    def resume(self, run_id: str, started: RunStarted) -> None:
        pass

    def traceparent(self, run_id: str, seq: int) -> str:
        return self.caller
