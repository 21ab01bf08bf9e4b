"""Prefixes: the first of several siblings reads, the others follow."""

from __future__ import annotations

import asyncio

from retinue.errors import ProviderError
from retinue.testing.clock import FakeClock
from tests.models.routing.fake_endpoint import FakeEndpoint, Opened, passing

LONG = "Read this first. " * 300
OTHER = "Read that first. " * 300
EIGHT = ["one", "two", "three", "four", "five", "six", "seven", "eight"]
LLAMA = {"server": "llama.cpp"}


async def siblings(d: FakeEndpoint, *names: str, system: str = LONG) -> None:
    for name in names:
        await d.ask(name, system=system, on_text=lambda _: None)


# One cache for all, as cloud providers and vLLM have it


async def test_others_wait_for_the_first_token(endpoint: Opened) -> None:
    d = endpoint(slots=8)
    await siblings(d, "one", "two", "three")
    assert d.present == ["one"]
    await d["one"].first_token()
    assert d.present == ["one", "two", "three"]
    await siblings(d, "four")
    assert d.present == ["one", "two", "three", "four"]


async def test_a_sign_of_life_is_no_token(endpoint: Opened) -> None:
    d = endpoint(slots=8)
    told: list[str] = []
    await d.ask("one", system=LONG, on_text=told.append)
    await siblings(d, "two")
    await d["one"].keep_alive()
    assert told == [""]
    assert d.present == ["one"], "the others wait for a prefix that was read"


async def test_reply_without_text_counts_at_its_end(endpoint: Opened) -> None:
    d = endpoint(slots=8)
    await siblings(d, "one", "two", "three")
    await d["one"].answered()
    assert d.present == ["two", "three"]


async def test_next_request_reads_if_the_first_fails(endpoint: Opened) -> None:
    d = endpoint(slots=8)
    await siblings(d, "one", "two", "three")
    await d["one"].failed(ProviderError("Broken.", retryable=True))
    assert d.present == ["two"]
    d.tasks["two"].cancel()
    await asyncio.sleep(0.0)
    await d.ask("another", system=OTHER)
    assert d.present == ["three", "another"]


async def test_prefixes_are_independent(endpoint: Opened) -> None:
    d = endpoint(slots=8)
    await siblings(d, "one", "two")
    await siblings(d, "red", "blue", system=OTHER)
    assert d.present == ["one", "red"]
    await d["red"].first_token()
    assert d.present == ["one", "red", "blue"]


async def test_a_short_prefix_is_not_worth_waiting_for(endpoint: Opened) -> None:
    d = endpoint(slots=8)
    await siblings(d, "one", "two", system="Be brief.")
    assert d.present == ["one", "two"]


async def test_single_slot_needs_no_order(endpoint: Opened) -> None:
    d = endpoint(slots=1)
    await siblings(d, "one", "two")
    await d["one"].answered()
    assert d.present == ["two"]


async def test_stuck_first_request_is_waited_for_only_so_long(
    endpoint: Opened, clock: FakeClock
) -> None:
    d = endpoint(slots=8)
    await siblings(d, "one", "two", "three")
    await passing(clock, 29)
    assert d.present == ["one"]
    await passing(clock, 1)
    assert d.present == ["one", "two"]


async def test_cache_per_slot_allows_a_longer_wait(endpoint: Opened, clock: FakeClock) -> None:
    d = endpoint(slots=4)
    d.model.prefix_cache.per_slot = True
    await siblings(d, "one", "two", "three")
    await passing(clock, 599)
    assert d.present == ["one"]
    await passing(clock, 1)
    assert d.present == ["one", "two"]


async def test_unused_prefix_expires(endpoint: Opened, clock: FakeClock) -> None:
    d = endpoint(slots=8)
    await siblings(d, "one")
    await d["one"].answered()
    await passing(clock, 299)
    await siblings(d, "two", "three")
    assert d.present == ["two", "three"]
    await d["two"].answered()
    await d["three"].answered()
    await passing(clock, 301)
    await siblings(d, "four", "five")
    assert d.present == ["four"]


# A cache in each slot, as llama.cpp has it


async def read_in(d: FakeEndpoint, clock: FakeClock, seconds: float) -> None:
    """Let `one` and its siblings ask, and `one` have its first token after some time."""
    await siblings(d, *EIGHT)
    await passing(clock, seconds)
    d.model.on_headers(200, LLAMA)
    await d["one"].first_token()


async def test_siblings_wait_for_a_warm_slot(endpoint: Opened, clock: FakeClock) -> None:
    d = endpoint(slots=4)
    await read_in(d, clock, 28.0)
    order = []
    while d.present:
        order += d.present
        await passing(clock, 1.0)
        await d.visits[0].answered()
    assert order == EIGHT, "all in one slot"


async def test_a_cold_slot_is_used_when_waiting_would_cost_more(
    endpoint: Opened, clock: FakeClock
) -> None:
    d = endpoint(slots=4)
    await read_in(d, clock, 28.0)
    # Seven wait. A second slot saves them half of it, so it pays when they have waited 2/7 of what
    # it costs to read the prefix there.
    await passing(clock, 7.9)
    assert d.present == ["one"]
    await passing(clock, 0.2)
    assert d.present == ["one", "two"]
    # A third one would save six of them a sixth.
    await passing(clock, 27.0)
    assert d.present == ["one", "two"]
    await passing(clock, 2.0)
    assert d.present == ["one", "two", "three"]
    # These three are warm now.
    for name in ("one", "two", "three"):
        await d[name].answered()
    assert d.present == ["four", "five", "six"]


async def test_cheap_prefix_uses_all_slots_soon(endpoint: Opened, clock: FakeClock) -> None:
    d = endpoint(slots=4)
    await read_in(d, clock, 0.5)
    await passing(clock, 3.0)
    assert d.present == ["one", "two", "three", "four"]
