from __future__ import annotations

import msgspec
import pytest

from retinue.domain.sampling import NO_SAMPLING, Sampling
from retinue.errors import ContractError


def test_given_settings_replace_those_of_the_base() -> None:
    base = Sampling(temperature=0.7, seed=1, extra_body={"a": 1, "b": 1})
    over = Sampling(temperature=0.0, max_output_tokens=16, extra_body={"b": 2})
    assert over.over(base) == Sampling(
        temperature=0.0, seed=1, max_output_tokens=16, extra_body={"a": 1, "b": 2}
    )
    assert over.over(NO_SAMPLING) is over
    assert NO_SAMPLING.over(base) is base


def test_settings_that_are_not_given_take_no_bytes() -> None:
    assert msgspec.json.encode(Sampling(seed=0)) == b'{"seed":0}'


@pytest.mark.parametrize(
    ("sampling", "problem"),
    [
        (Sampling(temperature=2.5), "temperature must be between 0 and 2, not 2.5."),
        (Sampling(temperature=float("nan")), "temperature must be between 0 and 2, not nan."),
        (Sampling(top_p=-0.1), "top_p must be between 0 and 1, not -0.1."),
        (Sampling(seed=-1), "seed must be between 0 and 9,007,199,254,740,992, not -1."),
        (Sampling(max_output_tokens=15), "max_output_tokens must be at least 16, not 15."),
        (Sampling(extra_body={"n": 9, "model": "x"}), "extra_body must not set model, n."),
    ],
)
def test_invalid_value(sampling: Sampling, problem: str) -> None:
    with pytest.raises(ContractError) as caught:
        sampling.check()
    assert str(caught.value) == problem
