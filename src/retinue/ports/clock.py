"""Time, as the runtime measures it and waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol


class ClockGap(NamedTuple):
    """Time in which this process could not run, or by which the clock was set.

    ```python
    gap = retinue.ClockGap(stalled_s=3600)
    assert gap.jumped_s == 0
    ```
    """

    stalled_s: float = 0.0
    jumped_s: float = 0.0


class Clock(Protocol):
    """Time for a runtime; `retinue.testing.FakeClock` is one that tests move.

    ```python
    clock: retinue.Clock = FakeClock()
    async with retinue.open(".", model=ScriptedModel([say("Done.")]), clock=clock) as rt:
        assert (await rt.run("Go.")).usage.duration_s == 0
    ```
    """

    def now(self) -> float:
        """Seconds since the epoch, for the journal."""
        ...

    def monotonic(self) -> float:
        """Seconds that only go forward, for durations and deadlines."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait for that long."""
        ...

    def timeout(self, seconds: float) -> asyncio.Timeout:
        """A context manager that raises TimeoutError when `seconds` have passed inside it."""
        ...

    def hold(self, timeout: asyncio.Timeout) -> Callable[[], None]:
        """Stop the time of a timeout from `timeout`. The result releases it."""
        ...

    def watch(self, on_gap: Callable[[ClockGap], None]) -> AbstractContextManager[None]:
        """Call `on_gap` when this process could not run for a while, or the time of day jumped.

        Timeouts from `timeout` are extended by the time in which the process could not run.
        """
        ...
