"""How many at a time: the limit finds what an endpoint takes, and stays there."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from retinue.models.routing.concurrency import INITIAL_LIMIT, MAX_LIMIT, ConcurrencyLimit


class Endpoint:
    """Takes `capacity` at a time, and is always asked for as much as the throttle lets through."""

    def __init__(self, concurrency: ConcurrencyLimit, capacity: int) -> None:
        self.concurrency = concurrency
        self.capacity = capacity
        self.refused = 0
        self.now = 0.0

    def round(self) -> None:
        """Everybody who is let in asks; who is accepted may make room for more at once."""
        self.now += 1.0
        in_flight = accepted = 0
        while in_flight < self.concurrency.limit:
            in_flight += 1
            if in_flight <= self.capacity:
                accepted += 1
                self.concurrency.accepted(in_flight, now=self.now)
        sent_at = self.now
        self.now += 0.1
        for _ in range(in_flight - accepted):
            in_flight -= 1
            self.refused += 1
            self.concurrency.refused(in_flight, sent_at=sent_at, now=self.now)


@given(st.integers(1, MAX_LIMIT))
def test_what_an_endpoint_takes_is_found_with_few_refusals(capacity: int) -> None:
    endpoint = Endpoint(ConcurrencyLimit(), capacity)
    for _ in range(200):
        endpoint.round()
    # One more than it takes may be tried just now.
    assert capacity <= endpoint.concurrency.limit <= capacity + 1
    # The first wave overshoots to twice of it at most; then there is a probe now and then.
    assert endpoint.refused <= max(capacity, INITIAL_LIMIT) + 8


def test_a_known_number_is_used_at_once_and_never_exceeded() -> None:
    endpoint = Endpoint(ConcurrencyLimit(4), capacity=100)
    for _ in range(50):
        assert endpoint.concurrency.limit == 4
        endpoint.round()
    assert endpoint.refused == 0


def test_a_known_number_that_is_refused_for_a_while_comes_back() -> None:
    endpoint = Endpoint(ConcurrencyLimit(4), capacity=2)
    endpoint.round()
    assert endpoint.concurrency.limit == 2
    endpoint.capacity = 4
    for _ in range(200):
        endpoint.round()
    assert endpoint.concurrency.limit == 4


def test_limit_that_is_not_used_in_full_does_not_grow() -> None:
    concurrency = ConcurrencyLimit()
    for _ in range(1000):
        concurrency.accepted(INITIAL_LIMIT - 1, now=0.0)
    assert concurrency.limit == INITIAL_LIMIT


def test_one_refusal_at_a_level_that_has_lasted_costs_one_round() -> None:
    """Servers are sometimes late to see that a request is over."""
    endpoint = Endpoint(ConcurrencyLimit(), 8)
    for _ in range(50):
        endpoint.round()
    concurrency = endpoint.concurrency
    concurrency.refused(7, sent_at=endpoint.now, now=endpoint.now + 0.1)
    assert concurrency.limit == 7
    for _ in range(7):
        concurrency.accepted(7, now=endpoint.now)
    assert concurrency.limit == 8


def test_an_endpoint_that_takes_less_than_it_did_is_believed() -> None:
    endpoint = Endpoint(ConcurrencyLimit(), 32)
    for _ in range(50):
        endpoint.round()
    endpoint.capacity, endpoint.refused = 4, 0
    for _ in range(200):
        endpoint.round()
    assert 4 <= endpoint.concurrency.limit <= 5
    assert endpoint.refused < 100


def test_where_a_refusal_means_a_rest_for_all_more_is_tried_seldom() -> None:
    concurrency = ConcurrencyLimit()
    concurrency.refused(8, sent_at=1.0, now=1.1, rest_s=2.0)
    for _ in range(1000):
        concurrency.accepted(8, now=200.0)
    assert concurrency.limit == 8
    concurrency.accepted(8, now=201.2)
    assert concurrency.limit == 9
