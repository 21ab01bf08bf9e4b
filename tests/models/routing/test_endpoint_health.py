"""The health of an endpoint: refusals, rests, and an endpoint that goes down and comes back."""

from __future__ import annotations

import pytest

from retinue.errors import ModelError, Overloaded, ProviderError, RateLimited, Unreachable
from retinue.testing.clock import FakeClock
from tests.models.routing.fake_endpoint import ADDRESS, FakeEndpoint, Opened, passing, settled

GONE = "Cannot reach http://127.0.0.1:8080/v1: connection refused."


# Refusals


async def test_refused_request_is_the_first_to_be_retried(
    endpoint: Opened, clock: FakeClock
) -> None:
    d = endpoint(slots=2)
    for name in ("one", "two", "three"):
        await d.ask(name)
    await d["two"].failed(RateLimited("Too many."))
    assert d.present == ["one"], "one is what it takes"
    await d["one"].answered()
    assert d.present[0] == "two"
    assert [error.held for error in d.errors] == [True]


@pytest.mark.parametrize("kind", [RateLimited, Overloaded])
async def test_refusal_pauses_all_requests(
    endpoint: Opened, clock: FakeClock, kind: type[ModelError]
) -> None:
    d = endpoint(slots=2)
    for name in ("one", "two", "three"):
        await d.ask(name)
    await d["two"].failed(kind("Come back.", retry_after_s=20.0))
    await d["one"].answered()
    await passing(clock, 19.9)
    assert d.present == []
    await passing(clock, 0.1)
    assert d.present[0] == "two"


async def test_pauses_grow_without_retry_after(endpoint: Opened, clock: FakeClock) -> None:
    d = endpoint()
    await d.ask("one")
    rests = []
    for _ in range(8):
        await d["one"].failed(RateLimited("Too many."))
        rests.append(d.errors[-1].retry_after_s)
        assert rests[-1] is not None
        await passing(clock, rests[-1])
    assert rests == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


async def test_endpoint_that_refuses_everything_is_given_up(
    endpoint: Opened, clock: FakeClock
) -> None:
    d = endpoint(patience_s=60)
    await d.ask("one")
    await d.ask("two")
    for _ in range(7):
        await d.visits[0].failed(RateLimited("Too many."))
        await passing(clock, d.errors[-1].retry_after_s or 0.0)
    for name in ("one", "two"):
        error = await d.error_of(name)
        assert str(error) == (
            f"{ADDRESS} has refused every request for 60 s: Too many. Try again later, choose"
            " another model with -m, or let agents wait longer with patience_s under"
            f' [servers."{ADDRESS}"] in your settings.'
        )
        assert not error.retryable


async def test_pause_longer_than_the_patience_is_an_error_at_once(
    endpoint: Opened,
    clock: FakeClock,
) -> None:
    d = endpoint()
    await d.ask("one")
    await d.ask("two")
    await d["one"].failed(RateLimited("The day's share is used.", retry_after_s=3600.0))
    for name in ("one", "two"):
        assert str(await d.error_of(name)) == (
            f"{ADDRESS} accepts no requests for another 3,600 s: The day's share is used. Try again"
            " then, choose another model with -m, or let agents wait longer with patience_s under"
            f' [servers."{ADDRESS}"] in your settings.'
        )
    await d.ask("three")
    await passing(clock, 0.0)
    assert "accepts no requests" in str(await d.error_of("three"))


async def test_other_failures_are_none_of_the_gates_business(
    endpoint: Opened, clock: FakeClock
) -> None:
    d = endpoint()
    await d.ask("one")
    await d.ask("two")
    await d["one"].failed(ProviderError("It broke off.", retryable=True))
    assert not (await d.error_of("one")).held
    assert d.present == ["two"]


# An endpoint that goes, and comes back


async def test_endpoint_that_never_answered_is_waited_for(
    endpoint: Opened, clock: FakeClock
) -> None:
    """After a reboot, a server may start later than the run."""
    d = endpoint(slots=4)
    for n in range(3):
        await d.ask(f"{n}")
    for _ in range(3):
        await d.visits[0].failed(Unreachable(GONE, retryable=True))
    assert [error.held for error in d.errors] == [False, False, True]
    await passing(clock, 20)
    await d.visits[0].answered()
    assert d.present == []


async def test_one_request_probes_while_the_others_wait(
    endpoint: Opened,
    clock: FakeClock,
) -> None:
    d = endpoint(slots=4)
    await d.known()
    for n in range(4):
        await d.ask(f"{n}")
    for _ in range(4):
        await d.visits[0].failed(Unreachable(GONE, retryable=True))
    # The first two might have been an accident.
    assert [error.held for error in d.errors] == [False, False, True, True]
    for n in range(4, 8):
        await d.ask(f"{n}")
    asked = []
    for wait_s in (0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 15.0):
        await passing(clock, wait_s - 0.1)
        assert d.present == []
        await passing(clock, 0.1)
        asked += d.present
        await d.visits[0].failed(Unreachable(GONE, retryable=True))
    assert asked == ["2"] * 7
    await passing(clock, 15)
    d.model.on_headers(200, {})
    await settled()
    assert d.present == ["2", "3", "4", "5"]


async def test_failed_probe_keeps_the_endpoint_down(endpoint: Opened, clock: FakeClock) -> None:
    d = endpoint()
    await d.known()
    await gone(d, clock)
    await d.visits[0].failed(ProviderError("It broke off.", retryable=True))
    assert d.errors[-1].held
    await passing(clock, 0.9)
    assert d.present == []


async def test_cancelled_probe_is_replaced_by_the_next_request(
    endpoint: Opened, clock: FakeClock
) -> None:
    d = endpoint()
    await d.known()
    await gone(d, clock)
    await d.ask("other")
    (asking,) = d.present
    d.tasks[asking].cancel()
    await settled()
    assert d.present == ["other"]


async def test_endpoint_that_stays_down_is_given_up_with_advice(
    endpoint: Opened, clock: FakeClock
) -> None:
    d = endpoint(slots=2, patience_s=10)
    await d.known()
    await gone(d, clock)
    await d.ask("waiting")
    (asking,) = d.present
    await passing(clock, 10)
    words = (
        f"{ADDRESS} has been down for 10 s: {GONE} Start it again, choose another model with -m, or"
        f' let agents wait longer with patience_s under [servers."{ADDRESS}"] in your settings.'
    )
    assert str(await d.error_of("waiting")) == words
    await d[asking].failed(Unreachable(GONE, retryable=True))
    error = await d.error_of(asking)
    assert "has been down for" in str(error)
    assert not error.retryable
    await d.ask("late")
    await passing(clock, 0.0)
    assert "has been down for" in str(await d.error_of("late"))


async def test_unknown_host_name_is_not_waited_for(endpoint: Opened, clock: FakeClock) -> None:
    d = endpoint(slots=4)
    await d.known()
    for n in range(4):
        await d.ask(f"{n}")
        await d.visits[0].failed(Unreachable("No such host.", retryable=False))
        assert not (await d.error_of(f"{n}")).held


async def gone(d: FakeEndpoint, clock: FakeClock) -> None:
    """Let the endpoint be gone, and somebody be asking whether it is back."""
    for n in range(3):
        await d.ask(f"lost {n}")
        await d.visits[0].failed(Unreachable(GONE, retryable=True))
    assert d.present == []
    await passing(clock, 0.5)
    assert d.present == ["lost 2"]
