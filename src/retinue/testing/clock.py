"""A clock that a test moves forward.

    clock = FakeClock()
    async with retinue.open(".", model=model, clock=clock) as rt:
        job = await rt.start("researcher", "…")
        await clock.asleep(0.25)  # the delay before a retry
        clock.advance(0.25)

No test waits in real time: it waits until a task sleeps, and then advances the clock. The clock can
also replace the timers of an event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple
from weakref import WeakKeyDictionary

from retinue.ports.clock import ClockGap

EPOCH = 1_700_000_000.0


class _Sleeper(NamedTuple):
    until: float
    seconds: float
    waking: asyncio.Future[None]


class FakeTimer:
    """A scheduled call that can be cancelled."""

    def __init__(self, at: float, callback: Callable[[], None]) -> None:
        self.at = at
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class FakeClock:
    """A `Clock` whose time passes only in `advance`.

    ```python
    clock = FakeClock()
    sleeper = asyncio.create_task(clock.sleep(60))
    await clock.slept()
    clock.advance(60)
    await sleeper
    ```
    """

    def __init__(self, now: float = EPOCH) -> None:
        self._began = now
        self._passed_s = 0.0
        self._sleepers: list[_Sleeper] = []
        self._timers: list[FakeTimer] = []
        # Weak references: a timeout does not say when its block is left.
        self._timeouts: WeakKeyDictionary[asyncio.Timeout, float] = WeakKeyDictionary()
        self._changed = asyncio.Condition()
        self._watching: list[Callable[[ClockGap], None]] = []
        self.sleeps: list[float] = []
        """The argument of every call of `sleep`, in order."""

    def now(self) -> float:
        return self._began + self._passed_s

    def monotonic(self) -> float:
        return self._passed_s

    async def sleep(self, seconds: float) -> None:
        waking: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        sleeper = _Sleeper(self._passed_s + seconds, seconds, waking)
        self._sleepers.append(sleeper)
        self.sleeps.append(seconds)
        try:
            async with self._changed:
                self._changed.notify_all()
            await waking
        finally:
            if sleeper in self._sleepers:
                self._sleepers.remove(sleeper)

    def timeout(self, seconds: float) -> asyncio.Timeout:
        timeout = asyncio.timeout(None)
        self._timeouts[timeout] = self._passed_s + seconds
        return timeout

    def hold(self, timeout: asyncio.Timeout) -> Callable[[], None]:
        deadline = self._timeouts.pop(timeout, None)
        if deadline is None:
            return lambda: None
        left_s = deadline - self._passed_s

        def release() -> None:
            self._timeouts[timeout] = self._passed_s + left_s

        return release

    def time(self) -> float:
        """The time of `call_later`, as an event loop has it."""
        return self._passed_s

    def call_later(self, delay: float, callback: Callable[[], None]) -> FakeTimer:
        """Call `callback` when that time has passed in `advance`."""
        timer = FakeTimer(self._passed_s + delay, callback)
        self._timers.append(timer)
        return timer

    @property
    def next_call_s(self) -> float | None:
        """Seconds until the next scheduled call; None if there is none."""
        due = [timer.at for timer in self._timers if not timer.cancelled]
        return max(min(due) - self._passed_s, 0.0) if due else None

    async def slept(self, count: int = 1) -> None:
        """Wait until `sleep` was called `count` times in all."""
        async with self._changed:
            await self._changed.wait_for(lambda: len(self.sleeps) >= count)

    async def asleep(self, seconds: float) -> None:
        """Wait until a task is inside `sleep(seconds)`."""
        async with self._changed:
            await self._changed.wait_for(
                lambda: any(sleeper.seconds == seconds for sleeper in self._sleepers)
            )

    @contextmanager
    def watch(self, on_gap: Callable[[ClockGap], None]) -> Iterator[None]:
        self._watching.append(on_gap)
        try:
            yield
        finally:
            self._watching.remove(on_gap)

    def stall(self, seconds: float) -> None:
        """Pass time as if the event loop had been blocked."""
        for timeout in list(self._timeouts):
            self._timeouts[timeout] += seconds
        self._passed_s += seconds
        for on_gap in list(self._watching):
            on_gap(ClockGap(stalled_s=seconds))
        self.advance(0)

    def jump(self, seconds: float) -> None:
        """Change what `now` returns, as if the machine's clock were set; no time passes."""
        self._began += seconds
        for on_gap in list(self._watching):
            on_gap(ClockGap(jumped_s=seconds))

    def advance(self, seconds: float) -> None:
        """Pass time: wake sleepers, expire timeouts and make scheduled calls.

        Sleepers run when the caller next awaits something, earliest first. Scheduled calls are made
        here, each at its time.
        """
        until = self._passed_s + seconds
        while due := [t for t in self._timers if t.at <= until and not t.cancelled]:
            timer = min(due, key=lambda timer: timer.at)
            self._timers.remove(timer)
            self._passed_s = max(self._passed_s, timer.at)
            timer.callback()
        self._timers = [timer for timer in self._timers if not timer.cancelled]
        self._passed_s = until
        for sleeper in sorted(self._sleepers, key=lambda sleeper: sleeper.until):
            if sleeper.until <= self._passed_s:
                self._sleepers.remove(sleeper)
                if not sleeper.waking.done():
                    sleeper.waking.set_result(None)
        now = asyncio.get_running_loop().time()
        for timeout, deadline in sorted(self._timeouts.items(), key=lambda item: item[1]):
            if deadline <= self._passed_s:
                del self._timeouts[timeout]
                try:
                    timeout.reschedule(now)
                except RuntimeError:
                    # The block of the timeout was left already, or never entered.
                    continue
