"""Windows: old observations are masked, then all is summed up; the journal keeps the originals."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

import retinue
from retinue.domain.events import ContextCompacted, Event, LimitReached, ToolFinished
from retinue.domain.messages import AssistantMessage, Request, ToolMessage, UserMessage
from retinue.models.scripted.model import ScriptedModel, Step, call, calls, say
from retinue.runtime.runtime import Runtime

Opened = Callable[..., AbstractAsyncContextManager[Runtime]]


@retinue.tool(effect="read")
async def page(number: int) -> str:
    """A long page."""
    return f"{number} " * 2_000


def compactions(events: list[Event]) -> list[tuple[int, int]]:
    facts = [e.fact for e in events if isinstance(e.fact, ContextCompacted)]
    return [(fact.masked, fact.dropped) for fact in facts if fact.longest is None]


async def work(opened: Opened, who: str, script: list[Step], seen: list[Event]) -> ScriptedModel:
    model = ScriptedModel(script)
    # The parent's tools take more of it.
    limits: dict[str, Any] = {"max_context_tokens": 4_750 if who == "parent" else 3_500}
    async with opened(model=model, tools=[page], limits=limits, on_event=seen.append) as rt:
        if who == "parent":
            assert (await rt.run("Read.")).ok
        else:
            assert (await rt.spawn("researcher", "Read.", tools=("page",), **limits)).ok
    return model


@pytest.mark.parametrize("who", ["parent", "child"])
async def test_old_tool_answers_are_masked(opened: Opened, who: str) -> None:
    seen: list[Event] = []
    reads: list[Step] = [call("page", number=n) for n in range(1, 7)]
    model = await work(opened, who, [*reads, say("Read.")], seen)
    answers = [m.content for m in model.requests[-1].messages if isinstance(m, ToolMessage)]
    masked = [text.startswith("[masked: 1,000 tokens of an earlier result; ") for text in answers]
    assert masked[0]
    assert masked[-2:] == [False, False], "those it is about to use are whole"
    assert compactions(seen)
    assert all(dropped == 0 for _, dropped in compactions(seen))
    kept = [e.fact.content for e in seen if isinstance(e.fact, ToolFinished)]
    assert kept == [f"{n} " * 2_000 for n in range(1, 7)], "the journal has all of it"


@pytest.mark.parametrize("who", ["parent", "child"])
async def test_conversation_is_summarized_when_masking_is_not_enough(
    opened: Opened, who: str
) -> None:
    seen: list[Event] = []

    def sum_up(request: Request) -> Step:
        assert request.messages[-1].content.startswith("The conversation is too long to go on.")
        assert request.tools == ()
        return say("I read pages 1 to 4; go on with 5.")

    def go_on(request: Request) -> Step:
        *_, summary = request.messages
        assert len(request.messages) == 3
        assert isinstance(summary, UserMessage)
        assert summary.content.endswith("I read pages 1 to 4; go on with 5.")
        assert request.messages[1].content.startswith("Read.")
        return call("page", number=5)

    long = calls(*(call("page", number=n) for n in (1, 2)), text="x" * 4_000)
    script: list[Step] = [long, calls(*(call("page", number=n) for n in (3, 4)), text="x" * 6_000)]
    model = await work(opened, who, [*script, sum_up, go_on, say("Read.")], seen)
    assert [dropped for _, dropped in compactions(seen)][-1] > 0
    summary = next(e.fact for e in seen if isinstance(e.fact, ContextCompacted) and e.fact.dropped)
    assert summary.content == "I read pages 1 to 4; go on with 5."
    kept = [e.fact.content for e in seen if isinstance(e.fact, ToolFinished)]
    assert len(kept) == 5
    last = model.requests[-1].messages
    assert sum(isinstance(message, AssistantMessage) for message in last) == 1


async def test_prompt_that_cannot_shrink_reaches_the_context_limit(opened: Opened) -> None:
    seen: list[Event] = []
    pages = calls(call("page", number=1), call("page", number=2), text="x" * 6_000)
    model = ScriptedModel([pages, say("It all began " * 400), say("Half.")])
    async with opened(model=model, tools=[page], on_event=seen.append) as rt:
        result = await rt.spawn("researcher", "Read.", tools=("page",), max_context_tokens=1_000)
    assert (result.status, result.response) == ("budget_exceeded", "Half.")
    assert [e.fact.limit for e in seen if isinstance(e.fact, LimitReached)] == [
        "max_context_tokens"
    ]


# What comes in one turn


@retinue.tool(effect="read")
async def flood(size: int) -> str:
    """More than anybody can read."""
    if size < 0:
        raise RuntimeError("x" * -size)
    return "y" * size


async def test_hundreds_of_answers_are_cut_to_fit(opened: Opened) -> None:
    """The calls alone take more than half of the window: nothing is summed up unread."""
    asked = calls(*(call("flood", size=300) for _ in range(300))).using(150, 10_000)
    model = ScriptedModel([asked, say("Read.")])
    seen: list[Event] = []
    limits: dict[str, Any] = {"max_tool_calls": 400, "max_context_tokens": 16_000}
    async with opened(model=model, tools=[flood], limits=limits, on_event=seen.append) as rt:
        result = await rt.spawn("researcher", "Read.", tools=("flood",), **limits)
    assert (result.error, result.response) == (None, "Read.")
    assert compactions(seen) == []
    assert {answer[:30] for answer in answers_to(model.requests[1])} == {"y" * 30}


def answers_to(request: Request) -> list[str]:
    return [m.content for m in request.messages if isinstance(m, ToolMessage)]


@pytest.mark.parametrize("size", [400_000, -400_000])
async def test_tool_answer_is_cut_to_the_room_left(opened: Opened, size: int) -> None:
    model = ScriptedModel([call("flood", size=size), say("Read.")])
    seen: list[Event] = []
    async with opened(model=model, tools=[flood], on_event=seen.append) as rt:
        result = await rt.spawn("researcher", "Read.", tools=("flood",), max_context_tokens=4_000)
    assert result.ok
    (answer,) = answers_to(model.requests[1])
    assert len(answer) <= 8_000
    whole = 400_000 if size > 0 else 400_000 + len("[ERROR] flood broke: RuntimeError: ")
    assert (
        f"\n[cut after 7,880 of {whole:,} characters: there is no room for more; ask for less at"
        " a time]" in answer
    )
    (kept,) = (e.fact.content for e in seen if isinstance(e.fact, ToolFinished))
    assert len(kept) == whole, "the journal has all of it"


async def test_answers_of_one_turn_share_the_room(
    opened: Opened,
) -> None:
    sizes = (10, 400_000, 20, 400_000)
    model = ScriptedModel([calls(*(call("flood", size=n) for n in sizes)), say("Read.")])
    async with opened(model=model, tools=[flood]) as rt:
        result = await rt.spawn("researcher", "Read.", tools=("flood",), max_context_tokens=4_000)
    assert result.ok
    answers = answers_to(model.requests[1])
    assert (answers[0], answers[2]) == ("y" * 10, "y" * 20)
    assert all(len(answer) > 3_900 for answer in (answers[1], answers[3]))
    assert sum(map(len, answers)) < 8_400
    assert not any("masked" in answer for answer in answers), "none was read yet"


async def test_all_reports_of_one_turn_can_be_read(opened: Opened) -> None:
    """Twenty times the cap would not fit the window of the parent."""
    tasks = [f"T{n:02}" for n in range(20)]
    model = ScriptedModel(
        {
            "at work in the user's project": [
                calls(*(call("spawn_agent", role="researcher", task=task) for task in tasks)),
                say("Read."),
            ],
            **{task: [say(task * 20_000)] for task in tasks},
        }
    )
    seen: list[Event] = []
    async with opened(model=model, on_event=seen.append) as rt:
        assert (await rt.run("Go.")).ok
    answers = answers_to(model.requests[-1])
    assert len(answers) == len(tasks)
    for number, (task, answer) in enumerate(zip(tasks, answers, strict=True), start=1):
        assert task * 500 in answer
        assert f'agent_result {{"id": "a{number}", "start": ' in answer.splitlines()[-1]
    assert sum(map(len, answers)) < 32_768 // 2 * 4
    assert compactions(seen) == []


async def test_masked_report_is_read_with_agent_result(opened: Opened) -> None:
    model = ScriptedModel(
        {
            "at work in the user's project": [
                call("spawn_agent", role="researcher", task="First", background=True),
                call("spawn_await"),
                call("spawn_agent", role="researcher", task="Second"),
                *(call("page", number=n) for n in range(1, 4)),
                say("Read."),
            ],
            "First": [say("1" * 4_000)],
            "Second": [say("2" * 4_000)],
        }
    )
    async with opened(model=model, tools=[page], limits={"max_context_tokens": 5_200}) as rt:
        assert (await rt.run("Go.")).ok
    _, first, second, *_ = answers_to(model.requests[-1])
    assert first.endswith("tokens of an earlier result; agent_result has the reports of a1]")
    assert second.endswith("tokens of an earlier result; agent_result has the reports of a2]")
