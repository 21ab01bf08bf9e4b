from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from retinue.domain.messages import Usage
from retinue.domain.price import Price, PriceTier

CLAUDE = Price(input=3.0, output=15.0, cached=0.3, cache_write=3.75)


def test_each_kind_of_token_has_its_price() -> None:
    usage = Usage(1000, 600, 10, tokens_written=300)
    assert CLAUDE.add_cost(usage).cost_microusd == 100 * 3 + 180 + 1125 + 150
    # What is left out costs what input does.
    assert Price(input=3.0, output=15.0).add_cost(usage).cost_microusd == 3000 + 150


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**5))
def test_cost_never_exceeds_the_maximum(fresh: int, read: int, written: int, out: int) -> None:
    usage = Usage(fresh + read + written, read, out, tokens_written=written)
    for price in (CLAUDE, Price(input=3.0, output=15.0), Price(input=1.0, output=0.0, cached=2.0)):
        assert price.add_cost(usage).cost_microusd <= price.max_cost_microusd(usage.tokens_in, out)


def test_tier_applies_to_the_whole_request() -> None:
    price = Price(
        input=1.0,
        output=2.0,
        cached=0.1,
        tiers=(
            PriceTier(above=2_000, input=4.0, output=8.0),
            PriceTier(above=1_000, input=2.0, output=4.0, cached=0.5),
        ),
    )
    assert price.add_cost(Usage(1_000, 0, 10)).cost_microusd == 1_020
    assert price.add_cost(Usage(1_001, 1, 10)).cost_microusd == 2_040  # 0.5 is rounded.
    assert price.add_cost(Usage(3_000, 1_000, 10)).cost_microusd == 12_080
    assert price.max_cost_microusd(3_000, 10) == 12_081
    assert price.affordable_output_tokens(3_000, 12_001 + 80) == 10


def test_charge_of_the_server_is_the_cost() -> None:
    usage = Usage(1000, 0, 10, cost_microusd=7)
    assert CLAUDE.add_cost(usage) == usage
