"""The clock of the machine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from weakref import WeakSet

from retinue.ports.clock import ClockGap

BEAT_S = 0.5
LEAST_S = 1.0  # What is less may be no more than a busy machine.


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

    @contextmanager
    def watch(self, told: Callable[[ClockGap], None]) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        before, day = time.monotonic(), time.time()
        beating: asyncio.TimerHandle

        def beat() -> None:
            nonlocal beating, before, day
            since, was = before, day
            before, day = time.monotonic(), time.time()
            stalled, jumped = before - since - BEAT_S, (day - was) - (before - since)
            lapse = ClockGap(_much(stalled), _much(jumped))
            beating = loop.call_later(BEAT_S, beat)
            if lapse.stalled_s:
                self._put_off(lapse.stalled_s, after=since)
            if lapse != ClockGap():
                told(lapse)

        # A timer, and no task: those are called in the order in which they are due, so this one is
        # before all that a stall has made late, and a task would come after them.
        beating = loop.call_later(BEAT_S, beat)
        try:
            yield
        finally:
            beating.cancel()

    def _put_off(self, seconds: float, *, after: float) -> None:
        for timeout in list(self._timeouts):
            when = timeout.when()
            if when is not None and when > after:
                with suppress(RuntimeError):  # It was left before, or not entered yet.
                    timeout.reschedule(when + seconds)


def _much(seconds: float) -> float:
    return seconds if abs(seconds) >= LEAST_S else 0.0
