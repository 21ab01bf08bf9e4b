"""Counts and lists in words: `1 turn`, `1,200 tokens`, `a1, a2 and 7 more`."""

from __future__ import annotations

from collections.abc import Sequence


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def listed(names: Sequence[str], most: int) -> str:
    """At most so many of the names, and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more:,} more" if more > 0 else "")
