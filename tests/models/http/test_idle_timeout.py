"""Whoever says nothing for too long is not waited for; whoever was heard is."""

from __future__ import annotations

import asyncio
import time

import pytest

from retinue.models.http.idle_timeout import Silence, Watch

FOREVER_S = 3600.0


async def _waits(watch: Watch, within_s: float) -> Silence:
    """Wait for somebody who never says anything, until the watch ends it."""
    silence = watch.begin(within_s)
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        if not silence.was_it():
            raise
    finally:
        silence.end()
    return silence


async def test_the_task_of_who_is_silent_is_cancelled_and_can_go_on() -> None:
    watch = Watch()
    silence = await _waits(watch, 0.01)
    assert silence.broken
    assert not silence.heard_of
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    assert (await _waits(watch, 0.01)).broken


async def test_a_shorter_silence_ends_before_a_longer_one_that_began_earlier() -> None:
    watch = Watch()
    long = asyncio.create_task(_waits(watch, FOREVER_S))
    await asyncio.sleep(0)
    await _waits(watch, 0.01)
    assert not long.done()
    long.cancel()
    with pytest.raises(asyncio.CancelledError):
        await long


async def test_who_was_heard_has_a_new_silence_of_another_length() -> None:
    watch = Watch()
    silence = watch.begin(0.01)
    silence.heard(FOREVER_S)
    await _waits(watch, 0.05)
    assert silence.heard_of
    assert not silence.broken
    silence.heard(0.01)
    with pytest.raises(asyncio.CancelledError):
        await asyncio.Event().wait()
    assert silence.was_it()


async def test_a_cancellation_from_outside_is_not_taken_for_a_silence() -> None:
    task = asyncio.create_task(_waits(Watch(), FOREVER_S))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_cancellation_beside_a_silence_is_not_swallowed() -> None:
    watch = Watch()
    silence = watch.begin(FOREVER_S)
    task = asyncio.current_task()
    assert task is not None
    silence.give_up()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.sleep(0)
    assert not silence.was_it()
    task.uncancel()


async def test_a_lapse_is_nobodys_silence() -> None:
    watch = Watch()
    silence = watch.begin(0.2)
    # Nothing runs meanwhile, as when the process is stopped.
    time.sleep(0.9)  # noqa: ASYNC251
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not silence.broken
    with pytest.raises(asyncio.CancelledError):
        await asyncio.Event().wait()
    assert silence.was_it()


async def test_a_lapse_gives_no_time_to_who_was_not_due_in_it() -> None:
    watch = Watch()
    short, long = watch.begin(0.05), watch.begin(FOREVER_S)
    due = long.until
    time.sleep(0.7)  # noqa: ASYNC251
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not short.broken
    assert long.until == due
    short.end()


async def test_what_came_in_time_is_read_before_anybody_gives_up() -> None:
    watch, said = Watch(), asyncio.get_running_loop().create_future()
    silence = watch.begin(0.05)
    asyncio.get_running_loop().call_later(0.01, said.set_result, "Yes.")
    # Both are late, and both are seen to in the same round of the loop.
    time.sleep(0.2)  # noqa: ASYNC251
    assert await said == "Yes."
    silence.heard(FOREVER_S)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not silence.broken


def test_a_watch_may_be_used_in_one_loop_after_another() -> None:
    watch = Watch()
    for _ in range(2):
        assert asyncio.run(_waits(watch, 0.01)).broken


async def test_what_has_ended_is_not_cancelled_afterwards() -> None:
    watch = Watch()
    watch.begin(0.01).end()
    await _waits(watch, 0.05)
