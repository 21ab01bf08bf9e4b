"""Limits of requests and tokens per minute: reads them from headers, and keeps to them."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite

from retinue.models.http.retry_after import (
    MAX_WAIT_S,
    REQUEST_WINDOWS,
    TOKEN_WINDOWS,
    parse_wait_s,
)
from retinue.ports.endpoint_slots import RateLimits, RateWindow

_NEWEST_SHARE = 0.2  # weight of the newest reply in the expected size of the next


def parse_rate_limits(headers: Mapping[str, str]) -> RateLimits | None:
    """The limits in the headers of a response (case-insensitive); None if there are none."""
    found = RateLimits(*(_tightest(headers, names) for names in (REQUEST_WINDOWS, TOKEN_WINDOWS)))
    return None if found.requests is None and found.tokens is None else found


def _tightest(headers: Mapping[str, str], names: tuple[str, ...]) -> RateWindow | None:
    """The window with the smallest share left, which decides."""
    windows = [window for name in names if (window := _window(headers, name)) is not None]
    return min(windows, key=lambda window: window.remaining / window.limit, default=None)


def _window(headers: Mapping[str, str], name: str) -> RateWindow | None:
    remaining = _count(headers.get(name.format("remaining")))
    limit = _count(headers.get(name.format("limit")))
    reset_s = parse_wait_s(headers.get(name.format("reset")), headers)
    if remaining is None or not limit or reset_s is None or reset_s > MAX_WAIT_S:
        return None
    return RateWindow(limit, remaining, reset_s)


def _count(text: str | None) -> float | None:
    try:
        count = 0.0 if text is None else float(text)
    except ValueError:
        return None
    return None if text is None or not isfinite(count) else max(count, 0.0)


class RateLimiter:
    """Keeps one model's requests inside its server's limits, before they are refused."""

    def __init__(self) -> None:
        self._requests: _Bucket | None = None
        self._tokens: _Bucket | None = None
        self._reply_tokens = 0.0

    def update(self, limits: RateLimits, *, in_flight: int, now: float) -> None:
        """Take over what the server says. It may not have counted `in_flight` requests yet."""
        if limits.requests is not None:
            self._requests = _Bucket(limits.requests, reserved=in_flight, now=now)
        if limits.tokens is not None:
            reserved = in_flight * self._reply_tokens
            self._tokens = _Bucket(limits.tokens, reserved=reserved, now=now)

    def wait_s(self, now: float) -> float:
        """Seconds until another request fits into the limits; 0 if it fits now."""
        wait_s = 0.0
        if self._requests is not None:
            wait_s = self._requests.wait_s(1.0, now)
        if self._tokens is not None:
            wait_s = max(wait_s, self._tokens.wait_s(self._reply_tokens, now))
        return wait_s

    def record_request(self) -> None:
        if self._requests is not None:
            self._requests.take(1.0)
        if self._tokens is not None:
            self._tokens.take(self._reply_tokens)

    def record_reply(self, tokens: int) -> None:
        """Record the tokens of a request and its reply, from which the next is estimated."""
        before = self._reply_tokens
        self._reply_tokens = tokens if not before else before + _NEWEST_SHARE * (tokens - before)


class _Bucket:
    """The rest of a limit. It fills up evenly, as it does at most servers."""

    def __init__(self, window: RateWindow, *, reserved: float, now: float) -> None:
        self._limit = window.limit
        self._left = window.remaining - reserved
        self._at = now
        self._full_at = now + window.reset_s
        missing = window.limit - window.remaining
        self._per_s = missing / window.reset_s if window.reset_s > 0 else 0.0

    def wait_s(self, amount: float, now: float) -> float:
        # A request larger than the limit is sent anyway: the server may count differently.
        amount = min(amount, self._limit)
        left = self._left + self._per_s * (now - self._at)
        if left >= amount or now >= self._full_at:
            return 0.0
        full_s = self._full_at - now
        return min((amount - left) / self._per_s, full_s) if self._per_s else full_s

    def take(self, amount: float) -> None:
        self._left -= amount
