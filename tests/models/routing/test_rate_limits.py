"""Limits per minute: read from the headers, kept before they are reached."""

from __future__ import annotations

import pytest

from retinue.models.routing.rate_limits import RateLimiter, parse_rate_limits
from retinue.ports.endpoint_slots import RateLimits, RateWindow

NOW = "Wed, 21 Oct 2026 07:28:00 GMT"


@pytest.mark.parametrize(
    ("headers", "limits"),
    [
        ({}, None),
        ({"content-type": "text/event-stream"}, None),
        (
            {
                "x-ratelimit-limit-requests": "500",
                "x-ratelimit-remaining-requests": "499",
                "x-ratelimit-reset-requests": "120ms",
                "x-ratelimit-limit-tokens": "30000",
                "x-ratelimit-remaining-tokens": "29500",
                "x-ratelimit-reset-tokens": "1s",
            },
            RateLimits(RateWindow(500, 499, 0.12), RateWindow(30_000, 29_500, 1.0)),
        ),
        (
            {
                "date": NOW,
                "anthropic-ratelimit-requests-limit": "50",
                "anthropic-ratelimit-requests-remaining": "0",
                "anthropic-ratelimit-requests-reset": "2026-10-21T07:28:30Z",
                "anthropic-ratelimit-input-tokens-limit": "20000",
                "anthropic-ratelimit-input-tokens-remaining": "1000",
                "anthropic-ratelimit-input-tokens-reset": "2026-10-21T07:28:57Z",
                "anthropic-ratelimit-output-tokens-limit": "8000",
                "anthropic-ratelimit-output-tokens-remaining": "8000",
                "anthropic-ratelimit-output-tokens-reset": "2026-10-21T07:28:00Z",
            },
            RateLimits(RateWindow(50, 0, 30.0), RateWindow(20_000, 1_000, 57.0)),
        ),
        (
            {
                "x-ratelimit-limit": "20",
                "x-ratelimit-remaining": "3",
                "x-ratelimit-reset": "1792567690000",
                "date": NOW,
            },
            RateLimits(RateWindow(20, 3, 10.0), None),
        ),
        ({"x-ratelimit-remaining-requests": "3"}, None),
        (
            {
                "x-ratelimit-limit-requests": "many",
                "x-ratelimit-remaining-requests": "3",
                "x-ratelimit-reset-requests": "1s",
            },
            None,
        ),
        (
            {
                "x-ratelimit-limit-requests": "9",
                "x-ratelimit-remaining-requests": "3",
                "x-ratelimit-reset-requests": "whenever",
            },
            None,
        ),
        *(
            (
                {
                    "x-ratelimit-limit-requests": limit,
                    "x-ratelimit-remaining-requests": remaining,
                    "x-ratelimit-reset-requests": reset,
                },
                None,
            )
            for limit, remaining, reset in (
                ("nan", "3", "1s"),
                ("inf", "inf", "1s"),
                ("-1", "-1", "1s"),
                ("9", "0", "9" * 400),
            )
        ),
    ],
)
def test_headers(headers: dict[str, str], limits: RateLimits | None) -> None:
    assert parse_rate_limits(headers) == limits


def test_no_wait_without_known_limits() -> None:
    limiter = RateLimiter()
    for _ in range(100):
        limiter.record_request()
        limiter.record_reply(1_000_000)
    assert limiter.wait_s(0.0) == 0.0


def test_requests_are_spread_before_they_are_refused() -> None:
    limiter = RateLimiter()
    limiter.update(RateLimits(RateWindow(60, 2, 58.0)), in_flight=0, now=100.0)
    waits = []
    for _ in range(4):
        waits.append(limiter.wait_s(100.0))
        limiter.record_request()
    # Two are left; the others come back one a second.
    assert waits == [0.0, 0.0, 1.0, 2.0]
    assert limiter.wait_s(101.5) == pytest.approx(1.5)


def test_requests_in_flight_are_reserved() -> None:
    limiter = RateLimiter()
    limiter.update(RateLimits(RateWindow(60, 2, 58.0)), in_flight=2, now=0.0)
    assert limiter.wait_s(0.0) == 1.0


def test_tokens_are_estimated_from_earlier_replies() -> None:
    limiter = RateLimiter()
    limiter.record_reply(4_000)
    limiter.record_reply(5_000)
    limiter.update(RateLimits(tokens=RateWindow(10_000, 1_200, 60.0)), in_flight=0, now=0.0)
    assert limiter.wait_s(0.0) == pytest.approx((4_200 - 1_200) / (8_800 / 60))


def test_reply_larger_than_the_limit_is_sent() -> None:
    limiter = RateLimiter()
    limiter.record_reply(50_000)
    limiter.update(RateLimits(tokens=RateWindow(10_000, 5_000, 30.0)), in_flight=0, now=0.0)
    assert limiter.wait_s(0.0) == 30.0
    assert limiter.wait_s(30.0) == 0.0


def test_empty_window_without_a_rate_is_waited_for() -> None:
    limiter = RateLimiter()
    limiter.update(RateLimits(RateWindow(10, 10, 5.0)), in_flight=12, now=0.0)
    assert limiter.wait_s(0.0) == 5.0
    assert limiter.wait_s(6.0) == 0.0
