"""The queue of an endpoint: order, slots, and limits per minute."""

from __future__ import annotations

import asyncio

from retinue.domain.messages import QueuedRequest, Request, UserMessage
from retinue.domain.server_info import EndpointLoad
from retinue.models.routing.endpoint_queue import EndpointQueue
from retinue.models.routing.pool import Pool, PoolMember
from retinue.testing.clock import FakeClock
from tests.models.routing.fake_endpoint import ADDRESS, Opened, passing, settled

GONE = "Cannot reach http://127.0.0.1:8080/v1: connection refused."


# The queue


async def test_free_slot_is_taken_without_overhead(endpoint: Opened, clock: FakeClock) -> None:
    d = endpoint()
    heard: list[str] = []
    await d.ask("one", on_text=heard.append)
    assert d["one"].on_text == heard.append
    assert clock.next_call_s is None, "no timer"
    await d["one"].answered()
    assert await d.tasks["one"] is d.said


async def test_reply_says_how_long_it_was_queued(endpoint: Opened, clock: FakeClock) -> None:
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


async def test_repr(clock: FakeClock) -> None:
    assert (
        repr(EndpointQueue(ADDRESS, slots=4, timers=clock))
        == f"EndpointQueue('{ADDRESS}', 0 of 4 in flight)"
    )


# Limits per minute


async def test_rate_limit_is_kept_before_it_is_reached(endpoint: Opened, clock: FakeClock) -> None:
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


async def test_rate_limits_are_per_model(endpoint: Opened, clock: FakeClock) -> None:
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
        other.reply(QueuedRequest(messages=(UserMessage("elsewhere"),), queue_key="another run"))
    )
    await settled()
    assert d.present == ["elsewhere"]
    task.cancel()


SPENT_FOR_A_DAY = {
    "x-ratelimit-limit-requests": "50",
    "x-ratelimit-remaining-requests": "0",
    "x-ratelimit-reset-requests": "24h",
}


async def test_rate_limits_are_per_model_in_the_same_run(
    endpoint: Opened, clock: FakeClock
) -> None:
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
        other.reply(QueuedRequest(messages=(UserMessage("late"),), queue_key="run", asked_at=9.0))
    )
    await settled()
    assert d.present == ["late"]
    await d["late"].answered()
    assert late.done()
    assert d.present == []
    await passing(clock, 60)
    assert d.present == ["first"]


async def test_rate_limit_longer_than_the_patience_is_an_error_at_once(
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


async def test_pool_waits_for_another_model_of_the_endpoint(
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
