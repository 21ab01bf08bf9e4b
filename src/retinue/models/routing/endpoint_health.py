"""Whether an endpoint can be asked now: it answers, it rests after a refusal, or it is down.

A rest ends by itself. An endpoint that is down is probed by one waiting request at a time, each
probe after a longer pause, until it answers again or `patience_s` have passed.
"""

from __future__ import annotations

from math import inf

from retinue.errors import ModelError, Overloaded, RateLimited, Unreachable

PATIENCE_S = 120.0

# One failed connection may be a full backlog; this many in a row mean that the endpoint is down.
_DOWN_AFTER_FAILURES = 3
_FIRST_PAUSE_S = 0.5
_LONGEST_REST_S = 30.0
_LONGEST_PROBE_PAUSE_S = 15.0


class EndpointHealth:
    """The health of one endpoint. A request is any object with an identity."""

    def __init__(self, address: str, *, patience_s: float = PATIENCE_S) -> None:
        self.address = address
        self.patience_s = patience_s
        self.paused_until = 0.0
        """No request is sent before this moment."""
        self.probe: object | None = None
        """The request that finds out whether the endpoint is back."""
        self._pauses = 0
        # Since when every request is refused, while no other request is in flight.
        self._refusing_since: float | None = None
        self._failed_connections = 0
        self._down_since: float | None = None
        self._last_error = ""

    @property
    def available_at(self) -> float:
        """When the next request can be sent; never while a probe is in flight."""
        return self.paused_until if self.probe is None else inf

    def next_change_at(self, now: float) -> float:
        """When waiting requests must be looked at again, if nothing happens before."""
        moments = [
            since + self.patience_s
            for since in (self._down_since, self._refusing_since)
            if since is not None
        ]
        if now < self.paused_until:
            moments.append(self.paused_until)
        return min(moments, default=inf)

    def give_up_error(self, now: float) -> ModelError | None:
        """The error for all waiting requests, if waiting any longer is pointless."""
        down_since, refusing_since = self._down_since, self._refusing_since
        if down_since is not None and now - down_since >= self.patience_s:
            return Unreachable(
                f"{self.address} has been down for {now - down_since:,.0f} s:"
                f" {self._last_error} Start it again, {self.way_out}"
            )
        if down_since is None and self.paused_until - now > self.patience_s:
            return Overloaded(
                f"{self.address} accepts no requests for another"
                f" {self.paused_until - now:,.0f} s: {self._last_error} Try again then,"
                f" {self.way_out}"
            )
        if refusing_since is not None and now - refusing_since >= self.patience_s:
            return Overloaded(
                f"{self.address} has refused every request for {now - refusing_since:,.0f} s:"
                f" {self._last_error} Try again later, {self.way_out}"
            )
        return None

    @property
    def way_out(self) -> str:
        return (
            "choose another model with -m, or let agents wait longer with patience_s under"
            f' [servers."{self.address}"] in your settings.'
        )

    # Outcomes of requests

    def sent(self, request: object) -> None:
        if self._down_since is not None:
            self.probe = request

    def responded(self, status: int) -> bool:
        """Record a response of any status. Returns whether the endpoint was down until now."""
        was_down = self._down_since is not None
        if was_down:
            self._down_since, self.probe, self.paused_until, self._pauses = None, None, 0.0, 0
        self._failed_connections = 0
        if status < 400:
            self._refusing_since, self._pauses = None, 0
        return was_down

    def ended(self, request: object) -> None:
        """Record the end of a request. A probe that was cancelled leaves its task to the next."""
        if self.probe is request:
            self.probe = None

    def failed(self, request: object, error: ModelError, now: float, *, others: int) -> None:
        """Record a failure while `others` are in flight. Marks errors that the queue waits out."""
        if isinstance(error, RateLimited | Overloaded):
            self._refused(error, now, others)
        elif self.probe is request or (isinstance(error, Unreachable) and error.retryable):
            # A probe that connects and then fails counts too: the endpoint is not back yet.
            self._unreachable(request, error, now)

    def _refused(self, error: ModelError, now: float, others: int) -> None:
        rest_s = error.retry_after_s or 0.0
        self._last_error = _without_advice(error)
        if not others:
            if self._refusing_since is None or now > self.paused_until + _LONGEST_REST_S:
                self._refusing_since = now
            # No other request is in flight whose end could be waited for.
            rest_s = rest_s or min(_FIRST_PAUSE_S * 2**self._pauses, _LONGEST_REST_S)
            self._pauses += 1
        if rest_s:
            self.paused_until = max(self.paused_until, now + rest_s)
            error.retry_after_s = self.paused_until - now
        error.held = True

    def _unreachable(self, request: object, error: ModelError, now: float) -> None:
        self._failed_connections += 1
        if self._failed_connections < _DOWN_AFTER_FAILURES and self._down_since is None:
            return
        error.held = True
        if self._down_since is None:
            self._down_since, self._pauses = now, 0
        elif self.probe is not request:
            return  # Sent before the endpoint was known to be down.
        self._last_error = _without_advice(error)
        self.probe = None
        error.retry_after_s = min(_FIRST_PAUSE_S * 2**self._pauses, _LONGEST_PROBE_PAUSE_S)
        self._pauses += 1
        self.paused_until = now + error.retry_after_s


def _without_advice(error: ModelError) -> str:
    """The failure and the server's words. The advice that follows them no longer applies."""
    happened, *rest = str(error).split(". ")
    said = rest[:1] if rest and rest[0].startswith("It said: ") else []
    return ". ".join([happened, *said]).rstrip(".") + "."
