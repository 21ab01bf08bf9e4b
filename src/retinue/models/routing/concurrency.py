"""How many requests an endpoint is given at a time: what it says, or what it turns out to take."""

from __future__ import annotations

FIRST = 8
MOST = 256
MAX_RELUCTANCE = 64
# To find out whether more is taken may cost this part of the time: 1 %.
WORTH = 100


class Throttle:
    """`limit` grows while requests are accepted and falls to what is left when one is refused.

    It grows with every acceptance until the first refusal, which overshoots to twice what the
    endpoint takes at most. After that it grows by one when the limit has been used up in full for a
    while; and less and less often where that is refused again, so that a fan-out of thousands meets
    a handful of refusals and not hundreds.
    """

    __slots__ = (
        "_content_until",
        "_half",
        "_most",
        "_peak",
        "_refused_at",
        "_reluctance",
        "_strikes",
        "_taken",
        "_threshold",
        "limit",
    )

    def __init__(self, slots: int | None = None) -> None:
        self.limit = FIRST
        self._refused_at = self._content_until = -1.0
        self.know(slots)

    def know(self, slots: int | None) -> None:
        """The endpoint works on so many at a time; None if nobody knows."""
        self._most = slots or MOST
        self.limit = slots or min(self.limit, self._most)
        self._threshold = self._half = self._most
        self._peak = slots or 0
        self._reluctance = 1
        self._strikes = 0
        self._taken = 0

    def accepted(self, under_way: int, *, now: float) -> bool:
        """One of so many was accepted. True if there is room for one more now."""
        limit = self.limit
        if under_way < limit or limit >= self._most:
            return False  # What is not used up says nothing about what more would meet.
        if limit >= self._threshold:
            self._taken += 1
            # What has lasted before is tried again soon; what never has, ever more seldom.
            patience = 1 if limit < self._peak else self._reluctance
            if self._taken < limit * patience:
                return False
            if limit >= self._peak and now < self._content_until:
                return False
            self._peak = max(self._peak, limit)
            self._strikes = 0
        self._taken = 0
        self.limit = limit + 1
        return True

    def refused(self, under_way: int, *, sent_at: float, now: float, rest_s: float = 0.0) -> None:
        """One was refused while so many others are under way, which is what the endpoint takes.

        `rest_s` is how long nobody may ask because of it.
        """
        level = under_way + 1
        if sent_at > self._refused_at:  # Else it belongs to a wave that is known already.
            self._half = level // 2
            if level > self._peak:
                self._reluctance = min(2 * self._reluctance, MAX_RELUCTANCE)
            else:
                # Once may be the server's being late to see that a request is over.
                self._strikes += 1
                if self._strikes > 1:
                    self._peak = under_way
        self._refused_at = now
        self._content_until = max(self._content_until, now + WORTH * rest_s)
        self._taken = 0
        self.limit = max(1, min(self.limit, under_way))
        self._threshold = max(self._half, self.limit)
