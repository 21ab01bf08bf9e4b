"""`Lease`: how long a host may work without hearing from its run."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

LEASE_S = 7.0
ALARM_S = 1.5
"""How long after its lease a host is ended by the kernel, if it could not end itself."""
TAKEOVER_S = 10.0
"""How long after a host's last report its agents may run elsewhere, if it cannot be ended: clocks
of machines do not run at the same speed, and commands take a moment to end."""


def _now() -> float:
    """Seconds in which a suspended machine counts too."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime(clock)


class Lease:
    """Ends a host `seconds` after it has made the newest report that its run has heard.

    The time of that report counts, not the time when the run's answer arrived. So the run knows the
    end without knowing how long messages take: a report was made before it arrived, so the lease is
    over at the latest `seconds` after the last one arrived. Without `seconds` it never ends.

    `set_alarm` has this process killed after so many seconds, whatever it does then.
    """

    def __init__(
        self,
        seconds: float | None,
        *,
        end: Callable[[str], None],
        set_alarm: Callable[[float], object],
        now: Callable[[], float] = _now,
    ) -> None:
        self._seconds = seconds
        self._end = end
        self._now = now
        self._set_alarm = set_alarm
        self._made: deque[tuple[int, float]] = deque()
        self._renew(now())

    def reported(self, number: int) -> None:
        """The report with this number is made now."""
        if self._seconds is not None:
            self._made.append((number, self._now()))

    def heard(self, upto: int) -> None:
        """The run has received all reports up to this one."""
        since = self._since
        while self._made and self._made[0][0] <= upto:
            _, since = self._made.popleft()
        self._renew(since)
        self.check()

    def _renew(self, since: float) -> None:
        self._since = since
        if self._seconds is not None:
            self._set_alarm(max(0.1, since + self._seconds + ALARM_S - self._now()))

    def check(self) -> None:
        """End the host if the lease is over.

        A host that was frozen calls this before it reads what the run has sent meanwhile.
        """
        if self._seconds is not None and (silent_s := self._now() - self._since) > self._seconds:
            self._end(f"its run has not answered for {silent_s:.0f} s")
