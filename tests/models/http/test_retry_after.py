from __future__ import annotations

import time
from email.utils import formatdate

import pytest

from retinue.models.http.retry_after import retry_after_s

NOW = "Wed, 21 Oct 2026 07:28:00 GMT"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:30 GMT", "date": NOW}, 30.0),
        ({"retry-after": "Wed, 21 Oct 2026 07:27:00 GMT", "date": NOW}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "1m30s"}, 90.0),
        ({"retry-after": "1792567690", "date": NOW}, 10.0),
        ({"retry-after": "2026-10-21T07:28:10Z", "date": NOW}, 10.0),
        ({"retry-after": "99999999"}, None),
        ({"retry-after": "9" * 400}, None),
        ({"retry-after": "Wed, 21 Oct 2099 07:28:00 GMT", "date": NOW}, None),
        ({"x-ratelimit-reset": "9" * 400}, None),
        ({"retry-after-ms": "1500", "retry-after": "2"}, 1.5),
        ({"x-ratelimit-reset": "12"}, 12.0),
        ({"x-ratelimit-reset": "1792567690", "date": NOW}, 10.0),
        ({"x-ratelimit-reset": "1792567690000", "date": NOW}, 10.0),
        ({"x-ratelimit-reset-requests": "1m30.5s"}, 90.5),
        ({"x-ratelimit-reset-requests": "20ms"}, 0.02),
        ({"x-ratelimit-reset-requests": "6h", "x-ratelimit-reset-tokens": "2s"}, 2.0),
        (
            {
                "x-ratelimit-reset-requests": "6m0s",
                "x-ratelimit-remaining-requests": "0",
                "x-ratelimit-reset-tokens": "2s",
            },
            360.0,
        ),
        ({"x-ratelimit-reset": "whenever"}, None),
        ({"anthropic-ratelimit-tokens-reset": "2026-10-21T07:28:10Z", "date": NOW}, 10.0),
        ({"anthropic-ratelimit-tokens-reset": "2026-10-21T07:00:00+00:00", "date": NOW}, 0.0),
        ({"anthropic-ratelimit-tokens-reset": "This Time"}, None),
    ],
)
def test_headers(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after_s(headers) == seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("Please try again in 1.5s.", 1.5),
        ("Please retry in 300ms.", 0.3),
        ("Try again in 20 seconds", 20.0),
        ("Never again.", None),
    ],
)
def test_wait_in_the_message(text: str, seconds: float | None) -> None:
    assert retry_after_s({}, text) == seconds


def test_date_is_compared_with_the_local_clock() -> None:
    tomorrow = formatdate(time.time() + 86_400, usegmt=True)
    wait = retry_after_s({"retry-after": tomorrow})
    assert wait is not None
    assert wait > 3600
