"""Limit of concurrent requests to an endpoint: as the server reports it, or found by trying."""

from __future__ import annotations

INITIAL_LIMIT = 8
MAX_LIMIT = 256
MAX_PATIENCE = 64
# Finding out whether more is accepted may cost this part of the time: 1 %.
REST_FACTOR = 100


class ConcurrencyLimit:
    """`limit` grows while requests are accepted, and falls when one is refused.

    The limit grows with every acceptance until the first refusal, which overshoots to twice what
    the endpoint accepts at most. After that it grows by one when it has been used in full for a
    while; and less and less often where that is refused again, so that a fan-out of thousands meets
    a handful of refusals and not hundreds.
    """

    def __init__(self, slots: int | None = None) -> None:
        self.limit = INITIAL_LIMIT
        self._refused_at = self._no_growth_until = -1.0
        self.set_slots(slots)

    def set_slots(self, slots: int | None) -> None:
        """Set how many requests the endpoint works on at a time; None if that is not known."""
        self._max_limit = slots or MAX_LIMIT
        self.limit = slots or min(self.limit, self._max_limit)
        self._slow_from = self._half_of_refused = self._max_limit
        self._highest_proven = slots or 0
        self._patience = 1
        self._refusals_below_proven = 0
        self._accepted = 0

    def accepted(self, in_flight: int, *, now: float) -> bool:
        """Record that one of `in_flight` requests was accepted. Returns whether the limit grew."""
        limit = self.limit
        if in_flight < limit or limit >= self._max_limit:
            return False  # A limit that is not used in full says nothing about a higher one.
        if limit >= self._slow_from:
            self._accepted += 1
            # A limit that has lasted before is tried again soon; a new one ever more seldom.
            patience = 1 if limit < self._highest_proven else self._patience
            if self._accepted < limit * patience:
                return False
            if limit >= self._highest_proven and now < self._no_growth_until:
                return False
            self._highest_proven = max(self._highest_proven, limit)
            self._refusals_below_proven = 0
        self._accepted = 0
        self.limit = limit + 1
        return True

    def refused(self, others: int, *, sent_at: float, now: float, rest_s: float = 0.0) -> None:
        """Record a refusal while `others` are in flight, which is what the endpoint accepts.

        `rest_s` is how long no request may be sent because of it.
        """
        level = others + 1
        if sent_at > self._refused_at:  # Else it belongs to a known wave of refusals.
            self._half_of_refused = level // 2
            if level > self._highest_proven:
                self._patience = min(2 * self._patience, MAX_PATIENCE)
            else:
                # One refusal may mean that the server is late to notice the end of a request.
                self._refusals_below_proven += 1
                if self._refusals_below_proven > 1:
                    self._highest_proven = others
        self._refused_at = now
        self._no_growth_until = max(self._no_growth_until, now + REST_FACTOR * rest_s)
        self._accepted = 0
        self.limit = max(1, min(self.limit, others))
        self._slow_from = max(self._half_of_refused, self.limit)
