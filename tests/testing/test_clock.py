from __future__ import annotations

import asyncio

import pytest

from retinue.ports.clock import Clock
from retinue.testing.clock import EPOCH, FakeClock


def test_it_stands_still_until_it_is_moved() -> None:
    clock: Clock = FakeClock()
    assert (clock.now(), clock.monotonic()) == (EPOCH, 0.0)
    assert (clock.now(), clock.monotonic()) == (EPOCH, 0.0)


async def test_it_moves_by_what_it_is_told() -> None:
    clock = FakeClock(now=1000.0)
    clock.advance(2.5)
    assert (clock.now(), clock.monotonic()) == (1002.5, 2.5)


async def test_sleepers_wake_in_the_order_of_their_times() -> None:
    clock, woken = FakeClock(), list[float]()

    async def sleep(seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append(seconds)

    async with asyncio.TaskGroup() as group:
        for seconds in (3.0, 1.0, 2.0, 9.0):
            group.create_task(sleep(seconds))
        await clock.slept(4)
        clock.advance(0.5)
        await asyncio.sleep(0)
        assert woken == []
        clock.advance(2.5)
        await asyncio.sleep(0)
        assert woken == [1.0, 2.0, 3.0]
        clock.advance(6.0)
    assert woken == [1.0, 2.0, 3.0, 9.0]
    assert clock.sleeps == [3.0, 1.0, 2.0, 9.0]


async def test_a_sleep_can_be_waited_for() -> None:
    clock = FakeClock()
    async with asyncio.TaskGroup() as group:
        watcher = group.create_task(clock.slept(2))
        for _ in range(2):
            assert not watcher.done()
            group.create_task(clock.sleep(1.0))
            await asyncio.sleep(0)
        await watcher
        clock.advance(1.0)
    await clock.slept(2)


async def test_a_sleep_of_that_length_can_be_waited_for() -> None:
    clock = FakeClock()
    async with asyncio.TaskGroup() as group:
        watcher = group.create_task(clock.asleep(2.0))
        group.create_task(clock.sleep(1.0))
        await clock.asleep(1.0)
        assert not watcher.done()
        group.create_task(clock.sleep(2.0))
        await watcher
        clock.advance(2.0)


async def test_a_cancelled_sleeper_is_forgotten() -> None:
    clock = FakeClock()
    sleeper = asyncio.create_task(clock.sleep(1.0))
    await clock.slept()
    sleeper.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sleeper
    clock.advance(1.0)


async def test_a_timeout_ends_what_takes_too_long() -> None:
    clock, entered = FakeClock(), asyncio.Event()

    async def hang() -> str:
        try:
            async with clock.timeout(5.0):
                entered.set()
                await asyncio.Event().wait()
        except TimeoutError:
            return "timed out"
        raise AssertionError("unreachable")

    task = asyncio.create_task(hang())
    await entered.wait()
    clock.advance(4.9)
    await asyncio.sleep(0)
    assert not task.done()
    clock.advance(0.2)
    assert await task == "timed out"


async def test_a_timeout_that_was_left_does_nothing() -> None:
    clock = FakeClock()
    timeout = clock.timeout(5.0)
    async with timeout:
        pass
    clock.advance(10.0)
    await asyncio.sleep(0)
    assert not timeout.expired()


async def test_calls_are_made_when_they_are_due_each_at_its_moment() -> None:
    clock, made = FakeClock(), list[tuple[str, float]]()

    def call(name: str) -> None:
        made.append((name, clock.time()))
        if name == "again":
            clock.call_later(1.0, lambda: call("later"))

    clock.call_later(5.0, lambda: call("second"))
    clock.call_later(1.0, lambda: call("again"))
    cancelled = clock.call_later(3.0, lambda: call("never"))
    assert clock.next_call_s == 1.0
    cancelled.cancel()
    clock.advance(4.0)
    assert made == [("again", 1.0), ("later", 2.0)]
    assert (clock.time(), clock.next_call_s) == (4.0, 1.0)
    clock.advance(1.0)
    assert made[2:] == [("second", 5.0)]
    assert clock.next_call_s is None
