"""Tracks the prompt prefixes in an endpoint's cache, and lets one request read a new prefix.

Sibling agents share the system message and the tools. If they are sent side by side to an endpoint
that has not seen this prefix, it reads the prefix once for every sibling. If the others are sent
after the first token of the first, the prefix comes out of the endpoint's cache.

llama.cpp, and what is built on it, has a cache in each slot, so that every further slot reads the
prefix again. Whether to wait for a warm slot or to use a cold one is the ski-rental problem: to
wait until the wait has cost as much as reading never costs more than twice the optimum.
"""

from __future__ import annotations

from math import inf
from typing import Any

from retinue.domain.messages import Request, ToolSpec

# Providers cache no shorter prefix, and a local machine reads it in no time.
MIN_TOKENS = 1_024
# How long an unused prefix is kept, by the provider with the shortest time.
EXPIRES_S = 300.0
# The request that reads the prefix may be stuck; the others do not wait for it longer than this. A
# machine with a cache per slot may read slowly, and reads slower still several times at once.
LONGEST_WAIT_S = 30.0
LONGEST_WAIT_PER_SLOT_S = 600.0

_MAX_PREFIXES = 256
_BYTES_PER_TOKEN = 4


class Prefix:
    """One prefix at one endpoint.

    `warm_slots` is how many requests may use the prefix side by side without its being read again;
    0 while it is cold. `in_use` counts the requests that use it, `waiting` is a heap of requests
    that wait for it, and `let_through` counts requests in `waiting` that need not wait any longer.
    """

    def __init__(self, cache: PrefixCache, tools: tuple[ToolSpec, ...]) -> None:
        self._cache = cache
        self._tools = tools  # Kept, so that another tuple cannot get the same id.
        self.warm_slots = 0
        self.in_use = 0
        self.waiting: list[Any] = []
        self.let_through = 0
        self.fully_cached = False
        self._read_s = 0.0
        self.used_at = 0.0
        self._widened_at = 0.0

    def free_slots(self, now: float) -> float:
        """How many more requests may use the prefix now."""
        if self.fully_cached:
            return inf
        free = max(self.warm_slots, 1) - self.in_use
        return max(free, self.let_through, int(now >= self.stop_waiting_at))

    @property
    def stop_waiting_at(self) -> float:
        """When a longer wait for a warm slot costs more than reading the prefix again."""
        if not self.warm_slots:
            per_slot = self._cache.per_slot
            return self._widened_at + (LONGEST_WAIT_PER_SLOT_S if per_slot else LONGEST_WAIT_S)
        # The share of the total wait that one more slot saves.
        share = max(len(self.waiting), 1) / (self.warm_slots * (self.warm_slots + 1))
        return self._widened_at + self._read_s / share

    def acquire(self, now: float) -> None:
        self.in_use += 1
        self.let_through = max(self.let_through - 1, 0)
        if self.in_use > self.warm_slots:
            self._widened_at = now
            self.warm_slots = self.in_use if self.warm_slots else 0

    def release(self) -> None:
        self.in_use -= 1

    def mark_read(self, took_s: float, now: float) -> None:
        """Record the first token of a request that had the prefix read."""
        self.fully_cached = not self._cache.per_slot
        self.warm_slots, self._read_s, self._widened_at = max(self.in_use, 1), took_s, now

    def mark_cold(self) -> None:
        self.warm_slots, self.let_through, self.fully_cached = 0, 0, False


class PrefixCache:
    """The prefixes of one model at one endpoint. A warm prefix costs one look-up."""

    def __init__(self) -> None:
        self.per_slot = False
        """Whether each slot has a cache of its own."""
        self._prefixes: dict[tuple[str, int], Prefix] = {}

    def cold_prefix(self, request: Request, now: float) -> Prefix | None:
        """The prefix of `request`, unless the endpoint has it in the cache for every slot."""
        # By the identity of the tools, since hashing schemas would cost more than all the rest; a
        # str remembers its hash.
        key = request.messages[0].content, id(request.tools)
        prefix = self._prefixes.get(key)
        if prefix is None:
            prefix = self._prefixes[key] = self._new_prefix(request)
        elif now - prefix.used_at > EXPIRES_S and not prefix.in_use:
            prefix.mark_cold()
        prefix.used_at = max(prefix.used_at, now)
        return None if prefix.fully_cached else prefix

    def _new_prefix(self, request: Request) -> Prefix:
        if len(self._prefixes) >= _MAX_PREFIXES:
            used = {key: p for key, p in self._prefixes.items() if p.in_use or p.waiting}
            self._prefixes = used
        prefix = Prefix(self, request.tools)
        size = len(request.messages[0].content) + sum(
            len(tool.description) + len(bytes(tool.parameters)) for tool in request.tools
        )
        if size < MIN_TOKENS * _BYTES_PER_TOKEN:
            prefix.fully_cached, prefix.used_at = True, inf
        return prefix
