"""Which beginnings of prompts an endpoint has read already, and who goes first where it has not.

Siblings share the system message and the tools. Sent side by side to an endpoint that has not seen
them, this prefix is read as often as there are siblings; sent after the first of them has its first
token, it comes out of the endpoint's cache.

llama.cpp, and what is built on it, has a cache in each slot, so that every further slot that is put
to use reads the prefix again. Whether to wait for a warm slot or to pay for a cold one is the
question of renting or buying: who waits until the waiting has cost as much as the reading would
never pays more than twice the best that could have been done.
"""

from __future__ import annotations

from typing import Any

from retinue.domain.messages import Request, ToolSpec

# Providers cache no prefix that is shorter, and a local machine reads it in no time.
LEAST_TOKENS = 1_024
# How long a prefix that nobody uses is kept, by the most forgetful of them.
KEPT_S = 300.0
# Who goes first may be stuck; the others do not wait for it longer than this. A machine with slots
# of its own may be slow to read, and is slower still if it has to do so several times at once.
LONGEST_HOLD_S = 30.0
LONGEST_HOLD_BY_SLOT_S = 600.0

_REMEMBERED = 256
_BYTES_PER_TOKEN = 4


class Prefix:
    """One beginning at one endpoint.

    `width` is how many may use it side by side without its being read again: none as long as it is
    cold. `busy` are those who do, `held` is a heap of those who wait for it, and `released` are as
    many of them as were told that they need not.
    """

    __slots__ = (
        "_cost_s",
        "_tools",
        "_warmth",
        "_widened_at",
        "busy",
        "everywhere",
        "held",
        "released",
        "used_at",
        "width",
    )

    def __init__(self, warmth: Warmth, tools: tuple[ToolSpec, ...]) -> None:
        self._warmth = warmth
        self._tools = tools  # Kept, so that their id cannot become that of others.
        self.width = 0
        self.busy = 0
        self.held: list[Any] = []
        self.released = 0
        self.everywhere = False
        self._cost_s = 0.0
        self.used_at = 0.0
        self._widened_at = 0.0

    def room(self, now: float) -> float:
        """How many more may use it now."""
        if self.everywhere:
            return float("inf")
        free = max(self.width, 1) - self.busy
        return max(free, self.released, int(now >= self.opens_at))

    @property
    def opens_at(self) -> float:
        """When waiting any longer for those who use it is worse than having it read again."""
        if not self.width:
            by_slot = self._warmth.by_slot
            return self._widened_at + (LONGEST_HOLD_BY_SLOT_S if by_slot else LONGEST_HOLD_S)
        # Of what everybody waits, so much is saved by one place more.
        share = max(len(self.held), 1) / (self.width * (self.width + 1))
        return self._widened_at + self._cost_s / share

    def enter(self, now: float) -> None:
        self.busy += 1
        self.released = max(self.released - 1, 0)
        if self.busy > self.width:
            self._widened_at = now
            self.width = self.busy if self.width else 0

    def read(self, took_s: float, now: float) -> None:
        """Somebody who had to have it read has a first token."""
        self.everywhere = not self._warmth.by_slot
        self.width, self._cost_s, self._widened_at = max(self.busy, 1), took_s, now

    def leave(self) -> None:
        self.busy -= 1

    def cool(self) -> None:
        self.width, self.released, self.everywhere = 0, 0, False


class Warmth:
    """The prefixes of one model at one endpoint. One that is known to be warm costs a look-up."""

    def __init__(self) -> None:
        self.by_slot = False
        """Whether each slot has a cache of its own."""
        self._known: dict[tuple[str, int], Prefix] = {}

    def prefix(self, request: Request, now: float) -> Prefix | None:
        """The prefix that has to be taken care of, if there is one."""
        # By the identity of the tools, since hashing schemas would cost more than all the rest; a
        # str remembers its hash.
        key = request.messages[0].content, id(request.tools)
        prefix = self._known.get(key)
        if prefix is None:
            prefix = self._known[key] = self._meet(request)
        elif now - prefix.used_at > KEPT_S and not prefix.busy:
            prefix.cool()
        prefix.used_at = max(prefix.used_at, now)
        return None if prefix.everywhere else prefix

    def _meet(self, request: Request) -> Prefix:
        if len(self._known) >= _REMEMBERED:
            self._known = {key: p for key, p in self._known.items() if p.busy or p.held}
        prefix = Prefix(self, request.tools)
        size = len(request.messages[0].content) + sum(
            len(tool.description) + len(bytes(tool.parameters)) for tool in request.tools
        )
        if size < LEAST_TOKENS * _BYTES_PER_TOKEN:
            prefix.everywhere, prefix.used_at = True, float("inf")
        return prefix
