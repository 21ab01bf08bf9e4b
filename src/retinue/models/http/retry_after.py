"""Reads how long a server asks clients to wait, in the many forms that servers use."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from datetime import datetime

# A longer wait is a mistake: a broken clock, or a number with another meaning.
MAX_WAIT_S = 366 * 86_400.0

_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_IN_TEXT = re.compile(r"(?:try again|retry) (?:in|after) (\d+(?:\.\d+)?) ?(ms|s\b|sec)", re.I)
# Header names of rate limit windows: OpenAI's, then Anthropic's.
REQUEST_WINDOWS = ("x-ratelimit-{}-requests", "anthropic-ratelimit-requests-{}", "x-ratelimit-{}")
TOKEN_WINDOWS = (
    "x-ratelimit-{}-tokens",
    *(f"anthropic-ratelimit-{kind}tokens-{{}}" for kind in ("", "input-", "output-")),
)


def retry_after_s(headers: Mapping[str, str], text: str = "") -> float | None:
    """Seconds to wait, from the headers (case-insensitive) or the message; None if neither says."""
    seconds = _parse(headers, text)
    return None if seconds is None or seconds > MAX_WAIT_S else seconds


def _parse(headers: Mapping[str, str], text: str) -> float | None:
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return max(milliseconds / 1000, 0.0)
    header = headers.get("retry-after")
    if header is not None:
        seconds = parse_wait_s(header, headers)
        if seconds is None:
            seconds = _until_date(header, headers)
        if seconds is not None:
            return max(seconds, 0.0)
    waits = {}
    for window in REQUEST_WINDOWS + TOKEN_WINDOWS:
        wait = parse_wait_s(headers.get(window.format("reset")), headers)
        if wait is not None:
            waits[window] = wait
    # The window that is used up decides, not one that only refills later.
    empty = [w for n, w in waits.items() if headers.get(n.format("remaining")) == "0"]
    if empty:
        return max(empty)
    if waits:
        return min(waits.values())
    match = _IN_TEXT.search(text)
    if match is not None:
        return float(match[1]) * (0.001 if match[2].lower() == "ms" else 1.0)
    return None


def _number(text: str | None) -> float | None:
    if text is None or not re.fullmatch(r"\s*-?\d+(\.\d+)?\s*", text):
        return None
    return float(text)


def _until_date(text: str, headers: Mapping[str, str]) -> float | None:
    try:
        return _timestamp(text) - _server_time(headers)
    except (TypeError, ValueError, OverflowError):
        return None


def _server_time(headers: Mapping[str, str]) -> float:
    """The time by the server's own clock if it sends it, since the local one may be wrong."""
    try:
        return _timestamp(headers["date"])
    except (KeyError, TypeError, ValueError, OverflowError):
        return time.time()


def parse_wait_s(text: str | None, headers: Mapping[str, str]) -> float | None:
    """Parse seconds: `12`, `1m30.5s`, or a time as a date or (milli)seconds since the epoch."""
    if text is None:
        return None
    number = _number(text)
    if number is not None:
        if number > 1e11:
            number /= 1000
        if number > 1e9:
            number -= _server_time(headers)
        return max(number, 0.0)
    if "T" in text:
        try:
            return max(datetime.fromisoformat(text).timestamp() - _server_time(headers), 0.0)
        except (ValueError, OverflowError):
            return None
    parts = _PART.findall(text)
    if not parts or "".join(amount + unit for amount, unit in parts) != text.strip():
        return None
    return float(sum(float(amount) * _UNITS_S[unit] for amount, unit in parts))


def _timestamp(text: str) -> float:
    from email.utils import parsedate_to_datetime  # Slower to import than all of this package.

    return parsedate_to_datetime(text).timestamp()
