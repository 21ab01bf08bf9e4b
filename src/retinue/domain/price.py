"""Prices of tokens."""

from __future__ import annotations

import msgspec

from retinue.domain.messages import Usage


class Rates(msgspec.Struct, frozen=True, gc=False, kw_only=True, forbid_unknown_fields=True):
    """US dollars per million tokens, which is also micro-dollars per token.

    `cached` is the price of input that was in a cache, and `cache_write` of input that was written
    into one. Both default to the price of `input`.
    """

    input: float
    output: float
    cached: float | None = None
    cache_write: float | None = None

    @property
    def highest_input(self) -> float:
        """The highest price of an input token, cached, written to a cache, or neither."""
        return max(self.input, self.cached or 0.0, self.cache_write or 0.0)


class PriceTier(Rates, frozen=True, gc=False, kw_only=True, forbid_unknown_fields=True):
    """Rates of a whole request that has more than `above` tokens of input.

    ```python
    long = retinue.PriceTier(input=5, output=15, above=200_000)
    price = retinue.Price(input=2.5, output=10, tiers=(long,))
    assert price.add_cost(retinue.Usage(tokens_in=300_000)).cost_usd == 1.5
    ```
    """

    above: int


class Price(Rates, frozen=True, gc=False, kw_only=True, forbid_unknown_fields=True):
    """What a model costs. The tier with the largest `above` that a request exceeds applies.

    ```python
    price = retinue.Price(input=2.5, output=10)  # US dollars per million tokens
    usage = price.add_cost(retinue.Usage(tokens_in=1_000, tokens_out=100))
    assert usage.cost_usd == 0.0035
    ```
    """

    tiers: tuple[PriceTier, ...] = ()

    def add_cost(self, usage: Usage, model: str = "") -> Usage:
        """Return `usage` with its cost, unless the server has said what it cost."""
        if usage.cost_microusd:
            return usage
        rates = self._rates(usage.tokens_in)
        cached = rates.input if rates.cached is None else rates.cached
        written = rates.input if rates.cache_write is None else rates.cache_write
        cost = (
            (usage.tokens_in - usage.tokens_cached - usage.tokens_written) * rates.input
            + usage.tokens_cached * cached
            + usage.tokens_written * written
            + usage.tokens_out * rates.output
        )
        return msgspec.structs.replace(usage, cost_microusd=round(cost))

    def max_cost_microusd(self, tokens_in: int, tokens_out: int) -> int:
        """The highest possible cost of these tokens."""
        rates = self._rates(tokens_in)
        return int(tokens_in * rates.highest_input + tokens_out * rates.output) + 1

    def affordable_output_tokens(self, tokens_in: int, microusd: int) -> int:
        """How many output tokens the money is enough for, after the input is paid."""
        rest = microusd - self.max_cost_microusd(tokens_in, 0)
        output = self._rates(tokens_in).output
        if rest <= 0:
            return 0
        return int(rest / output) if output else 2**31

    def _rates(self, tokens_in: int) -> Rates:
        rates: Rates = self
        if self.tiers:
            reached = [tier for tier in self.tiers if tokens_in > tier.above]
            rates = max(reached, key=lambda tier: tier.above, default=self)
        return rates

    def affordable_input_tokens(self, tokens_out: int, microusd: int) -> int:
        """How many input tokens the money is enough for, after the output is paid."""
        rates: tuple[Rates, ...] = (self, *self.tiers)
        rest = microusd - tokens_out * max(rate.output for rate in rates) - 1
        highest = max(rate.highest_input for rate in rates)
        return max(0, int(rest / highest)) if highest else 2**31


class PoolPrice(msgspec.Struct, frozen=True, gc=False):
    """The prices of a pool's models. Estimates before a reply use the highest price."""

    prices: dict[str, Price]

    def add_cost(self, usage: Usage, model: str = "") -> Usage:
        """Return `usage` with the cost at the model that answered, if its price is known."""
        price = self.prices.get(model)
        return usage if price is None else price.add_cost(usage)

    def max_cost_microusd(self, tokens_in: int, tokens_out: int) -> int:
        return max(price.max_cost_microusd(tokens_in, tokens_out) for price in self.prices.values())

    def affordable_output_tokens(self, tokens_in: int, microusd: int) -> int:
        return min(
            price.affordable_output_tokens(tokens_in, microusd) for price in self.prices.values()
        )

    def affordable_input_tokens(self, tokens_out: int, microusd: int) -> int:
        return min(
            price.affordable_input_tokens(tokens_out, microusd) for price in self.prices.values()
        )
