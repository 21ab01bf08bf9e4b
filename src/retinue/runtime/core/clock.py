"""The system clock, with timeouts that do not run while the process cannot run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from weakref import WeakSet

from retinue.ports.clock import ClockGap

BEAT_S = 0.5
MIN_GAP_S = 1.0  # A shorter gap may be no more than a busy machine.


class SystemClock:
    """Implements the port `Clock`."""

    now = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)

    def __init__(self) -> None:
        self._timeouts: WeakSet[asyncio.Timeout] = WeakSet()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def timeout(self, seconds: float) -> asyncio.Timeout:
        timeout = asyncio.timeout(seconds)
        self._timeouts.add(timeout)
        return timeout

    def hold(self, timeout: asyncio.Timeout) -> Callable[[], None]:
        when, loop = timeout.when(), asyncio.get_running_loop()
        if when is None or timeout.expired():
            return lambda: None
        left_s = when - loop.time()
        timeout.reschedule(None)

        def release() -> None:
            # A stop of the agent during the hold has set a new time, which must stay.
            if timeout.when() is None:
                with suppress(RuntimeError):  # The context of the timeout was left.
                    timeout.reschedule(loop.time() + left_s)

        return release

    @contextmanager
    def watch(self, on_gap: Callable[[ClockGap], None]) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        last_monotonic, last_time = time.monotonic(), time.time()
        timer: asyncio.TimerHandle

        def beat() -> None:
            nonlocal timer, last_monotonic, last_time
            earlier_monotonic, earlier_time = last_monotonic, last_time
            last_monotonic, last_time = time.monotonic(), time.time()
            passed_s = last_monotonic - earlier_monotonic
            jumped_s = (last_time - earlier_time) - passed_s
            gap = ClockGap(_unless_short(passed_s - BEAT_S), _unless_short(jumped_s))
            timer = loop.call_later(BEAT_S, beat)
            if gap.stalled_s:
                self._extend_timeouts(gap.stalled_s, after=earlier_monotonic)
            if gap != ClockGap():
                on_gap(gap)

        # A timer and not a task: the loop calls timers in the order in which they are due, so this
        # one runs before the timeouts that a stall has made late. A task would run after them.
        timer = loop.call_later(BEAT_S, beat)
        try:
            yield
        finally:
            timer.cancel()

    def _extend_timeouts(self, seconds: float, *, after: float) -> None:
        for timeout in list(self._timeouts):
            when = timeout.when()
            if when is not None and when > after:
                with suppress(RuntimeError):  # The context was left, or is not entered yet.
                    timeout.reschedule(when + seconds)


def _unless_short(seconds: float) -> float:
    return seconds if abs(seconds) >= MIN_GAP_S else 0.0
