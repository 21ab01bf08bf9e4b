"""Remembers what was computed from a request's tools, which siblings and turns share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from retinue.domain.messages import ToolSpec

_MAX_ENTRIES = 64

T = TypeVar("T")


class ToolsCache(Generic[T]):
    """Calls `compute` once for each tuple of tools.

    Tuples are known by identity, since hashing the schemas would cost more than computing. A tuple
    is kept with its value, so that another one cannot get the same id.
    """

    def __init__(self, compute: Callable[[tuple[ToolSpec, ...]], T]) -> None:
        self._compute = compute
        self._entries: dict[int, tuple[tuple[ToolSpec, ...], T]] = {}

    def __call__(self, tools: tuple[ToolSpec, ...]) -> T:
        known = self._entries.get(id(tools))
        if known is not None:
            return known[1]
        value = self._compute(tools)
        if len(self._entries) >= _MAX_ENTRIES:
            del self._entries[next(iter(self._entries))]
        self._entries[id(tools)] = (tools, value)
        return value
