"""Whoever says nothing for too long is not waited for; whoever was heard is."""

from __future__ import annotations

import asyncio
import time

import pytest

from retinue.models.http.idle_timeout import IdleTimeout, IdleTimeouts

FOREVER_S = 3600.0


async def _waits(timeouts: IdleTimeouts, idle_s: float) -> IdleTimeout:
    """Wait for somebody who never says anything, until the watch ends it."""
    timeout = timeouts.start(idle_s)
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        if not timeout.caused_cancellation():
            raise
    finally:
        timeout.stop()
    return timeout


async def test_task_is_cancelled_and_can_continue() -> None:
    timeouts = IdleTimeouts()
    timeout = await _waits(timeouts, 0.01)
    assert timeout.expired
    assert not timeout.was_reset
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    assert (await _waits(timeouts, 0.01)).expired


async def test_shorter_timeout_expires_before_an_earlier_longer_one() -> None:
    timeouts = IdleTimeouts()
    long = asyncio.create_task(_waits(timeouts, FOREVER_S))
    await asyncio.sleep(0)
    await _waits(timeouts, 0.01)
    assert not long.done()
    long.cancel()
    with pytest.raises(asyncio.CancelledError):
        await long


async def test_reset_starts_a_timeout_of_another_length() -> None:
    timeouts = IdleTimeouts()
    timeout = timeouts.start(0.01)
    timeout.reset(FOREVER_S)
    await _waits(timeouts, 0.05)
    assert timeout.was_reset
    assert not timeout.expired
    timeout.reset(0.01)
    with pytest.raises(asyncio.CancelledError):
        await asyncio.Event().wait()
    assert timeout.caused_cancellation()


async def test_cancellation_from_outside_is_no_timeout() -> None:
    task = asyncio.create_task(_waits(IdleTimeouts(), FOREVER_S))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_cancellation_during_a_timeout_is_not_swallowed() -> None:
    timeouts = IdleTimeouts()
    timeout = timeouts.start(FOREVER_S)
    task = asyncio.current_task()
    assert task is not None
    timeout.expire()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.sleep(0)
    assert not timeout.caused_cancellation()
    task.uncancel()


async def test_stall_expires_no_timeout() -> None:
    timeouts = IdleTimeouts()
    timeout = timeouts.start(0.2)
    # Nothing runs meanwhile, as when the process is stopped.
    time.sleep(0.9)  # noqa: ASYNC251
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not timeout.expired
    with pytest.raises(asyncio.CancelledError):
        await asyncio.Event().wait()
    assert timeout.caused_cancellation()


async def test_stall_does_not_extend_later_timeouts() -> None:
    timeouts = IdleTimeouts()
    short, long = timeouts.start(0.05), timeouts.start(FOREVER_S)
    due = long.deadline
    time.sleep(0.7)  # noqa: ASYNC251
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not short.expired
    assert long.deadline == due
    short.stop()


async def test_data_that_arrived_in_time_is_read_first() -> None:
    timeouts, said = IdleTimeouts(), asyncio.get_running_loop().create_future()
    timeout = timeouts.start(0.05)
    asyncio.get_running_loop().call_later(0.01, said.set_result, "Yes.")
    # Both are late, and both are seen to in the same round of the loop.
    time.sleep(0.2)  # noqa: ASYNC251
    assert await said == "Yes."
    timeout.reset(FOREVER_S)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not timeout.expired


def test_timeouts_work_in_several_loops_in_turn() -> None:
    timeouts = IdleTimeouts()
    for _ in range(2):
        assert asyncio.run(_waits(timeouts, 0.01)).expired


async def test_stopped_timeout_cancels_nothing() -> None:
    timeouts = IdleTimeouts()
    timeouts.start(0.01).stop()
    await _waits(timeouts, 0.05)


async def test_waiting_is_reported_while_there_is_time() -> None:
    timeouts, reports = IdleTimeouts(report_every_s=0.01), asyncio.Semaphore(0)
    quiet, patient = timeouts.start(FOREVER_S), timeouts.start(FOREVER_S, reports.release)
    for _ in range(3):
        await reports.acquire()
    patient.stop()
    timeouts.close()
    assert not quiet.expired
    assert not patient.expired
