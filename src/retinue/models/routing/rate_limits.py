"""Requests and tokens per minute: what a server's headers say of them, and how to keep to it."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite

import msgspec

from retinue.models.http.retry_after import LONGEST_S, until_s

# Of several windows for tokens the fullest decides.
_NAMES = {
    "requests": (
        "x-ratelimit-{}-requests",
        "anthropic-ratelimit-requests-{}",
        "x-ratelimit-{}",
    ),
    "tokens": (
        "x-ratelimit-{}-tokens",
        "anthropic-ratelimit-tokens-{}",
        "anthropic-ratelimit-input-tokens-{}",
        "anthropic-ratelimit-output-tokens-{}",
    ),
}
_SHARE = 0.2  # of the newest reply in what is thought to be the size of the next


class Window(msgspec.Struct, frozen=True, gc=False):
    """`remaining` of `limit`, which is whole again after `reset_s`."""

    limit: float
    remaining: float
    reset_s: float


class Limits(msgspec.Struct, frozen=True, gc=False):
    """What a server says is left of what it allows."""

    requests: Window | None = None
    tokens: Window | None = None


def limits_of(headers: Mapping[str, str]) -> Limits | None:
    """The limits in the headers of an answer (case-insensitive); None if there are none."""
    found = Limits(*(_fullest(headers, names) for names in _NAMES.values()))
    return None if found.requests is None and found.tokens is None else found


def _fullest(headers: Mapping[str, str], names: tuple[str, ...]) -> Window | None:
    windows = [window for name in names if (window := _window(headers, name)) is not None]
    return min(windows, key=lambda window: window.remaining / window.limit, default=None)


def _window(headers: Mapping[str, str], name: str) -> Window | None:
    remaining = _count(headers.get(name.format("remaining")))
    limit = _count(headers.get(name.format("limit")))
    reset_s = until_s(headers.get(name.format("reset")), headers)
    if remaining is None or not limit or reset_s is None or reset_s > LONGEST_S:
        return None
    return Window(limit, remaining, reset_s)


def _count(text: str | None) -> float | None:
    try:
        count = 0.0 if text is None else float(text)
    except ValueError:
        return None
    return None if text is None or not isfinite(count) else max(count, 0.0)


class Pace:
    """Keeps one model's requests inside its server's limits, before they are refused."""

    __slots__ = ("_reply_tokens", "_requests", "_tokens")

    def __init__(self) -> None:
        self._requests: _Supply | None = None
        self._tokens: _Supply | None = None
        self._reply_tokens = 0.0

    def learn(self, limits: Limits, *, under_way: int, now: float) -> None:
        """`under_way` are those that the server may not have counted yet."""
        if limits.requests is not None:
            self._requests = _Supply(limits.requests, spoken_for=under_way, now=now)
        if limits.tokens is not None:
            spoken_for = under_way * self._reply_tokens
            self._tokens = _Supply(limits.tokens, spoken_for=spoken_for, now=now)

    def wait_s(self, now: float) -> float:
        """How long until another request fits; 0 if it does now."""
        wait_s = 0.0
        if self._requests is not None:
            wait_s = self._requests.wait_s(1.0, now)
        if self._tokens is not None:
            wait_s = max(wait_s, self._tokens.wait_s(self._reply_tokens, now))
        return wait_s

    def sent(self) -> None:
        if self._requests is not None:
            self._requests.take(1.0)
        if self._tokens is not None:
            self._tokens.take(self._reply_tokens)

    def used(self, tokens: int) -> None:
        """A request and its reply had so many tokens; the next will have about as many."""
        before = self._reply_tokens
        self._reply_tokens = tokens if not before else before + _SHARE * (tokens - before)


class _Supply:
    """What is left of a limit. It is thought to fill up evenly, as most servers have it."""

    __slots__ = ("_at", "_left", "_limit", "_per_s", "_whole_at")

    def __init__(self, window: Window, *, spoken_for: float, now: float) -> None:
        self._limit = window.limit
        self._left = window.remaining - spoken_for
        self._at = now
        self._whole_at = now + window.reset_s
        missing = window.limit - window.remaining
        self._per_s = missing / window.reset_s if window.reset_s > 0 else 0.0

    def wait_s(self, amount: float, now: float) -> float:
        # More than all there ever is: nothing to wait for, the server may see it differently.
        amount = min(amount, self._limit)
        left = self._left + self._per_s * (now - self._at)
        if left >= amount or now >= self._whole_at:
            return 0.0
        whole_s = self._whole_at - now
        return min((amount - left) / self._per_s, whole_s) if self._per_s else whole_s

    def take(self, amount: float) -> None:
        self._left -= amount
