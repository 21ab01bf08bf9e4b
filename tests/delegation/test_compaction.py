"""Windows: old observations are masked, then all is summed up; the journal keeps the originals."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest

import retinue
from retinue.domain.events import ContextCompacted, Event, LimitReached, ToolFinished
from retinue.domain.messages import Assistant, Request, ToolAnswer, User
from retinue.models.scripted import ScriptedModel, Step, call, calls, say
from retinue.runtime.facade import Runtime

Opened = Callable[..., AbstractAsyncContextManager[Runtime]]


@retinue.tool(effect="read")
async def page(number: int) -> str:
    """A long page."""
    return f"{number} " * 2_000


def compactions(events: list[Event]) -> list[tuple[int, int]]:
    facts = [e.fact for e in events if isinstance(e.fact, ContextCompacted)]
    return [(fact.masked, fact.dropped) for fact in facts]


async def work(opened: Opened, who: str, script: list[Step], seen: list[Event]) -> ScriptedModel:
    model = ScriptedModel(script)
    # The parent's tools take more of it.
    limits = {"max_context_tokens": 4_750 if who == "parent" else 3_500}
    async with opened(model=model, tools=[page], limits=limits, on_event=seen.append) as rt:
        if who == "parent":
            assert (await rt.run("Read.")).ok
        else:
            assert (await rt.spawn("researcher", "Read.", tools=("page",), **limits)).ok
    return model


@pytest.mark.parametrize("who", ["parent", "child"])
async def test_old_observations_are_masked(opened: Opened, who: str) -> None:
    seen: list[Event] = []
    reads: list[Step] = [call("page", number=n) for n in range(1, 7)]
    model = await work(opened, who, [*reads, say("Read.")], seen)
    answers = [m.content for m in model.requests[-1].messages if isinstance(m, ToolAnswer)]
    masked = [text.startswith("[masked: 1,000 tokens of an earlier result; ") for text in answers]
    assert masked[0]
    assert masked[-2:] == [False, False], "those it is about to use are whole"
    assert compactions(seen)
    assert all(dropped == 0 for _, dropped in compactions(seen))
    kept = [e.fact.content for e in seen if isinstance(e.fact, ToolFinished)]
    assert kept == [f"{n} " * 2_000 for n in range(1, 7)], "the journal has all of it"


@pytest.mark.parametrize("who", ["parent", "child"])
async def test_then_all_is_summed_up_and_work_goes_on(opened: Opened, who: str) -> None:
    seen: list[Event] = []

    def sum_up(request: Request) -> Step:
        assert request.messages[-1].content.startswith("The conversation is too long to go on.")
        assert request.tools == ()
        return say("I read pages 1 to 4; go on with 5.")

    def go_on(request: Request) -> Step:
        *_, summary = request.messages
        assert len(request.messages) == 3
        assert isinstance(summary, User)
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
    assert sum(isinstance(message, Assistant) for message in last) == 1


async def test_what_cannot_be_made_to_fit_is_a_limit(opened: Opened) -> None:
    seen: list[Event] = []
    pages = calls(call("page", number=1), call("page", number=2))
    model = ScriptedModel([pages, say("It all began " * 400), say("Half.")])
    async with opened(model=model, tools=[page], on_event=seen.append) as rt:
        result = await rt.spawn("researcher", "Read.", tools=("page",), max_context_tokens=1_000)
    assert (result.status, result.response) == ("budget_exceeded", "Half.")
    assert [e.fact.limit for e in seen if isinstance(e.fact, LimitReached)] == [
        "max_context_tokens"
    ]
