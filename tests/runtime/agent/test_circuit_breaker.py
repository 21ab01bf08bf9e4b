"""The circuit breaker of a root: a warning, a question to the person, a hard stop."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest

import retinue
from retinue.domain.approval import ApprovalRequest
from retinue.domain.events import CircuitBreakerTripped, Event, LimitReached
from retinue.domain.messages import ToolMessage
from retinue.models.scripted.model import ScriptedModel, Step, call, calls, say
from retinue.runtime.runtime import Runtime

Opened = Callable[..., AbstractAsyncContextManager[Runtime]]
Settings = Callable[[str], None]


@retinue.tool(effect="read")
async def ping() -> str:
    """Do nothing."""
    return "pong"


LOW = "warn_at_calls = 2\npause_at_calls = 4\n[budget]\nmax_tool_calls = 6\n"


def answers(model: ScriptedModel) -> list[str]:
    return [m.content for m in model.requests[-1].messages if isinstance(m, ToolMessage)]


def stages(events: list[Event]) -> list[tuple[str, int, int]]:
    facts = [e.fact for e in events if isinstance(e.fact, CircuitBreakerTripped)]
    return [(fact.stage, fact.tool_calls, fact.of) for fact in facts]


def pings(count: int) -> list[Step]:
    return [*(call("ping") for _ in range(count)), say("Enough.")]


async def test_breaker_warns_then_asks_and_a_yes_continues(
    opened: Opened, settings: Settings
) -> None:
    settings(LOW)
    asked: list[tuple[str, str, str]] = []
    seen: list[Event] = []

    async def approve(question: ApprovalRequest) -> bool:
        asked.append((question.path, question.tool, question.arguments))
        return True

    model = ScriptedModel(pings(6))
    async with opened(model=model, tools=[ping], approve=approve, on_event=seen.append) as rt:
        result = await rt.run("Ping.")
    assert result.ok
    assert asked == [("root", "to go on", "4 of 6 tool calls are used")]
    assert stages(seen) == [("warn", 2, 6), ("pause", 4, 6)]
    told = answers(model)
    assert told[0] == "pong"
    assert told[1] == "pong\n[2 of 6 tool calls are used]"
    assert told[2] == "pong\n[3 tool calls left]", "the warning is said once"
    assert told[-1] == "pong\n[no tool calls left]"


async def test_breaker_no_ends_tool_calls_but_not_the_answer(
    opened: Opened, settings: Settings
) -> None:
    settings(LOW)

    async def approve(question: ApprovalRequest) -> bool:
        return False

    model = ScriptedModel(pings(4))
    async with opened(model=model, tools=[ping], approve=approve) as rt:
        result = await rt.run("Ping.")
    assert result.response == "Enough."
    assert answers(model)[-1] == (
        "[DENIED] The user wants no more tool calls. Answer with what you have."
    )
    assert model.requests[-1].tools == ()
    assert result.usage.tool_calls == 4


async def test_breaker_without_a_person_continues_to_the_hard_stop(
    opened: Opened, settings: Settings
) -> None:
    settings(LOW)
    seen: list[Event] = []
    model = ScriptedModel([calls(*[call("ping")] * 8), say("Enough.")])
    async with opened(model=model, tools=[ping], on_event=seen.append) as rt:
        result = await rt.run("Ping.")
    assert (result.status, result.error) == ("budget_exceeded", "max_tool_calls 6 reached")
    assert result.response == "Enough."
    assert [told.split("\n")[0] for told in answers(model)] == [
        *["pong"] * 6,
        *["[DENIED] No tool calls are left. Answer with what you have."] * 2,
    ]
    assert stages(seen) == [("warn", 2, 6), ("pause", 4, 6)]
    assert [e.fact.limit for e in seen if isinstance(e.fact, LimitReached)] == ["max_tool_calls"]


async def test_breaker_defaults_are_60_80_and_100(opened: Opened) -> None:
    seen: list[Event] = []
    model = ScriptedModel([calls(*[call("ping")] * 101), say("Enough.")])
    async with opened(model=model, tools=[ping], on_event=seen.append) as rt:
        result = await rt.run("Ping.")
    assert result.status == "budget_exceeded"
    assert stages(seen) == [("warn", 60, 100), ("pause", 80, 100)]


async def test_child_has_no_breaker(opened: Opened, settings: Settings) -> None:
    settings(LOW)

    async def approve(question: ApprovalRequest) -> bool:
        raise AssertionError("a child is silent")

    seen: list[Event] = []
    model = ScriptedModel(pings(5))
    async with opened(model=model, tools=[ping], approve=approve, on_event=seen.append) as rt:
        result = await rt.spawn("researcher", "Ping.", tools=("ping",))
    assert result.ok
    assert stages(seen) == []


async def test_model_is_told_when_few_tokens_are_left(opened: Opened) -> None:
    turns: list[Step] = [call("ping").using(800 * n, 50) for n in range(1, 9)]
    model = ScriptedModel([*turns, say("Enough.").using(7_200, 50)])
    async with opened(model=model, tools=[ping]) as rt:
        await rt.spawn("researcher", "Ping.", tools=("ping",), max_tokens=10_000)
    # 850 tokens for the first turn, 800 for each further one; 1,184 are kept for the last turn.
    assert answers(model) == [*["pong"] * 7, "pong\n[2,366 tokens left]"]


@pytest.mark.parametrize(("left", "line"), [(3, "3 tool calls left"), (1, "1 tool call left")])
async def test_model_is_told_what_is_left_of_its_budget(
    opened: Opened, left: int, line: str
) -> None:
    model = ScriptedModel(pings(1))
    async with opened(model=model, tools=[ping]) as rt:
        await rt.spawn("researcher", "Ping.", tools=("ping",), max_tool_calls=left + 1)
    assert answers(model) == [f"pong\n[{line}]"]
