"""`agent_message`, `agent_cancel` and `agent_result`: children that are under way, or were."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import retinue
from retinue.domain.events import AgentClosed, Event, MessageReceived
from retinue.domain.messages import Request, ToolMessage, UserMessage
from retinue.models.scripted.model import ScriptedModel, ScriptedReply, Step, call, calls, hold, say
from retinue.runtime.runtime import Runtime

Opened = Callable[..., AbstractAsyncContextManager[Runtime]]

ROOT = "at work in the user's project"


def answers(model: ScriptedModel) -> list[str]:
    last = [r for r in model.requests if ROOT in r.messages[0].content][-1]
    return [m.content for m in last.messages if isinstance(m, ToolMessage)]


def background(task: str) -> ScriptedReply:
    return call("spawn_agent", role="researcher", task=task, background=True)


def heard(request: Request) -> list[str]:
    """What was said to an agent after its opening."""
    return [m.content for m in request.messages[2:] if isinstance(m, UserMessage)]


class Asked:
    """Opens when an agent has begun a turn."""

    def __init__(self, agent_id: str, turn: int) -> None:
        self._what = (agent_id, turn)
        self._turns = 0
        self._gate = asyncio.Event()

    def __call__(self, event: Event) -> None:
        if event.type == "turn.started" and event.agent_id == self._what[0]:
            self._turns += 1
            if self._turns == self._what[1]:
                self._gate.set()

    async def wait(self) -> None:
        await self._gate.wait()


# Messages


async def test_a_message_reaches_the_child_before_its_next_turn(opened: Opened) -> None:
    under_way, gate = Asked("a1", 1), asyncio.Event()

    def release(request: Request) -> Step:
        gate.set()
        return call("spawn_await")

    model = ScriptedModel(
        {
            ROOT: [
                background("Dig"),
                hold(under_way, call("agent_message", id="a1", text="Dig deeper.")),
                release,
                say("ok"),
            ],
            "Dig": [hold(gate, call("list_dir")), say("Deeper.")],
        }
    )
    seen: list[Event] = []

    def listen(event: Event) -> None:
        seen.append(event)
        under_way(event)

    async with opened(model=model, on_event=listen) as rt:
        await rt.run("Go.")
    assert answers(model)[1] == "a1 will read it before its next turn."
    turns = [r for r in model.requests if r.messages[1].content.startswith("Dig")]
    assert [heard(turn) for turn in turns] == [[], ["Dig deeper."]]
    told = [(e.agent_id, e.fact.source) for e in seen if isinstance(e.fact, MessageReceived)]
    assert told == [("a1", "parent")]


async def test_message_sent_during_the_answer_gets_another_turn(opened: Opened) -> None:
    under_way, gate = Asked("a1", 1), asyncio.Event()

    def release(request: Request) -> Step:
        gate.set()
        return call("spawn_await")

    model = ScriptedModel(
        {
            ROOT: [
                background("Dig"),
                hold(under_way, call("agent_message", id="a1", text="Dig deeper.")),
                release,
                say("ok"),
            ],
            "Dig": [hold(gate, say("A bone.")), say("A bigger bone.")],
        }
    )
    async with opened(model=model, on_event=under_way) as rt:
        await rt.run("Go.")
    assert answers(model)[-1] == "[a1: OK]\nA bigger bone."


async def test_messages_to_unknown_or_ended_children_are_refused(opened: Opened) -> None:
    model = ScriptedModel(
        {
            ROOT: [
                call("agent_message", id="a7", text="Hello"),
                background("Dig"),
                call("spawn_await"),
                call("agent_message", id="a1", text="Hello"),
                call("agent_message", id="a2", text="Hello"),
                say("ok"),
            ],
            "Dig": [say("A bone.")],
        }
    )
    async with opened(model=model) as rt:
        await rt.run("Go.")
    told = answers(model)
    assert told[0] == "[ERROR] You have no child 'a7'; you have: none yet."
    assert told[3].startswith('[ERROR] a1 has ended; spawn_agent with continues="a1"')
    assert told[4] == "[ERROR] You have no child 'a2'; you have: a1."


async def test_an_empty_message_is_refused(opened: Opened) -> None:
    never = asyncio.Event()
    model = ScriptedModel(
        {
            ROOT: [
                background("Dig"),
                call("agent_message", id="a1", text=" "),
                call("agent_cancel", id="a1"),
                say("ok"),
            ],
            "Dig": [hold(never, say("never"))],
        },
        strict=False,
    )
    async with opened(model=model) as rt:
        await rt.run("Go.")
    assert answers(model)[1] == "[ERROR] The message is empty."


# Cancelling


async def test_cancelled_child_is_closed_and_its_last_text_returned(opened: Opened) -> None:
    under_way, never = Asked("a1", 2), asyncio.Event()
    model = ScriptedModel(
        {
            ROOT: [
                background("Dig"),
                hold(under_way, call("agent_cancel", id="a1")),
                call("agent_cancel", id="a1"),
                call("spawn_await"),
                say("ok"),
            ],
            "Dig": [calls(call("list_dir"), text="Half a bone."), hold(never, say("never"))],
        }
    )
    seen: list[Event] = []

    def listen(event: Event) -> None:
        seen.append(event)
        under_way(event)

    async with opened(model=model, on_event=listen) as rt:
        result = await rt.run("Go.")
    assert result.ok
    stopped, again, block = answers(model)[1:]
    assert stopped.startswith("a1 is stopped.\n(a1 researcher: 1 turn, 1 tool call, ")
    assert "\nHalf a bone.\n" in stopped
    assert again == "a1 had ended already."
    assert block == ("[a1: ERROR]\ncancelled: cancelled by its parent\nWhat it had:\nHalf a bone.")
    child = retinue.fold(seen).agents["a1"]
    assert (child.state, child.status, child.close_reason) == (
        "closed",
        "cancelled",
        "cancelled by its parent",
    )
    receipts = [r.ok for r in retinue.fold(seen).agents["a0"].receipts]
    assert receipts == [True] * 4, "stopping a child is no failure"
    assert not any(isinstance(e.fact, MessageReceived) for e in seen), "it was told already"


async def test_message_does_not_revive_a_stopped_child(opened: Opened) -> None:
    under_way, never = Asked("a1", 1), asyncio.Event()
    model = ScriptedModel(
        {
            ROOT: [
                background("Dig"),
                hold(under_way, call("agent_cancel", id="a1")),
                call("agent_message", id="a1", text="Go on!"),
                say("ok"),
            ],
            "Dig": [hold(never, say("never"))],
        }
    )
    async with opened(model=model, on_event=under_way) as rt:
        result = await rt.run("Go.")
    assert answers(model)[-1] == ("[ERROR] a1 was stopped (cancelled by its parent) and stays so.")
    assert result.children == 1
    dug = [r for r in model.requests if r.messages[1].content.startswith("Dig")]
    assert len(dug) == 1, "and no second attempt is made"


async def test_an_unknown_child_cannot_be_stopped(opened: Opened) -> None:
    model = ScriptedModel({ROOT: [call("agent_cancel", id="a0"), say("ok")]})
    async with opened(model=model) as rt:
        await rt.run("Go.")
    assert answers(model) == ["[ERROR] You have no child 'a0'; you have: none yet."]


# Reading on


async def test_the_rest_of_a_cut_report_can_be_read(opened: Opened) -> None:
    novel = "".join(f"{n:05d} word\n" for n in range(2_000))

    def read_on(request: Request) -> Step:
        last = request.messages[-1].content
        if "continue with start=" in last:
            start = int(last.rpartition("start=")[2].rstrip("]"))
        elif '"start": ' in last:
            start = int(last.rpartition('"start": ')[2].split("}")[0])
        else:
            return say("Read.")
        return call("agent_result", id="a1", start=start)

    model = ScriptedModel(
        {
            ROOT: [call("spawn_agent", role="researcher", task="Write"), *[read_on] * 4],
            "Write": [say(novel)],
        }
    )
    async with opened(model=model) as rt:
        result = await rt.run("Go.")
    assert result.response == "Read."
    first, *more = answers(model)
    assert len(first) < 8_300, "2,000 tokens"
    assert "[cut after 7," in first
    pages = [answer.split('from="a1">\n')[1].split("\n</report-")[0] for answer in (first, *more)]
    assert "".join(pages) == novel


async def test_agent_result_of_unknown_or_running_child_is_refused(opened: Opened) -> None:
    never = asyncio.Event()
    model = ScriptedModel(
        {
            ROOT: [
                call("agent_result", id="a1"),
                call("spawn_agent", role="researcher", task="Write"),
                call("agent_result", id="a1", start=99),
                call("agent_result", id="a1"),
                background("Dig"),
                call("agent_result", id="a2"),
                call("agent_cancel", id="a2"),
                say("ok"),
            ],
            "Write": [say("short")],
            "Dig": [hold(never, say("never"))],
        },
        strict=False,
    )
    async with opened(model=model) as rt:
        await rt.run("Go.")
    told = answers(model)
    assert told[0] == "[ERROR] You have no child 'a1'; you have: none yet."
    assert told[2] == "[ERROR] The report of a1 has 5 characters."
    assert told[3].splitlines()[1] == "short"
    assert told[5] == "[ERROR] a2 is still at work; spawn_await waits for it."


async def test_ids_are_parsed_leniently(opened: Opened) -> None:
    model = ScriptedModel(
        {
            ROOT: [
                background("Dig"),
                call("spawn_await", job_ids="A1"),
                call("agent_message", id=" 'A1' ", text="Hello"),
                call("agent_cancel", id="[a1]"),
                call("agent_result", id="A1"),
                say("ok"),
            ],
            "Dig": [say("A bone.")],
        }
    )
    async with opened(model=model) as rt:
        await rt.run("Go.")
    block, message, cancel, result = answers(model)[1:]
    assert block == "[a1: OK]\nA bone."
    assert message.startswith('[ERROR] a1 has ended; spawn_agent with continues="a1"')
    assert cancel == "a1 had ended already."
    assert "\nA bone.\n" in result


async def test_cancel_of_an_ended_child_returns_its_report(opened: Opened) -> None:
    """Its end is on record, and only its parent does not know of it yet."""
    closed = asyncio.Event()

    def listen(event: Event) -> None:
        if isinstance(event.fact, AgentClosed) and event.agent_id == "a1":
            closed.set()

    model = ScriptedModel(
        {
            ROOT: [
                background("Dig"),
                hold(closed, call("agent_cancel", id="a1")),
                call("agent_message", id="a1", text="Go on"),
                call("spawn_await"),
                say("ok"),
            ],
            "Dig": [say("A bone.")],
        }
    )
    async with opened(model=model, on_event=listen) as rt:
        await rt.run("Go.")
    stopped, message, block = answers(model)[1:]
    assert stopped.startswith("a1 had ended already.")
    assert message.startswith('[ERROR] a1 has ended; spawn_agent with continues="a1"')
    assert block == "[a1: OK]\nA bone."
