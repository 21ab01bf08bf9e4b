"""Cancels the task that waits for a server which sends nothing for too long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf

# A timer that fires this late was delayed: the process was stopped, or something blocked the event
# loop. Data that arrived meanwhile is not read yet, so the delay counts for no timeout.
_STALL_S = 0.5


class IdleTimeout:
    """How long one server may still send nothing. Its task is cancelled after that."""

    def __init__(
        self,
        timeouts: IdleTimeouts,
        task: asyncio.Task[object],
        idle_s: float,
        on_wait: Callable[[], None] | None,
    ) -> None:
        self._timeouts = timeouts
        self.on_wait = on_wait
        self._task = task
        self._cancellations = task.cancelling()
        self.idle_s = idle_s
        self.deadline = inf
        self.expired = False
        self.was_reset = False
        """Whether anything was received at all."""

    def reset(self, idle_s: float) -> None:
        """Something was received; the server may be idle for `idle_s` from now on."""
        self.was_reset = True
        self.idle_s = idle_s
        self._timeouts.restart(self)

    def stop(self) -> None:
        self._timeouts.discard(self)

    def expire(self) -> None:
        self.expired = True
        self._task.cancel()

    def caused_cancellation(self) -> bool:
        """Whether only this timeout has cancelled the task; others may have at the same time."""
        return self.expired and self._task.uncancel() <= self._cancellations


class IdleTimeouts:
    """Any number of idle timeouts, with one timer for all of them.

    Differs from `asyncio.timeout`: a stall of the process expires no timeout, and it costs a
    fan-out a fiftieth less, since nearly every response comes in time and the timer of one request
    serves the next.
    """

    def __init__(self, *, report_every_s: float = 30.0) -> None:
        """While a timeout runs, its `on_wait` is called every `report_every_s` seconds."""
        self._report_every_s = report_every_s
        self._timeouts: set[IdleTimeout] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = inf

    def start(self, idle_s: float, on_wait: Callable[[], None] | None = None) -> IdleTimeout:
        """Cancel the current task after `idle_s`, unless the timeout is reset before.

        `on_wait` is called now and then while the timeout runs.
        """
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop, self._timer, self._timer_at = loop, None, inf
        task = asyncio.current_task(loop)
        assert task is not None
        timeout = IdleTimeout(self, task, idle_s, on_wait)
        self._timeouts.add(timeout)
        self.restart(timeout)
        return timeout

    def restart(self, timeout: IdleTimeout) -> None:
        assert self._loop is not None
        timeout.deadline = self._loop.time() + timeout.idle_s
        wake_at = timeout.deadline
        if timeout.on_wait is not None:
            wake_at = min(wake_at, self._loop.time() + self._report_every_s)
        if wake_at < self._timer_at:
            self._set_timer(wake_at)

    def discard(self, timeout: IdleTimeout) -> None:
        self._timeouts.discard(timeout)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = None, inf

    def _set_timer(self, moment: float) -> None:
        assert self._loop is not None
        self.close()
        self._timer_at = moment
        self._timer = self._loop.call_at(moment, self._on_timer)

    def _on_timer(self) -> None:
        assert self._loop is not None
        now = self._loop.time()
        stalled = now - self._timer_at > _STALL_S
        self.close()
        due = [timeout for timeout in self._timeouts if timeout.deadline <= now]
        if stalled:
            for timeout in due:
                timeout.deadline = now + timeout.idle_s
        elif due:
            # Later, so that a task which was just woken by received data can read it first.
            self._loop.call_soon(self._expire, due, now)
        pending = [timeout.deadline for timeout in self._timeouts if timeout.deadline > now]
        waits = [timeout.on_wait for timeout in self._timeouts if timeout.on_wait is not None]
        for on_wait in waits:
            on_wait()
        if waits:
            pending.append(now + self._report_every_s)
        if pending:
            self._set_timer(min(pending))

    def _expire(self, due: list[IdleTimeout], now: float) -> None:
        for timeout in due:
            if timeout in self._timeouts and timeout.deadline <= now:
                self._timeouts.discard(timeout)
                timeout.expire()
