"""The gate of an endpoint: queues, refusals, limits per minute, an endpoint that goes and comes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from retinue.domain.messages import Request, UserMessage
from retinue.domain.server_info import EndpointLoad
from retinue.errors import ModelError, Overloaded, ProviderError, RateLimited, Unreachable
from retinue.models.routing.endpoint_queue import EndpointQueue
from retinue.models.routing.pool import Pool, PoolMember
from retinue.testing.clock import FakeClock

if TYPE_CHECKING:
    from tests.models.conftest import FakeEndpoint

Opened = Callable[..., "FakeEndpoint"]

ADDRESS = "http://127.0.0.1:8080"
GONE = "Cannot reach http://127.0.0.1:8080/v1: connection refused."


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def passing(clock: FakeClock, seconds: float) -> None:
    clock.advance(seconds)
    await settled()


# The queue


async def test_a_free_place_is_taken_as_if_there_were_no_gate(
    endpoint: Opened, clock: FakeClock
) -> None:
    d = endpoint()
    heard: list[str] = []
    await d.ask("one", on_text=heard.append)
    assert d["one"].on_text == heard.append
    assert clock.next_call_s is None, "no timer"
    await d["one"].answered()
    assert await d.tasks["one"] is d.said


async def test_who_has_to_wait_is_told_how_long_it_was(endpoint: Opened, clock: FakeClock) -> None:
    d = endpoint()
    await d.ask("one")
    await d.ask("two")
    assert (d.present, d.queue.waiting) == (["one"], 1)
    assert d.queue.load == EndpointLoad(
        address=d.queue.address, in_flight=1, limit=1, waiting=1, known=True
    )
    clock.advance(7)
    await d["one"].answered()
    await d["two"].answered()
    assert (await d.tasks["one"]).timing.queued_s == 0.0
    assert (await d.tasks["two"]).timing.queued_s == 7.0


async def test_runs_take_turns(endpoint: Opened, clock: FakeClock) -> None:
    d = endpoint()
    for name in ("a1", "a2", "a3", "a4", "b1", "b2", "c1"):
        await d.ask(name, lane=name[0])
    order = []
    while d.present:
        order += d.present
        await d.visits[0].answered()
    assert order == ["a1", "a2", "b1", "c1", "a3", "b2", "a4"]


async def test_waiting_is_no_silence(endpoint: Opened, clock: FakeClock) -> None:
    """The watchdog takes an empty text for a sign of life."""
    d = endpoint()
    signs: list[str] = []
    await d.ask("one")
    await d.ask("two", on_text=signs.append)
    signs.clear()
    await passing(clock, 60)
    assert len(signs) >= 5
    assert set(signs) == {""}


async def test_let_in_and_cancelled_in_the_same_moment(endpoint: Opened, clock: FakeClock) -> None:
    d = endpoint()
    for name in ("one", "two", "three"):
        await d.ask(name)
    d["one"].outcome.set_result(d.said)
    # The loop runs the end of the first, which lets the second in, and then this; the second does
    # not know yet.
    asyncio.get_running_loop().call_soon(d.tasks["two"].cancel)
    await settled()
    assert d.tasks["two"].cancelled()
    assert d.present == ["three"]


async def test_the_number_of_slots_may_become_known_later(
    endpoint: Opened, clock: FakeClock
) -> None:
    d = endpoint(slots=1)
    for name in ("one", "two", "three"):
        await d.ask(name)
    d.queue.set_slots(3)
    await settled()
    assert d.present == ["one", "two", "three"]


async def test_a_gate_says_how_it_is_doing(clock: FakeClock) -> None:
    assert (
        repr(EndpointQueue(ADDRESS, slots=4, timers=clock))
        == f"EndpointQueue('{ADDRESS}', 0 of 4 in flight)"
    )


# Refusals


async def test_who_is_refused_is_first_when_there_is_room_again(
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
async def test_one_refusal_lets_everybody_rest(
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


async def test_without_a_word_of_the_server_the_rests_grow(
    endpoint: Opened, clock: FakeClock
) -> None:
    d = endpoint()
    await d.ask("one")
    rests = []
    for _ in range(8):
        await d["one"].failed(RateLimited("Too many."))
        rests.append(d.errors[-1].retry_after_s)
        assert rests[-1] is not None
        await passing(clock, rests[-1])
    assert rests == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


async def test_who_refuses_everything_is_given_up_in_the_end(
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


async def test_a_rest_that_is_longer_than_anybody_waits_is_an_error_at_once(
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


async def test_one_that_never_answered_is_told_of_at_once(
    endpoint: Opened, clock: FakeClock
) -> None:
    """It may be a wrong address; nobody should wait two minutes to read that."""
    d = endpoint(slots=4)
    for n in range(5):
        await d.ask(f"{n}")
        await d.visits[0].failed(Unreachable(GONE, retryable=True))
        assert not (await d.error_of(f"{n}")).held


async def test_everybody_sleeps_while_one_asks_and_wakes_when_it_is_back(
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


async def test_one_that_is_up_and_drops_what_it_is_asked_is_not_back(
    endpoint: Opened, clock: FakeClock
) -> None:
    d = endpoint()
    await d.known()
    await gone(d, clock)
    await d.visits[0].failed(ProviderError("It broke off.", retryable=True))
    assert d.errors[-1].held
    await passing(clock, 0.9)
    assert d.present == []


async def test_if_who_asks_is_cancelled_the_next_one_asks(
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


async def test_one_that_stays_away_is_given_up_and_the_way_out_told(
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


async def test_a_wrong_name_of_a_host_is_no_endpoint_that_is_gone(
    endpoint: Opened, clock: FakeClock
) -> None:
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


# Limits per minute


async def test_a_limit_is_kept_before_it_is_reached(endpoint: Opened, clock: FakeClock) -> None:
    d = endpoint(slots=8)
    await d.ask("one")
    d.model.on_headers(
        200,
        {
            "x-ratelimit-limit-requests": "60",
            "x-ratelimit-remaining-requests": "1",
            "x-ratelimit-reset-requests": "59s",
        },
    )
    for name in ("two", "three", "four"):
        await d.ask(name)
    assert d.present == ["one", "two"]
    await passing(clock, 1)
    assert d.present == ["one", "two", "three"]
    await passing(clock, 1)
    assert d.present == ["one", "two", "three", "four"]


async def test_what_one_model_has_used_up_another_may_still_have(
    endpoint: Opened, clock: FakeClock
) -> None:
    d = endpoint(slots=8)
    d.model.on_headers(
        200,
        {
            "x-ratelimit-limit-tokens": "1000",
            "x-ratelimit-remaining-tokens": "0",
            "x-ratelimit-reset-tokens": "60s",
        },
    )
    await d.ask("small")
    await d["small"].answered()
    await d.ask("large")
    assert d.present == []
    other = Pool("other", [PoolMember("other", d, d.queue.model("other"))])
    task = asyncio.create_task(
        other.reply(Request(messages=(UserMessage("elsewhere"),), run_id="another run"))
    )
    await settled()
    assert d.present == ["elsewhere"]
    task.cancel()


SPENT_FOR_A_DAY = {
    "x-ratelimit-limit-requests": "50",
    "x-ratelimit-remaining-requests": "0",
    "x-ratelimit-reset-requests": "24h",
}


async def test_in_the_same_run_too(endpoint: Opened, clock: FakeClock) -> None:
    d = endpoint(slots=1)
    d.model.on_headers(
        200,
        {
            "x-ratelimit-limit-requests": "10",
            "x-ratelimit-remaining-requests": "0",
            "x-ratelimit-reset-requests": "600s",
        },
    )
    other = Pool("other", [PoolMember("other", d, d.queue.model("other"))])
    await d.ask("first")
    late = asyncio.create_task(
        other.reply(Request(messages=(UserMessage("late"),), run_id="run", asked_at=9.0))
    )
    await settled()
    assert d.present == ["late"]
    await d["late"].answered()
    assert late.done()
    assert d.present == []
    await passing(clock, 60)
    assert d.present == ["first"]


async def test_a_limit_that_is_used_up_for_longer_than_anybody_waits_is_an_error_at_once(
    endpoint: Opened, clock: FakeClock
) -> None:
    d = endpoint(slots=8)
    await d.ask("one")
    d.model.on_headers(200, SPENT_FOR_A_DAY)
    await d.ask("two")
    assert str(await d.error_of("two")) == (
        f"{ADDRESS} allows no more requests of that model for another 1,728 s, by the limits in its"
        " own headers. Try again then, choose another model with -m, or let agents wait longer"
        f' with patience_s under [servers."{ADDRESS}"] in your settings.'
    )
    await d["one"].answered()
    await passing(clock, 1_728)
    await d.ask("three")
    assert d.present == ["three"]


async def test_in_a_pool_another_model_of_the_endpoint_is_waited_for(
    endpoint: Opened, clock: FakeClock
) -> None:
    d = endpoint(slots=1)
    await d.ask("one")
    d.model.on_headers(200, SPENT_FOR_A_DAY)
    spare = d.queue.model("spare")
    pool = Pool("both", [PoolMember("m", d, d.model), PoolMember("spare", d, spare)])
    asked = asyncio.create_task(pool.reply(Request(messages=(UserMessage("two"),))))
    await settled()
    assert d.present == ["one"]
    await d["one"].answered()
    assert d.present == ["two"]
    await d["two"].answered()
    assert (await asked).model == "spare"
