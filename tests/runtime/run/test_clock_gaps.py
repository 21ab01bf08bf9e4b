"""Time in which nothing could run, and time that was set, is held against nobody."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest

import retinue
from retinue.domain.events import AgentClosed, ClockGapDetected, Event, SilenceDetected
from retinue.models.scripted.model import ScriptedModel, call, hold, say
from retinue.ports.clock import ClockGap
from retinue.runtime.core.clock import SystemClock
from retinue.runtime.runtime import Runtime
from retinue.testing.clock import FakeClock

Opened = Callable[..., AbstractAsyncContextManager[Runtime]]


class Gate:
    """Says when somebody waits at it."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self._open = asyncio.Event()

    def open(self) -> None:
        self._open.set()

    async def wait(self) -> None:
        self.reached.set()
        await self._open.wait()


def lapses(events: list[Event]) -> list[str]:
    return [event.summary for event in events if isinstance(event.fact, ClockGapDetected)]


async def test_stall_extends_deadlines_and_is_recorded(opened: Opened, clock: FakeClock) -> None:
    gate, seen = Gate(), list[Event]()
    model = ScriptedModel([hold(gate, say("Here."))])
    async with opened(model=model, on_event=seen.append) as rt:
        job = await rt.start("researcher", "Look.", timeout_s=60)
        await gate.reached.wait()
        clock.stall(3_600)
        gate.open()
        result = await job.result()
    assert (result.status, result.attempts) == ("completed", 1)
    assert lapses(seen) == ["nothing could run for 3600 s; all deadlines are that much later"]
    assert not [event for event in seen if isinstance(event.fact, SilenceDetected)]


async def test_timeout_still_works_after_a_stall(opened: Opened, clock: FakeClock) -> None:
    gate = Gate()
    async with opened(model=ScriptedModel([hold(gate, say("never"))], strict=False)) as rt:
        job = await rt.start("researcher", "Look.", timeout_s=60, max_retries=0)
        await gate.reached.wait()
        clock.stall(3_600)
        clock.advance(61)
        result = await job.result()
    assert (result.status, result.error) == ("timeout", "timeout after 60 s")


async def test_short_stall_is_not_recorded(opened: Opened, clock: FakeClock) -> None:
    gate, seen = Gate(), list[Event]()
    async with opened(model=ScriptedModel([hold(gate, say("Here."))]), on_event=seen.append) as rt:
        job = await rt.start("researcher", "Look.")
        await gate.reached.wait()
        clock.stall(4)
        gate.open()
        assert (await job.result()).ok
    assert lapses(seen) == []


@pytest.mark.parametrize("seconds", [86_400.0, -86_400.0])
async def test_setting_the_clock_changes_no_duration(
    opened: Opened, clock: FakeClock, seconds: float
) -> None:
    gate, seen = Gate(), list[Event]()
    async with opened(model=ScriptedModel([hold(gate, say("Here."))]), on_event=seen.append) as rt:
        job = await rt.start("researcher", "Look.", timeout_s=60)
        await gate.reached.wait()
        clock.advance(10)
        clock.jump(seconds)
        clock.advance(10)
        gate.open()
        result = await job.result()
    assert result.ok
    assert lapses(seen) == [f"the clock was set by {seconds:+.0f} s; no deadline has moved"]
    view = retinue.fold(seen)
    assert view.agents[result.agent_id].duration_s == pytest.approx(20)
    assert any(isinstance(event.fact, AgentClosed) for event in seen)


async def test_resumed_attempt_is_not_charged_for_a_stall(opened: Opened, clock: FakeClock) -> None:
    """Of its minute 40 s are left, whatever the times in the journal seem to say."""
    first, second, third = Gate(), Gate(), Gate()
    started: list[Event] = []

    def script(gate: Gate) -> ScriptedModel:
        steps = [hold(first, call("list_dir")), hold(gate, say("never"))]
        return ScriptedModel({"": steps}, strict=False)

    limits = {"timeout_s": 60, "max_retries": 0}
    async with opened(model=script(second), limits=limits, on_event=started.append) as rt:
        work = asyncio.create_task(rt.run("Look."))
        await first.reached.wait()
        clock.advance(20)
        clock.jump(86_400)
        clock.stall(3_600)
        first.open()
        await second.reached.wait()
        rt.suspend("for later")
        work.cancel()
        await asyncio.wait([work])
    async with opened(model=script(third), limits=limits) as rt:
        work = asyncio.create_task(rt.resume(started[0].run_id))
        await third.reached.wait()
        clock.advance(39)
        await asyncio.sleep(0)
        assert not work.done()
        clock.advance(2)
        result = await work
    assert (result.status, result.error) == ("timeout", "timeout after 60 s")


async def test_blocked_event_loop_times_out_nothing() -> None:
    clock, told = SystemClock(), list[ClockGap]()
    with clock.watch(told.append):
        async with clock.timeout(1.0):
            await asyncio.sleep(0.01)
            time.sleep(2.0)  # noqa: ASYNC251  What must not be done, done.
            await asyncio.sleep(0.01)
        with pytest.raises(TimeoutError):
            async with clock.timeout(0.05):
                await asyncio.sleep(60)
    (lapse,) = told
    assert lapse.stalled_s > 1.0
    assert lapse.jumped_s == 0.0
