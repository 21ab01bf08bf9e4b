"""Failures that a retry can help, and those that it cannot: by call, and by attempt."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest

import retinue
from retinue.domain.events import AttemptStarted, Event, ModelFailed
from retinue.domain.messages import QueuedRequest, Reply, Request
from retinue.errors import (
    ContextOverflow,
    EmptyReply,
    ModelError,
    ProviderError,
    RateLimited,
    RunSuspended,
)
from retinue.models.scripted.model import ScriptedModel, Step, call, calls, fail, hold, say
from retinue.runtime.run.runs import MESSAGE_POLL_S
from retinue.runtime.runtime import Runtime
from retinue.testing.clock import FakeClock

Opened = Callable[..., AbstractAsyncContextManager[Runtime]]

BUSY = ProviderError("The server failed (503).", retryable=True)


def failures(events: list[Event]) -> list[tuple[str, float | None]]:
    return [(e.fact.error, e.fact.retry_in_s) for e in events if isinstance(e.fact, ModelFailed)]


def attempts(events: list[Event]) -> list[tuple[int, int, str]]:
    found = [e.fact for e in events if isinstance(e.fact, AttemptStarted)]
    return [(fact.number, fact.of, fact.because) for fact in found]


async def let_pass(clock: FakeClock, *waits: float) -> None:
    """Let these waits between tries pass, one after the other."""
    for wait in waits:
        await clock.asleep(wait)
        clock.advance(wait)


# A call


async def test_a_passing_failure_is_tried_again_with_growing_waits(
    opened: Opened, clock: FakeClock
) -> None:
    seen: list[Event] = []
    model = ScriptedModel([fail(BUSY), fail(BUSY), fail(BUSY), say("Here.")])
    async with opened(model=model, on_event=seen.append) as rt:
        job = await rt.start("researcher", "Look.")
        await let_pass(clock, 0.25, 0.5, 1.0)
        result = await job.result()
    assert (result.response, result.attempts, result.usage.turns) == ("Here.", 1, 1)
    assert failures(seen) == [(str(BUSY), 0.25), (str(BUSY), 0.5), (str(BUSY), 1.0)]


async def test_retry_after_of_a_rate_limit_is_obeyed(opened: Opened, clock: FakeClock) -> None:
    model = ScriptedModel([fail(RateLimited("Slow down.", retry_after_s=17.0)), say("Here.")])
    async with opened(model=model) as rt:
        job = await rt.start("researcher", "Look.")
        await clock.asleep(17.0)
        clock.advance(16.9)
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(model.requests) == 1
        clock.advance(0.1)
        result = await job.result()
    assert result.ok


async def test_no_wait_is_longer_than_a_minute(opened: Opened, clock: FakeClock) -> None:
    model = ScriptedModel([fail(RateLimited("Come tomorrow.", retry_after_s=86_400)), say("Here.")])
    async with opened(model=model) as rt:
        job = await rt.start("researcher", "Look.")
        await let_pass(clock, 60.0)
        assert (await job.result()).ok


async def test_last_server_error_is_why_the_run_is_suspended(
    opened: Opened, clock: FakeClock
) -> None:
    seen: list[Event] = []
    model = ScriptedModel([fail(BUSY)] * 4)
    async with opened(model=model, on_event=seen.append) as rt:
        job = await rt.start("researcher", "Look.")
        await let_pass(clock, 0.25, 0.5, 1.0)
        with pytest.raises(RunSuspended, match=re.escape(str(BUSY))):
            await job.result()
    assert [wait for _, wait in failures(seen)] == [0.25, 0.5, 1.0, None]


async def test_a_server_that_keeps_sending_nothing_fails_the_agent(
    opened: Opened, clock: FakeClock
) -> None:
    """An empty reply may be the answer to this prompt alone."""
    seen: list[Event] = []
    empty = EmptyReply("The server sent an empty reply.", retryable=True)
    model = ScriptedModel([fail(empty)] * 8)
    async with opened(model=model, on_event=seen.append) as rt:
        job = await rt.start("researcher", "Look.")
        await let_pass(clock, 0.25, 0.5, 1.0, 0.25, 0.5, 1.0)
        result = await job.result()
    assert (result.status, result.error, result.attempts) == ("error", str(empty), 2)
    assert [wait for _, wait in failures(seen)] == [0.25, 0.5, 1.0, None] * 2


@pytest.mark.parametrize(
    "error",
    [ProviderError("The API key was refused (401)."), ModelError("No.")],
    ids=lambda e: type(e).__name__,
)
async def test_a_lasting_failure_is_not_tried_again(opened: Opened, error: ModelError) -> None:
    seen: list[Event] = []
    async with opened(model=ScriptedModel([fail(error)]), on_event=seen.append) as rt:
        result = await rt.spawn("researcher", "Look.")
    assert (result.status, result.error, result.attempts) == ("error", str(error), 1)
    assert failures(seen) == [(str(error), None)]


OVERFLOW = ContextOverflow("The prompt is larger than the context window of 'm'.")


async def test_context_overflow_is_a_limit_not_a_failure(opened: Opened) -> None:
    model = ScriptedModel([fail(OVERFLOW)])
    async with opened(model=model) as rt:
        result = await rt.spawn("researcher", "Look.")
    assert (result.status, result.error) == ("budget_exceeded", str(OVERFLOW))
    assert (result.attempts, result.usage.turns) == (1, 0)


async def test_context_overflow_leaves_a_last_turn(opened: Opened) -> None:
    # The last prompt is made shorter until the server takes it.
    model = ScriptedModel(
        [
            calls(call("list_dir"), text="Noted. " * 200),
            fail(OVERFLOW),
            fail(OVERFLOW),
            say("Half."),
        ]
    )
    async with opened(model=model) as rt:
        result = await rt.spawn("researcher", "Look.")
    assert (result.status, result.response) == ("budget_exceeded", "Half.")
    assert (result.attempts, result.usage.tool_calls) == (1, 1)
    sizes = [sum(len(m.content) for m in request.messages) for request in model.requests]
    assert sizes[3] < sizes[2]
    assert model.requests[3].tools == ()


async def test_failed_call_costs_and_reserves_nothing(opened: Opened, clock: FakeClock) -> None:
    model = ScriptedModel([fail(BUSY), say("Here.").using(500, 10)])
    async with opened(model=model) as rt:
        # Two promises of the worst case do not fit into this budget side by side.
        job = await rt.start("researcher", "Look.", max_tokens=4_000)
        await let_pass(clock, 0.25)
        result = await job.result()
    assert result.ok
    assert (result.usage.tokens, result.usage.turns) == (510, 1)


async def test_what_was_kept_for_the_last_turn_is_returned_at_the_end(opened: Opened) -> None:
    look = [call("list_dir", path=".").using(500, 20), say("Seen.").using(600, 20)]
    model = ScriptedModel({"": look})
    async with opened(model=model, limits={"max_tokens": 15_000}, cache=False) as rt:
        tasks = [retinue.Task("researcher", f"Look {n}.", max_tokens=5_000) for n in range(10)]
        results = await rt.fan_out(tasks, max_concurrent=1)
    assert [result.error for result in results] == [None] * 10


# An attempt


async def test_a_timeout_and_then_success_are_both_on_record(
    opened: Opened, clock: FakeClock
) -> None:
    asked, never, seen = asyncio.Event(), asyncio.Event(), list[Event]()

    def hang(request: Request) -> Step:
        asked.set()
        return hold(never, say("too late"))

    model = ScriptedModel([call("list_dir"), hang, say("Second try.")])
    async with opened(model=model, on_event=seen.append) as rt:
        job = await rt.start("researcher", "Look.", timeout_s=30)
        await asked.wait()
        clock.advance(30)
        result = await job.result()
    assert (result.status, result.response, result.attempts) == ("completed", "Second try.", 2)
    assert attempts(seen) == [(1, 2, ""), (2, 2, "timeout after 30 s")]
    assert [event.attempt for event in seen if event.type == "turn.started"] == [1, 1, 2]
    again = model.requests[-1].messages
    assert len(again) == 2, "an attempt begins from an empty conversation"
    assert again[1].content.endswith("An earlier attempt ended: timeout after 30 s")


async def test_each_attempt_may_time_out(opened: Opened, clock: FakeClock) -> None:
    asked: asyncio.Queue[None] = asyncio.Queue()
    never = asyncio.Event()

    def hang(request: Request) -> Step:
        asked.put_nowait(None)
        return hold(never, say("too late"))

    async with opened(model=ScriptedModel([hang] * 3)) as rt:
        job = await rt.start("researcher", "Look.", timeout_s=30, max_retries=2)
        for _ in range(3):
            await asked.get()
            clock.advance(30)
        result = await job.result()
    assert (result.status, result.attempts, result.usage.duration_s) == ("timeout", 3, 90.0)


async def test_the_text_of_a_reply_that_timed_out_is_kept(opened: Opened, clock: FakeClock) -> None:
    asked = asyncio.Event()

    def stall(request: Request) -> Step:
        asked.set()
        return say("Half a sentence.").after(9_999)

    async with opened(model=ScriptedModel([call("list_dir"), stall])) as rt:
        job = await rt.start("researcher", "Look.", timeout_s=30, max_retries=0)
        await asked.wait()
        clock.advance(30)
        result = await job.result()
    assert (result.status, result.response) == ("timeout", "Half")


async def test_no_retries_means_one_attempt(opened: Opened, clock: FakeClock) -> None:
    model = ScriptedModel([fail(EmptyReply("The server sent nothing.", retryable=True))] * 4)
    async with opened(model=model) as rt:
        job = await rt.start("researcher", "Look.", max_retries=0)
        await let_pass(clock, 0.25, 0.5, 1.0)
        result = await job.result()
    assert (result.status, result.attempts) == ("error", 1)


# A model that breaks its promise to raise nothing but ModelError


class Broken:
    name = "broken"

    async def reply(self, request: Request, on_text: Callable[[str], None] | None = None) -> Reply:
        raise TimeoutError("a bug of the adapter")

    async def aclose(self) -> None:
        pass


async def test_broken_model_fails_only_its_agent(opened: Opened) -> None:
    async with opened(model=Broken()) as rt:
        one, two = await rt.fan_out([("researcher", "a"), ("researcher", "b")])
    for result in (one, two):
        assert (result.status, result.attempts) == ("error", 1)
        assert result.error == "broken broke: TimeoutError: a bug of the adapter"


# A model that holds the next try back itself


class Held:
    """Fails again and again, and says that it will see to the wait."""

    name = "held"

    def __init__(self, times: int) -> None:
        self.left = times
        self.requests: list[Request] = []

    async def reply(self, request: Request, on_text: Callable[[str], None] | None = None) -> Reply:
        self.requests.append(request)
        if self.left:
            self.left -= 1
            error = RateLimited("Later.", retry_after_s=2.0 if self.left else None)
            error.held = True
            raise error
        return await ScriptedModel([say("Here.")]).reply(request, on_text)

    async def aclose(self) -> None:
        pass


async def test_delay_by_the_model_does_not_count_as_a_retry(
    opened: Opened, clock: FakeClock
) -> None:
    seen: list[Event] = []
    model = Held(10)
    async with opened(model=model, on_event=seen.append) as rt:
        result = await rt.spawn("researcher", "Look.")
    assert (result.response, result.attempts, result.usage.turns) == ("Here.", 1, 1)
    assert set(clock.sleeps) <= {30.0, MESSAGE_POLL_S}, "only who watches and who listens slept"
    assert failures(seen) == [("Later.", 2.0)] * 9 + [("Later.", 0.0)]
    # It is the same request each time, which keeps its place in the queue.
    assert all(request == model.requests[0] for request in model.requests)
    (request, *_) = model.requests
    assert isinstance(request, QueuedRequest)
    assert (request.queue_key, request.asked_at) == (result.run_id, 0.0)


async def test_root_does_not_wait_for_requests_of_its_children(opened: Opened) -> None:
    model = ScriptedModel(
        {
            "Lead.": [
                call("spawn_agent", role="researcher", task="One.", background=True),
                call("spawn_agent", role="researcher", task="Two.", background=True),
                call("spawn_await"),
                say("Done."),
            ],
            "One.": [say("1")],
            "Two.": [say("2")],
        }
    )
    async with opened(model=model) as rt:
        run_id = (await rt.run("Lead.")).run_id
    queued = [request for request in model.requests if isinstance(request, QueuedRequest)]
    lanes = {request.agent_path: request.queue_key for request in queued}
    assert lanes.pop("root") == f"{run_id} root"
    assert len(lanes) == 2
    assert set(lanes.values()) == {run_id}
