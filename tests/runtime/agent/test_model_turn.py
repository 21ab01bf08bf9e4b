"""Limits: what ends an agent, what it may still say, and what it costs at most."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import retinue
from retinue.config.environment import Environment
from retinue.domain.events import Event, LimitReached, ModelFailed, ModelReplied, TurnStarted
from retinue.domain.messages import (
    AssistantMessage,
    Finish,
    Reply,
    Request,
    ToolCall,
    ToolMessage,
    Usage,
    UserMessage,
)
from retinue.errors import ContextOverflow, ContractError
from retinue.models.scripted.model import (
    ScriptedModel,
    ScriptedReply,
    Step,
    call,
    calls,
    fail,
    hold,
    say,
)
from retinue.runtime.runtime import Runtime
from retinue.testing.clock import FakeClock

Opened = Callable[..., AbstractAsyncContextManager[Runtime]]


def limits(events: list[Event]) -> list[str]:
    return [e.fact.limit for e in events if isinstance(e.fact, LimitReached)]


def last_turns(events: list[Event]) -> list[bool]:
    return [e.fact.last for e in events if isinstance(e.fact, TurnStarted)]


@retinue.tool(effect="read")
async def ping() -> str:
    """Do nothing."""
    return "pong"


def pings(count: int) -> ScriptedReply:
    return calls(*(call("ping") for _ in range(count)), text="Still at it.")


# Tool calls


@pytest.mark.parametrize("effect", ["read", "write"])
async def test_no_more_tools_run_than_allowed(opened: Opened, effect: str) -> None:
    ran: list[int] = []

    @retinue.tool(effect=effect)
    async def work(n: int) -> str:
        """Work."""
        ran.append(n)
        return "worked"

    seen: list[Event] = []
    model = ScriptedModel(
        [calls(*(call("work", n=n) for n in range(20))), say("That is what I have.")]
    )
    async with opened(model=model, tools=[work], mode="auto", on_event=seen.append) as rt:
        result = await rt.spawn("executor", "Work.", tools=("work",), max_tool_calls=3)
    assert ran == [0, 1, 2]
    assert result.usage.tool_calls == 3
    assert len(result.receipts) == 3
    assert (result.status, result.error) == ("budget_exceeded", "max_tool_calls 3 reached")
    assert result.response == "That is what I have."
    assert limits(seen) == ["max_tool_calls"]
    last = model.requests[1]
    assert last.tools == ()
    assert isinstance(last.messages[-1], UserMessage)
    assert last.messages[-1].content == (
        "You have reached your limit (max_tool_calls). No more tools: answer now with what you"
        " have."
    )
    answers = [m.content for m in last.messages if isinstance(m, ToolMessage)]
    assert len(answers) == 20, "every call is answered, or no server would take the conversation"
    assert answers[2].endswith("[no tool calls left]")
    assert set(answers[3:]) == {"[DENIED] No tool calls are left. Answer with what you have."}


async def test_denied_calls_count(opened: Opened) -> None:
    model = ScriptedModel([calls(call("nope"), call("nope"), call("list_dir")), say("Enough.")])
    async with opened(model=model) as rt:
        result = await rt.spawn("researcher", "Try.", max_tool_calls=2)
    assert result.status == "budget_exceeded"
    assert result.usage.tool_calls == 2
    assert result.receipts == ()


async def test_an_agent_that_needs_exactly_its_tool_calls_completes(opened: Opened) -> None:
    model = ScriptedModel([pings(2), pings(1), say("Done.")])
    async with opened(model=model, tools=[ping]) as rt:
        result = await rt.spawn("researcher", "Ping.", tools=("ping",), max_tool_calls=3)
    assert (result.status, result.response, result.usage.tool_calls) == ("completed", "Done.", 3)


async def test_the_model_is_told_when_few_calls_are_left(opened: Opened) -> None:
    model = ScriptedModel([pings(1)] * 5 + [say("Done.")])
    async with opened(model=model, tools=[ping]) as rt:
        await rt.spawn("researcher", "Ping.", tools=("ping",), max_tool_calls=5)
    answers = [m.content for m in model.requests[-1].messages if isinstance(m, ToolMessage)]
    assert answers == [
        "pong",
        "pong\n[3 tool calls left]",
        "pong\n[2 tool calls left]",
        "pong\n[1 tool call left]",
        "pong\n[no tool calls left]",
    ]


# Turns


async def test_the_last_turn_has_no_tools(opened: Opened) -> None:
    seen: list[Event] = []
    model = ScriptedModel([pings(1), pings(1), say("So far, so good.")])
    async with opened(model=model, tools=[ping], on_event=seen.append) as rt:
        result = await rt.spawn("researcher", "Ping.", tools=("ping",), max_turns=3)
    assert (result.status, result.error) == ("budget_exceeded", "max_turns 3 reached")
    assert (result.response, result.usage.turns) == ("So far, so good.", 3)
    assert last_turns(seen) == [False, False, True]
    assert model.requests[-1].tools == ()


async def test_an_agent_that_needs_fewer_turns_completes(opened: Opened) -> None:
    model = ScriptedModel([pings(1), say("Done.")])
    async with opened(model=model, tools=[ping]) as rt:
        result = await rt.spawn("researcher", "Ping.", tools=("ping",), max_turns=3)
    assert result.ok


async def test_one_turn_is_enough_for_an_answer(opened: Opened) -> None:
    async with opened(model=ScriptedModel([say("A title")])) as rt:
        result = await rt.spawn("researcher", "Write a title.", max_turns=1)
    assert (result.status, result.response, result.usage.turns) == ("completed", "A title", 1)


async def test_tool_calls_of_the_last_turn_do_not_run(opened: Opened) -> None:
    model = ScriptedModel([pings(1), pings(4)])
    async with opened(model=model, tools=[ping]) as rt:
        result = await rt.spawn("researcher", "Ping.", tools=("ping",), max_turns=2)
    assert (result.status, result.response) == ("budget_exceeded", "Still at it.")
    assert result.usage.tool_calls == 1


# Context


async def test_old_tool_results_are_masked_when_the_context_is_full(
    opened: Opened, project: Path
) -> None:
    (project / "long.txt").write_text("words and more words\n" * 300)
    reads = [call("read_file", path="long.txt")] * 6
    model = ScriptedModel([*reads, say("Read it.")])
    async with opened(model=model) as rt:
        result = await rt.spawn("researcher", "Read.", max_context_tokens=5_000)
    assert result.ok
    answers = [m.content for m in model.requests[-1].messages if isinstance(m, ToolMessage)]
    masked = [text for text in answers if text.startswith("[masked: ")]
    assert len(answers) == 6
    assert masked
    assert not answers[-1].startswith("[masked: "), "what it just asked for is not masked"
    assert not answers[-2].startswith("[masked: ")
    assert masked[0].endswith(" tokens of an earlier result; call the tool again if needed]")
    for request in model.requests:
        assert len(msgspec.json.encode(request.messages)) / 4 < 6_000


async def test_the_journal_keeps_masked_results(opened: Opened, project: Path) -> None:
    (project / "long.txt").write_text("words and more words\n" * 300)
    seen: list[Event] = []
    model = ScriptedModel([*[call("read_file", path="long.txt")] * 6, say("Read it.")])
    async with opened(model=model, on_event=seen.append) as rt:
        await rt.spawn("researcher", "Read.", max_context_tokens=5_000)
    kept = [e.fact.content for e in seen if e.fact.__struct_config__.tag == "tool.finished"]  # type: ignore[union-attr]
    assert len(kept) == 6
    assert all("words and more words" in text for text in kept)


async def test_a_context_that_stays_too_large_ends_with_a_last_turn(
    opened: Opened, project: Path
) -> None:
    (project / "long.txt").write_text("words and more words\n" * 600)
    seen: list[Event] = []
    thinks = "words and more words\n" * 200
    model = ScriptedModel(
        [calls(call("read_file", path="long.txt"), text=thinks), say("Too much.")]
    )
    async with opened(model=model, on_event=seen.append) as rt:
        result = await rt.spawn("researcher", "Read.", max_context_tokens=1_000)
    assert result.status == "budget_exceeded"
    assert result.error == "max_context_tokens 1,000 reached"
    assert result.response == "Too much."
    assert limits(seen) == ["max_context_tokens"]


# Time


async def test_a_timeout_keeps_the_last_text(opened: Opened, clock: FakeClock) -> None:
    asked, never = asyncio.Event(), asyncio.Event()

    def hang(request: Request) -> Step:
        asked.set()
        return hold(never, say("too late"))

    model = ScriptedModel([pings(1), hang])
    async with opened(model=model, tools=[ping]) as rt:
        job = await rt.start("researcher", "Ping.", tools=("ping",), timeout_s=60.0, max_retries=0)
        await asked.wait()
        clock.advance(59.0)
        await asyncio.sleep(0)
        assert not job.done
        clock.advance(1.0)
        result = await job.result()
    assert (result.status, result.error) == ("timeout", "timeout after 60 s")
    assert result.response == "Still at it."
    assert result.usage.tool_calls == 1
    assert result.usage.duration_s == 60.0


async def test_a_timeout_ends_a_tool_that_hangs(opened: Opened, clock: FakeClock) -> None:
    acting, cancelled = asyncio.Event(), asyncio.Event()

    @retinue.tool(effect="write")
    async def hang() -> str:
        """Hang."""
        acting.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return "never"

    async with opened(model=ScriptedModel([call("hang")]), tools=[hang], mode="auto") as rt:
        job = await rt.start("executor", "Hang.", tools=("hang",), timeout_s=5, max_retries=0)
        await acting.wait()
        clock.advance(5.0)
        result = await job.result()
    assert result.status == "timeout"
    assert result.usage.tool_calls == 1
    assert cancelled.is_set()


# Calls that end without a reply


class Talkative(ScriptedModel):
    """A model that writes, and never ends."""

    def __init__(self, *pieces: str) -> None:
        super().__init__(())
        self._pieces = pieces

    async def reply(self, request: Request, on_text: Callable[[str], None] | None = None) -> Reply:
        assert on_text is not None
        for piece in self._pieces:
            on_text(piece)
        await asyncio.Event().wait()
        raise AssertionError


@pytest.mark.parametrize(
    ("pieces", "tokens"),
    [
        (("字" * 100,), 75),  # Four bytes are a token; a Chinese character has three.
        (("", "", "", "So"), 4),  # A piece without text is a token of a thought or a call.
        ((), 0),
    ],
)
async def test_cancelled_call_is_charged(
    opened: Opened, clock: FakeClock, pieces: tuple[str, ...], tokens: int
) -> None:
    """The prompt is charged as well, whether anything has arrived or not."""
    seen: list[Event] = []
    async with opened(model=Talkative(*pieces), on_event=seen.append) as rt:
        job = await rt.start("researcher", "Go on.", timeout_s=60, max_retries=0)
        await asyncio.sleep(0)
        clock.advance(60.0)
        result = await job.result()
    (failed,) = [event.fact for event in seen if isinstance(event.fact, ModelFailed)]
    assert (failed.error, failed.usage.tokens_out) == ("the call was cancelled", tokens)
    assert failed.usage.tokens_in > 100
    assert result.usage.tokens == failed.usage.tokens


async def test_overflow_in_the_middle_of_a_reply_is_on_record(opened: Opened) -> None:
    """What was charged for it is the sum of what the journal says, also after a resumption."""
    overflow = ContextOverflow("The window is full.")
    overflow.received_tokens = 500
    seen: list[Event] = []
    steps: list[Step] = [pings(1), fail(overflow), say("Done.")]
    async with opened(model=ScriptedModel(steps), tools=[ping], on_event=seen.append) as rt:
        result = await rt.spawn("researcher", "Go on.", tools=("ping",))
    assert result.response == "Done."
    facts = [e.fact for e in seen if isinstance(e.fact, ModelReplied | ModelFailed)]
    assert [fact.usage.tokens_out for fact in facts if isinstance(fact, ModelFailed)] == [500]
    assert result.usage.tokens == sum(fact.usage.tokens for fact in facts)


async def test_overflow_before_the_reply_costs_nothing(opened: Opened) -> None:
    seen: list[Event] = []
    steps: list[Step] = [pings(1), fail(ContextOverflow("The prompt is too long.")), say("Done.")]
    async with opened(model=ScriptedModel(steps), tools=[ping], on_event=seen.append) as rt:
        result = await rt.spawn("researcher", "Go on.", tools=("ping",))
    assert result.response == "Done."
    assert not any(isinstance(event.fact, ModelFailed) for event in seen)


# Tokens


class Honest:
    """A model that counts a token for every few bytes, and never writes more than it may.

    It asks for a tool in each reply until it is given none.
    """

    name = "honest"

    def __init__(self, sizes: list[int], *, bytes_per_token: int) -> None:
        self._sizes = sizes
        self._bytes_per_token = bytes_per_token
        self.billed = 0
        self.asked = 0

    async def reply(self, request: Request, on_text: Callable[[str], None] | None = None) -> Reply:
        size = self._sizes[self.asked % len(self._sizes)]
        self.asked += 1
        if request.max_output_tokens is not None:
            size = min(size, request.max_output_tokens)
        text = "x" * (size * self._bytes_per_token // 2)
        read = sum(len(m.content) for m in request.messages)
        read += sum(len(bytes(t.parameters)) for t in request.tools)
        usage = Usage(read // self._bytes_per_token, 0, size)
        self.billed += usage.billed_tokens
        # A reservation is for concurrent askers; let them come in between.
        await asyncio.sleep(0)
        asking = (ToolCall(f"c{self.asked}", "ping", "{}"),) if request.tools else ()
        finish = Finish.TOOLS if asking else Finish.STOP
        return Reply(message=AssistantMessage(text, asking), usage=usage, finish=finish)

    async def aclose(self) -> None:
        pass


@given(
    sizes=st.lists(st.integers(0, 12_000), min_size=1, max_size=6),
    bytes_per_token=st.integers(4, 8),
    max_tokens=st.integers(1, 40_000),
)
@settings(max_examples=40)
async def test_no_child_exceeds_its_tokens(
    sizes: list[int], bytes_per_token: int, max_tokens: int
) -> None:
    model = Honest(sizes, bytes_per_token=bytes_per_token)
    with TemporaryDirectory() as directory:
        async with retinue.open(
            directory,
            model=model,
            tools=[ping],
            clock=FakeClock(),
            environment=Environment(variables={"HOME": f"{directory}-home"}),
        ) as rt:
            result = await rt.spawn(
                "researcher",
                "Ping.",
                tools=("ping",),
                max_tokens=max_tokens,
                max_context_tokens=100_000,
                max_retries=0,
            )
    assert result.usage.tokens <= max_tokens
    assert result.usage.billed_tokens == model.billed <= 20 * max_tokens
    assert result.status == "budget_exceeded"


async def test_running_out_of_tokens_leaves_a_last_turn(opened: Opened) -> None:
    seen: list[Event] = []
    model = ScriptedModel(
        [
            pings(1).using(900, 100),
            pings(1).using(2_100, 100),
            say("All I have.").using(2_300, 50),
        ]
    )
    async with opened(model=model, tools=[ping], on_event=seen.append) as rt:
        result = await rt.spawn("researcher", "Ping.", tools=("ping",), max_tokens=3_000)
    assert (result.status, result.error) == ("budget_exceeded", "max_tokens 3,000 reached")
    # 2,200 until then, and the last turn, whose prompt is estimated since it has no tools.
    assert result.response == "All I have."
    assert 2_200 < result.usage.tokens < 3_000
    assert result.usage.billed_tokens == 1_000 + 2_200 + 2_350
    assert limits(seen) == ["max_tokens"]


async def test_a_budget_too_small_for_one_request_is_not_spent(opened: Opened) -> None:
    async with opened(model=ScriptedModel([])) as rt:
        result = await rt.spawn("researcher", "Look.", max_tokens=100)
    assert result.status == "budget_exceeded"
    assert result.usage.tokens == 0
    assert result.error is not None
    assert "max_tokens" in result.error
    assert "100" in result.error


async def test_the_reply_length_is_limited_by_the_budget(opened: Opened) -> None:
    model = ScriptedModel([say("ok")])
    async with opened(model=model) as rt:
        await rt.spawn("researcher", "Look.", max_tokens=6_000)
    assert model.requests[0].max_output_tokens is not None
    assert 256 <= model.requests[0].max_output_tokens < 6_000


# Limits that make no sense


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ({"max_tool_calls": 0}, "max_tool_calls must be positive, not 0."),
        ({"max_turns": -1}, "max_turns must be positive, not -1."),
        ({"max_tokens": 0}, "max_tokens must be positive, not 0."),
        ({"max_context_tokens": 0}, "max_context_tokens must be positive, not 0."),
        ({"timeout_s": 4.9}, "timeout_s must be at least 5 seconds, not 4.9."),
        ({"max_cost_usd": 0.0}, "max_cost_usd must be positive, not 0."),
        ({"max_retries": -1}, "max_retries must be 0 or more, not -1."),
    ],
)
async def test_an_invalid_limit_is_named(
    opened: Opened, terms: dict[str, Any], message: str
) -> None:
    async with opened(model=ScriptedModel([])) as rt:
        with pytest.raises(ContractError) as caught:
            await rt.spawn("researcher", "Look.", **terms)
    assert str(caught.value) == message


async def test_a_limit_above_the_parents_is_clamped_and_noted(opened: Opened) -> None:
    seen: list[Event] = []
    budget = retinue.Budget(max_turns=7, max_tokens=20_000)
    async with opened(model=ScriptedModel([say("ok")]), limits=budget, on_event=seen.append) as rt:
        await rt.spawn("researcher", "Look.", max_turns=9, max_tokens=30_000)
        view = retinue.fold(seen)
    assert view.agents["a1"].notes == (
        "max_turns 9 became 7: the parent has no more",
        "max_tokens 30000 became 20000: the parent has no more",
    )


async def test_a_parents_timeout_is_the_reason_of_its_child(
    opened: Opened, clock: FakeClock
) -> None:
    asked, never = asyncio.Event(), asyncio.Event()

    def listen(event: retinue.Event) -> None:
        if event.type == "turn.started" and event.agent_id == "a1":
            asked.set()

    model = ScriptedModel(
        {
            "Lead.": [call("spawn_agent", task="Wait.", role="researcher", timeout_s=3_000)],
            "Wait.": [hold(never, say("never"))],
        },
        strict=False,
    )
    limits = {"timeout_s": 60.0, "max_retries": 0}
    async with opened(model=model, limits=limits, on_event=listen) as rt:
        led = asyncio.create_task(rt.run("Lead."))
        await asked.wait()
        clock.advance(60)
        result = await led
        events = [event async for event in rt.events(result.id)]
    assert result.status == "timeout"
    view = retinue.fold(events)
    assert view.agents["a1"].close_reason == "its parent ran out of time"


async def test_running_out_of_money_leaves_a_last_turn(opened: Opened, tmp_path: Path) -> None:
    settings = tmp_path / ".config" / "retinue"
    settings.mkdir(parents=True)
    (settings / "config.toml").write_text("[prices.scripted]\ninput = 10\noutput = 10\n")
    # It goes on for as long as it has tools.
    step = lambda request: call("list_dir") if request.tools else say("That is all.")  # noqa: E731
    model = ScriptedModel([step] * 20, strict=False)
    async with opened(model=model, limits={"max_cost_usd": 0.08}) as rt:
        result = await rt.spawn("researcher", "Look around.", max_tokens=1_000_000)
    assert result.status == "budget_exceeded"
    assert result.error == "max_cost_usd 0.08 reached"
    assert result.response == "That is all."
    assert result.usage.cost_usd <= 0.08
