"""What tokens cost."""

from __future__ import annotations

import msgspec

from retinue.domain.messages import Usage


class Price(msgspec.Struct, frozen=True, gc=False, kw_only=True, forbid_unknown_fields=True):
    """US dollars per million tokens, which is also micro-dollars per token."""

    input: float
    output: float
    cached: float | None = None

    def applied(self, usage: Usage) -> Usage:
        """`usage` with its cost."""
        cached = self.input if self.cached is None else self.cached
        cost = (
            (usage.tokens_in - usage.tokens_cached) * self.input
            + usage.tokens_cached * cached
            + usage.tokens_out * self.output
        )
        return msgspec.structs.replace(usage, cost_microusd=round(cost))

    def most(self, tokens_in: int, tokens_out: int) -> int:
        """The most that so many tokens can cost, in micro-dollars."""
        dearest = max(self.input, self.cached or 0.0)
        return int(tokens_in * dearest + tokens_out * self.output) + 1

    def affords(self, tokens_in: int, microusd: int) -> int:
        """How many tokens of output are left for, when so many of input are paid for."""
        rest = microusd - self.most(tokens_in, 0)
        if rest <= 0:
            return 0
        return int(rest / self.output) if self.output else 2**31
