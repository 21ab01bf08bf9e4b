"""The watchdog: a silent child is noticed, told, and stopped, and what it had is returned."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import retinue
from retinue.domain.events import Event, MessageReceived, SilenceDetected
from retinue.domain.messages import Reply, Request, ToolMessage
from retinue.models.scripted.model import ScriptedModel, Step, call, calls, hold, say
from retinue.runtime.runtime import Runtime
from retinue.testing.clock import FakeClock

Opened = Callable[..., AbstractAsyncContextManager[Runtime]]
Settings = Callable[[str], None]

ROOT = "at work in the user's project"
ROUND_S = 30.0  # The watchdog looks four times in the 120 s that an agent may be silent.


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


async def passes(clock: FakeClock, seconds: float) -> None:
    """Let time pass, round by round of the watchdog."""
    for _ in range(round(seconds / ROUND_S)):
        await clock.asleep(ROUND_S)
        clock.advance(ROUND_S)
    await clock.asleep(ROUND_S)


def silences(events: list[Event]) -> list[tuple[str, float, bool]]:
    return [
        (e.agent_id, e.fact.quiet_s, e.fact.stopped)
        for e in events
        if isinstance(e.fact, SilenceDetected)
    ]


async def test_silent_child_is_reminded_then_stopped_with_its_last_text(
    opened: Opened, clock: FakeClock
) -> None:
    gate, seen = Gate(), list[Event]()
    model = ScriptedModel(
        [calls(call("list_dir"), text="Half of it."), hold(gate, say("never"))], strict=False
    )
    async with opened(model=model, on_event=seen.append) as rt:
        job = await rt.start("researcher", "Think.", max_retries=0)
        await gate.reached.wait()
        await passes(clock, 90)
        assert silences(seen) == []
        await passes(clock, 30)
        assert silences(seen) == [("a1", 120.0, False)]
        await passes(clock, 120)
        result = await job.result()
    assert silences(seen) == [("a1", 120.0, False), ("a1", 240.0, True)]
    assert (result.status, result.error) == (
        "timeout",
        "stopped after 240 s without a sign of life",
    )
    assert result.response == "Half of it."
    assert result.usage.tool_calls == 1


async def test_reminder_is_delivered_at_the_next_turn(opened: Opened, clock: FakeClock) -> None:
    gate, seen = Gate(), list[Event]()
    model = ScriptedModel([hold(gate, call("list_dir")), say("Here I am.")])
    async with opened(model=model, on_event=seen.append) as rt:
        job = await rt.start("researcher", "Think.")
        await gate.reached.wait()
        await passes(clock, 120)
        gate.open()
        result = await job.result()
    assert result.response == "Here I am."
    told = [(e.fact.source, e.fact.content) for e in seen if isinstance(e.fact, MessageReceived)]
    assert told == [
        (
            "watchdog",
            "You gave no sign of life for 120 seconds. Come to an end soon, with what you have.",
        )
    ]
    assert model.requests[1].messages[-1].content == told[0][1]


async def test_answer_after_a_reminder_ends_the_attempt(opened: Opened, clock: FakeClock) -> None:
    gate = Gate()
    async with opened(model=ScriptedModel([hold(gate, say("Done."))])) as rt:
        job = await rt.start("researcher", "Think.")
        await gate.reached.wait()
        await passes(clock, 120)
        gate.open()
        assert (await job.result()).response == "Done."


async def test_second_silence_is_detected_again(opened: Opened, clock: FakeClock) -> None:
    first, second, seen = Gate(), Gate(), list[Event]()
    model = ScriptedModel([hold(first, call("list_dir")), hold(second, say("Done."))])
    async with opened(model=model, on_event=seen.append) as rt:
        job = await rt.start("researcher", "Think.")
        await first.reached.wait()
        await passes(clock, 120)
        first.open()
        await second.reached.wait()
        await passes(clock, 120)
        second.open()
        assert (await job.result()).ok
    assert silences(seen) == [("a1", 120.0, False)] * 2


class Streaming:
    """A model that says a word whenever it is let."""

    name = "streaming"

    def __init__(self, words: int) -> None:
        self._words = words
        self.gates = [Gate() for _ in range(words)]
        self._then = ScriptedModel([say("Many words.")])

    async def reply(self, request: Request, on_text: Callable[[str], None] | None = None) -> Reply:
        for gate in self.gates:
            await gate.wait()
            if on_text is not None:
                on_text("")  # What a thinking model sends: nothing to show, and a sign of life.
        return await self._then.reply(request, on_text)

    async def aclose(self) -> None:
        pass


async def test_a_streaming_child_is_not_silent(opened: Opened, clock: FakeClock) -> None:
    model, seen = Streaming(4), list[Event]()
    async with opened(model=model, on_event=seen.append) as rt:
        job = await rt.start("researcher", "Talk.", timeout_s=3_000)
        for gate in model.gates:
            await gate.reached.wait()
            await passes(clock, 90)
            gate.open()
        assert (await job.result()).response == "Many words."
    assert silences(seen) == []


async def test_a_parent_that_waits_for_a_busy_child_is_not_silent(
    opened: Opened, clock: FakeClock
) -> None:
    gates, seen = [Gate() for _ in range(4)], list[Event]()
    work: list[Step] = [hold(gate, call("list_dir")) for gate in gates]
    model = ScriptedModel(
        {
            ROOT: [call("spawn_agent", role="researcher", task="Dig"), say("ok")],
            "Dig": [*work, say("A bone.")],
        }
    )
    async with opened(model=model, on_event=seen.append) as rt:
        run = asyncio.create_task(rt.run("Go."))
        for gate in gates:
            await gate.reached.wait()
            await passes(clock, 90)
            gate.open()
        assert (await run).ok
    assert silences(seen) == []


async def test_parent_continues_after_its_silent_child_is_stopped(
    opened: Opened, clock: FakeClock
) -> None:
    gate, seen = Gate(), list[Event]()
    model = ScriptedModel(
        {
            ROOT: [
                call("spawn_agent", role="researcher", task="Dig"),
                say("Hm."),
                say("Then without."),
            ],
            "Dig": [calls(call("list_dir"), text="Half a bone."), hold(gate, say("never"))],
        },
        strict=False,
    )
    async with opened(model=model, on_event=seen.append) as rt:
        run = asyncio.create_task(rt.run("Go."))
        # Two attempts: it is stopped, tries again, and is stopped again.
        for _ in range(2):
            await gate.reached.wait()
            gate.reached.clear()
            await passes(clock, 240)
        result = await run
    assert (result.status, result.response) == ("completed", "Then without.")
    assert {agent for agent, _, _ in silences(seen)} == {"a1"}, "the parent was not the silent one"
    (report,) = (m.content for m in model.requests[-1].messages if isinstance(m, ToolMessage))
    assert report.startswith(
        "[ERROR] timeout: stopped after 240 s without a sign of life\n(a1 researcher: "
    )
    assert "\nHalf a bone.\n" in report
    assert retinue.fold(seen).agents["a1"].attempt == 2


async def test_silence_limit_is_a_setting(
    opened: Opened, clock: FakeClock, settings: Settings
) -> None:
    settings("silence_s = 8\n")
    gate, seen = Gate(), list[Event]()
    model = ScriptedModel([hold(gate, say("never"))], strict=False)
    async with opened(model=model, on_event=seen.append) as rt:
        job = await rt.start("researcher", "Think.", max_retries=0)
        await gate.reached.wait()
        for _ in range(8):
            await clock.asleep(2.0)
            clock.advance(2.0)
        result = await job.result()
    assert result.status == "timeout"
    assert silences(seen) == [("a1", 8.0, False), ("a1", 16.0, True)]
