"""What turns count, what they leave for the last one, and servers that do not keep to the rules."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

import retinue
from retinue.domain.agent_state import CUT_OFF
from retinue.domain.events import Event, LimitReached, ModelFailed, ModelReplied
from retinue.domain.messages import (
    AssistantMessage,
    Finish,
    Reply,
    Request,
    ToolCall,
    Usage,
    UserMessage,
)
from retinue.errors import ContextOverflow, ModelError, RunSuspended
from retinue.models.routing.concurrency import INITIAL_LIMIT
from retinue.models.scripted.model import (
    ScriptedModel,
    ScriptedReply,
    Step,
    call,
    calls,
    fail,
    raw_call,
    say,
)
from retinue.runtime.runtime import Runtime
from retinue.testing.clock import FakeClock
from retinue.testing.server import (
    ModelServer,
    Received,
    Response,
    ResponseEnding,
    chunk,
    events,
    streamed,
)

Opened = Callable[..., AbstractAsyncContextManager[Runtime]]


@retinue.tool(effect="read")
async def read(size: int) -> str:
    """Read so many bytes."""
    return "line of text\n" * (size // 13)


def size_of(request: Request) -> int:
    """What the servers here count: a byte is a token, which is the most that any server counts."""
    size = sum(len(bytes(t.parameters)) + len(t.description) + len(t.name) for t in request.tools)
    for message in request.messages:
        size += len(message.content.encode())
        if isinstance(message, AssistantMessage):
            size += sum(len(c.name) + len(c.arguments) for c in message.calls)
    return size


class Server:
    """A model that reads until it has no tools any more, behind a server with a small window.

    A prompt larger than the window is refused, as is one that leaves no room for the reply. Every
    reply has some text, which must not be lost.
    """

    name = "small"

    def __init__(self, window: int, *, bytes_per_token: int, size: int, turns: int = 30) -> None:
        self.window = window
        self.bytes_per_token = bytes_per_token
        self.size = size
        self.turns = turns
        self.refused = 0
        self.billed = 0

    async def reply(self, request: Request, on_text: Callable[[str], None] | None = None) -> Reply:
        prompt = size_of(request) // self.bytes_per_token
        if prompt + 16 > self.window:
            self.refused += 1
            raise ContextOverflow(f"The prompt is larger than the context window {self.window}.")
        self.turns -= 1
        wanted: tuple[ToolCall, ...] = ()
        if request.tools and self.turns > 0:
            wanted = (ToolCall(f"c{self.turns}", "read", f'{{"size": {self.size}}}'),)
        text = f"Noted {self.turns}."
        usage = Usage(prompt, 0, 12)
        self.billed += usage.billed_tokens
        finish = Finish.TOOLS if wanted else Finish.STOP
        return Reply(message=AssistantMessage(text, wanted), usage=usage, finish=finish)

    async def aclose(self) -> None:
        pass


# Each token once


async def test_child_counts_each_token_once(opened: Opened) -> None:
    seen: list[Event] = []
    model = Server(200_000, bytes_per_token=4, size=20_000, turns=7)
    async with opened(model=model, tools=[read], on_event=seen.append) as rt:
        result = await rt.spawn("researcher", "Read.", tools=("read",), max_context_tokens=100_000)
    assert result.ok
    replies = [event.fact for event in seen if isinstance(event.fact, ModelReplied)]
    # What the last prompt and the last reply hold is all that was ever read and written.
    last = replies[-1].usage
    assert result.usage.tokens == pytest.approx(last.billed_tokens, rel=0.02)
    assert result.usage.billed_tokens == model.billed > 3 * result.usage.tokens


async def test_retry_counts_again_and_session_starts_at_zero(opened: Opened) -> None:
    first = [call("read", size=4_000).using(1_000, 10), say("Noted.").using(2_010, 10)]
    model = ScriptedModel([*first, say("Again.").using(2_100, 5)])
    async with opened(model=model, tools=[read]) as rt:
        one = await rt.run("Read.")
        two = await rt.run("And now?", session=one.run_id)
    assert one.usage.tokens == 2_020
    assert 5 < two.usage.tokens < 1_500
    assert two.usage.billed_tokens == 2_105


class Gone(ModelError):
    @property
    def endpoint_failed(self) -> bool:
        return True


async def test_resumed_run_has_both_ledgers(opened: Opened, project: Path) -> None:
    seen: list[Event] = []
    steps: list[Step] = [
        call("read", size=4_000).using(1_000, 10),
        call("read", size=4_000).using(2_030, 10),
        fail(Gone("The server is gone.")),
    ]
    async with opened(model=ScriptedModel(steps), tools=[read], on_event=seen.append) as rt:
        with suppress(RunSuspended):
            await rt.run("Read.")
    usage = retinue.fold(seen).usage
    assert (usage.tokens, usage.billed_tokens) == (2_040, 3_050)
    async with opened(model=ScriptedModel([say("Done.").using(3_060, 10)]), tools=[read]) as rt:
        two = await rt.resume(seen[0].run_id)
    assert (two.usage.tokens, two.usage.billed_tokens) == (3_070, 3_050 + 3_070)


# The last turn


@pytest.mark.parametrize("window", [2_048, 3_000, 4_096, 6_144, 8_192, 16_384, 32_768, 65_536])
@pytest.mark.parametrize("bytes_per_token", [2, 4])
@pytest.mark.parametrize("limits", [{}, {"max_tokens": 6_000}, {"max_tool_calls": 4}], ids=str)
async def test_no_run_ends_without_its_text(
    opened: Opened, window: int, bytes_per_token: int, limits: dict[str, Any]
) -> None:
    model = Server(window, bytes_per_token=bytes_per_token, size=window)
    context = window - min(8_192, window // 4)
    defaults = {"max_context_tokens": context, "max_tool_calls": 100, "max_turns": 20}
    async with opened(model=model, tools=[read]) as rt:
        result = await rt.spawn(
            "researcher",
            "Read.",
            tools=("read",),
            **(defaults | limits),
        )
    assert result.status in ("completed", "budget_exceeded")
    assert result.response.startswith("Noted")
    assert result.error is None or result.error.endswith(" reached")
    assert result.usage.tokens <= limits.get("max_tokens", 65_536)


@pytest.mark.parametrize("max_cost_usd", [0.02, 0.03, 0.05, 0.08, 0.13, 0.21])
@pytest.mark.parametrize("size", [2_000, 8_000])
async def test_no_run_without_money_ends_without_its_text(
    opened: Opened, settings: Callable[[str], None], max_cost_usd: float, size: int
) -> None:
    settings("[prices.small]\ninput = 3\noutput = 15\n")
    model = Server(200_000, bytes_per_token=4, size=size, turns=100)
    seen: list[Event] = []
    async with opened(model=model, tools=[read], on_event=seen.append) as rt:
        result = await rt.spawn(
            "researcher", "Read.", tools=("read",), max_cost_usd=max_cost_usd, max_turns=100,
            max_tool_calls=100, max_tokens=200_000, max_context_tokens=200_000,
        )  # fmt: skip
    assert result.error == f"max_cost_usd {max_cost_usd} reached"
    assert result.response.startswith("Noted")
    assert 0 < result.usage.cost_usd <= max_cost_usd
    # The limit was noticed before the last turn, and that was made without tools.
    assert [event.fact.limit for event in seen if isinstance(event.fact, LimitReached)] == [
        "max_cost_usd"
    ]


async def test_window_smaller_than_announced(opened: Opened) -> None:
    model = Server(6_144, bytes_per_token=4, size=8_000)
    async with opened(model=model, tools=[read]) as rt:
        result = await rt.spawn(
            "researcher", "Read.", tools=("read",), max_context_tokens=30_000, max_turns=10
        )
    assert model.refused
    assert result.response.startswith("Noted")


async def test_siblings_leave_room_for_last_turns(opened: Opened) -> None:
    model = Server(100_000, bytes_per_token=4, size=4_000, turns=1_000)
    async with opened(model=model, tools=[read], limits={"max_tokens": 60_000}) as rt:
        tasks = [
            retinue.Task("researcher", f"Read {n}.", tools=("read",), max_tool_calls=100)
            for n in range(6)
        ]
        results = await rt.fan_out(tasks, max_concurrent=6)
    assert sum(result.usage.tokens for result in results) <= 60_000
    for result in results:
        assert (result.status, result.error) == ("budget_exceeded", "max_tokens 60,000 reached")
        assert result.response.startswith("Noted")


async def test_every_budget_above_the_smallest_works(opened: Opened) -> None:
    model = ScriptedModel({"": [say("A title.")]})
    async with opened(model=model, cache=False) as rt:
        for max_tokens in range(1_700, 5_200, 250):
            result = await rt.spawn("researcher", "A title?", max_tokens=max_tokens)
            assert result.ok, (max_tokens, result.error)


async def test_smallest_budget_is_named_and_works(opened: Opened) -> None:
    async with opened(model=ScriptedModel([])) as rt:
        result = await rt.spawn("researcher", "Look.", max_tokens=500)
    assert result.status == "budget_exceeded"
    assert result.error is not None
    assert result.error.startswith("max_tokens 500 is too small: with a first prompt of about ")
    needed = int(result.error.split()[-1].rstrip(".").replace(",", ""))
    async with opened(model=ScriptedModel([say("Seen.")])) as rt:
        assert (await rt.spawn("researcher", "Look.", max_tokens=needed)).ok
        result = await rt.spawn("researcher", "Look!", max_tokens=needed - 1)
    assert result.error is not None
    assert result.error.endswith(f"needs {needed:,}.")


# Replies that break off, and bills that are too high


async def test_replies_that_break_off_are_billed(opened: Opened, clock: FakeClock) -> None:
    seen: list[Event] = []
    dropped = Response(body=events(chunk({"content": "word " * 80})), ending=ResponseEnding.DROP)
    whole = events(
        chunk({"content": "Done."}),
        chunk({}, finish_reason="stop"),
        {"choices": [], "usage": {"prompt_tokens": 900, "completion_tokens": 2}},
    )
    async with ModelServer([dropped, dropped, dropped, Response(body=whole)]) as server:
        model = f"openai:m@{server.base_url}"
        async with opened(model=model, on_event=seen.append) as rt:
            job = asyncio.create_task(rt.spawn("researcher", "Look."))
            while not job.done():
                clock.advance(1.0)
                await asyncio.sleep(0.01)
            result = await job
    failed = [event.fact for event in seen if isinstance(event.fact, ModelFailed)]
    assert [fact.usage.tokens for fact in failed] == [100] * 3
    assert all(fact.usage.estimated and fact.usage.tokens_in > 200 for fact in failed)
    assert result.usage.tokens == 300 + 902
    billed = sum(fact.usage.billed_tokens for fact in failed)
    assert result.usage.billed_tokens == billed + 902


class Overcharging:
    """A server that reports far more tokens than any prompt of that size has."""

    name = "overcharging"

    def __init__(self, usage: Usage) -> None:
        self.usage = usage
        self.asked = 0

    async def reply(self, request: Request, on_text: Callable[[str], None] | None = None) -> Reply:
        self.asked += 1
        await asyncio.sleep(0)
        return Reply(message=AssistantMessage("Yes."), usage=self.usage, finish=Finish.STOP)

    async def aclose(self) -> None:
        pass


@pytest.mark.parametrize("usage", [Usage(100_000, 0, 500), Usage(500, 0, 100_000)])
async def test_server_that_overcharges_is_stopped_at_the_limit(
    opened: Opened, usage: Usage
) -> None:
    model = Overcharging(usage)
    async with opened(model=model, limits={"max_tokens": 150_000}, cache=False) as rt:
        tasks = [("researcher", f"Look {n}.") for n in range(14)]
        results = await rt.fan_out(tasks, max_concurrent=2)
    # Two calls were in flight before the first bill; none was made after it.
    assert model.asked == 2
    assert {result.status for result in results[2:]} == {"budget_exceeded"}


@pytest.mark.parametrize("usage", [(700_000, 500), (500, 700_000)])
async def test_queued_calls_are_not_sent_after_such_a_bill(
    opened: Opened, usage: tuple[int, int]
) -> None:
    """All calls have reserved before the first bill, and some wait for a slot."""
    begun, reserved = asyncio.Event(), asyncio.Event()

    def answer(_: Received) -> Response:
        if len(server.requests) == INITIAL_LIMIT:
            begun.set()
        return msgspec.structs.replace(streamed(say("Yes.").using(*usage)), gate=reserved)

    async with ModelServer(answer) as server:
        model, limits = f"openai:m@{server.base_url}", {"max_tokens": 1_000_000}
        async with opened(model=model, limits=limits, cache=False) as rt:
            short = retinue.Sampling(max_output_tokens=500)
            tasks = [retinue.Task("researcher", f"Look {n}.", sampling=short) for n in range(14)]
            fan_out = asyncio.create_task(rt.fan_out(tasks, max_concurrent=14))
            await begun.wait()
            reserved.set()
            results = await fan_out
    assert [result.ok for result in results].count(True) == len(server.requests) == INITIAL_LIMIT
    assert {r.status for r in results if not r.ok} == {"budget_exceeded"}


async def test_fan_out_without_money_is_out_of_budget(
    opened: Opened, settings: Callable[[str], None]
) -> None:
    settings("[prices.overcharging]\ninput = 3\noutput = 3\n")
    model = Overcharging(Usage(500_000, 0, 10))
    async with opened(model=model, limits={"max_cost_usd": 0.3}, cache=False) as rt:
        results = await rt.fan_out(
            [("researcher", f"Look {n}.") for n in range(4)], max_concurrent=1
        )
    assert model.asked == 1
    assert [result.status for result in results] == ["completed", *["budget_exceeded"] * 3]


@pytest.mark.parametrize(
    "limit",
    [{"max_cost_usd": 0.27}, {"max_billed_tokens": 90_000}, {"max_tokens": 90_000}],
    ids=str,
)
async def test_what_a_server_really_charges_is_reserved_after_its_first_bill(
    opened: Opened, settings: Callable[[str], None], limit: dict[str, Any]
) -> None:
    """About twenty times the prompt, so that each call costs $0.06."""
    settings("[prices.overcharging]\ninput = 3\noutput = 3\n")
    model = Overcharging(Usage(20_000, 0, 10))
    async with opened(model=model, limits=limit, cache=False) as rt:
        first = await rt.fan_out([("researcher", "Look.")])
        others = [("researcher", f"Look {n}.") for n in range(14)]
        results = [*first, *await rt.fan_out(others, max_concurrent=6)]
    done = [result for result in results if result.ok]
    assert 2 <= len(done) == model.asked
    assert sum(result.usage.cost_usd for result in results) <= 0.27
    assert {result.status for result in results} == {"completed", "budget_exceeded"}


async def test_billed_tokens_are_limited(opened: Opened) -> None:
    model = Server(100_000, bytes_per_token=4, size=4_000, turns=1_000)
    async with opened(model=model, tools=[read]) as rt:
        result = await rt.spawn(
            "researcher",
            "Read.",
            tools=("read",),
            max_tool_calls=100,
            max_billed_tokens=30_000,
            max_context_tokens=100_000,
        )
    assert (result.status, result.error) == (
        "budget_exceeded",
        "max_billed_tokens 30,000 reached",
    )
    assert model.billed == result.usage.billed_tokens <= 30_000
    assert result.response.startswith("Noted")


# Long replies


def cut_off(text: str) -> ScriptedReply:
    return say(text, finish=Finish.LENGTH)


async def test_reply_that_is_too_long_is_continued(opened: Opened) -> None:
    model = ScriptedModel([cut_off("One, tw"), cut_off("o, thr"), say("ee.")])
    async with opened(model=model) as rt:
        result = await rt.spawn("researcher", "Count.", max_tokens=None)
    assert (result.status, result.response, result.notes) == ("completed", "One, two, three.", ())
    assert [r.max_output_tokens for r in model.requests] == [8_192, 16_384, 32_768]
    assert isinstance(asked := model.requests[1].messages[-1], UserMessage)
    assert asked.content.startswith("Your answer was cut off")


async def test_reply_that_cannot_be_continued_has_a_note(opened: Opened) -> None:
    model = ScriptedModel([cut_off("One, tw")])
    sampling = retinue.Sampling(max_output_tokens=16)
    async with opened(model=model) as rt:
        result = await rt.spawn("researcher", "Count.", sampling=sampling)
    assert (result.status, result.response, result.notes) == ("completed", "One, tw", (CUT_OFF,))
    assert model.requests[0].max_output_tokens == 16


async def test_call_that_was_cut_off_is_made_again_with_more_room(opened: Opened) -> None:
    half = msgspec.structs.replace(call("read", size=40), finish=Finish.LENGTH)
    model = ScriptedModel([half, call("read", size=40), say("Done.")])
    async with opened(model=model, tools=[read]) as rt:
        result = await rt.spawn("researcher", "Read.", tools=("read",))
    assert result.ok
    assert [r.max_output_tokens for r in model.requests] == [8_192, 16_384, 16_384]


async def test_calls_that_are_missing_from_a_cut_reply_are_made_next(opened: Opened) -> None:
    def spawn(*names: str) -> list[ScriptedReply]:
        return [call("spawn_agent", role="researcher", task=f"Count {name}.") for name in names]

    half = raw_call("spawn_agent", '{"role": "researcher", "task": "Count the her')
    cut = msgspec.structs.replace(calls(*spawn("cats", "dogs"), half), finish=Finish.LENGTH)
    lead = [cut, calls(*spawn("herons", "owls")), say("All are counted.")]
    model = ScriptedModel({"Count": [say("Some.")], "": lead})
    async with opened(model=model) as rt:
        result = await rt.run("Have all animals counted.")
    assert (result.status, result.children) == ("completed", 4)
    leads = [r for r in model.requests if "animals" in r.messages[1].content]
    assert [r.max_output_tokens for r in leads] == [8_192, 16_384, 16_384]
    *_, answered, asked = leads[1].messages
    assert "[ERROR]" in answered.content
    assert isinstance(asked, UserMessage)
    assert asked.content.startswith("Your reply was cut off")
    assert "in parts" not in asked.content


async def test_calls_that_are_too_long_for_any_reply_are_made_in_parts(opened: Opened) -> None:
    half = msgspec.structs.replace(raw_call("read", '{"si'), finish=Finish.LENGTH)
    model = ScriptedModel([half, call("read", size=40), say("Done.")])
    sampling = retinue.Sampling(max_output_tokens=16)
    async with opened(model=model, tools=[read]) as rt:
        result = await rt.spawn("researcher", "Read.", tools=("read",), sampling=sampling)
    assert result.ok
    assert "write large contents in parts" in model.requests[1].messages[-1].content


async def test_one_line_answers_reserve_what_they_need(opened: Opened) -> None:
    model = ScriptedModel([calls(call("read", size=100), text="Hm."), say("Yes.")])
    sampling = retinue.Sampling(max_output_tokens=16)
    async with opened(model=model, tools=[read]) as rt:
        result = await rt.spawn(
            "researcher", "Is it so?", tools=("read",), sampling=sampling, max_tokens=900
        )
    assert (result.status, result.response) == ("completed", "Yes.")
    assert all(request.max_output_tokens == 16 for request in model.requests)
