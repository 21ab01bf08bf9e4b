"""A person in a conversation: gives files along, says more meanwhile, has it summed up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from retinue.domain.events import Event
from retinue.domain.messages import Request, UserMessage
from retinue.errors import UnknownRun, UsageError
from retinue.models.scripted.model import ScriptedModel, call, hold, say
from retinue.runtime.runtime import Runtime

Opened = Callable[..., AbstractAsyncContextManager[Runtime]]


def heard(request: Request) -> list[str]:
    return [message.content for message in request.messages if isinstance(message, UserMessage)]


async def test_context_and_files_are_framed_as_data(opened: Opened, project: Path) -> None:
    (project / "a.txt").write_text("the text of a")
    model = ScriptedModel([say("ok")])
    async with opened(model=model) as rt:
        await rt.run("Look", context="what was found", context_files=["a.txt"])
    (said,) = heard(model.requests[0])
    assert said.startswith("Look\n")
    assert "what was found" in said
    assert 'from="a.txt">\nthe text of a\n' in said


async def test_unreadable_context_file_raises_before_work_begins(
    opened: Opened, project: Path
) -> None:
    async with opened(model=ScriptedModel([])) as rt:
        with pytest.raises(UsageError, match=r"can be attached: gone\.txt: No file"):
            await rt.run("Look", context_files=["gone.txt"])
        with pytest.raises(UsageError, match="context"):
            await rt.run("Look", context="a\udcff")


async def test_message_is_delivered_before_the_next_turn(opened: Opened) -> None:
    gate = asyncio.Event()
    model = ScriptedModel([hold(gate, call("list_dir")), say("ok")])
    asked = asyncio.Event()

    def listen(event: Event) -> None:
        if event.type == "turn.started":
            asked.set()

    async with opened(model=model, on_event=listen) as rt:
        run = asyncio.ensure_future(rt.run("Paint"))
        await asked.wait()
        rt.tell("a0", "in blue")
        gate.set()
        result = await run
        assert result.response == "ok"
        assert heard(model.requests[1])[1:] == ["in blue"]


async def test_message_during_the_answer_gets_another_turn(
    opened: Opened,
) -> None:
    gate = asyncio.Event()
    model = ScriptedModel([hold(gate, say("Red.")), say("Blue.")])
    asked = asyncio.Event()

    def listen(event: Event) -> None:
        if event.type == "turn.started":
            asked.set()

    async with opened(model=model, on_event=listen) as rt:
        run = asyncio.ensure_future(rt.run("Paint"))
        await asked.wait()
        rt.tell("a0", "in blue")
        gate.set()
        assert (await run).response == "Blue."


async def test_message_during_the_last_turn_is_a_note_of_the_result(opened: Opened) -> None:
    gate, asked = asyncio.Event(), asyncio.Event()

    def listen(event: Event) -> None:
        if event.type == "turn.started":
            asked.set()

    async with opened(model=ScriptedModel([hold(gate, say("Red."))]), on_event=listen) as rt:
        job = await rt.start("researcher", "Paint", max_turns=1)
        await asked.wait()
        rt.tell("a1", "in blue")
        gate.set()
        result = await job.result()
        assert result.notes == ("it ended before it read this message: in blue",)
        ended = [event async for event in rt.events(result.run_id) if event.agent_id == "a1"][-1]
    assert ended.summary.endswith("; unread: in blue")


async def test_tell_needs_an_open_agent_and_text(opened: Opened) -> None:
    async with opened(model=ScriptedModel([])) as rt:
        with pytest.raises(UsageError, match=r"^The message is empty\.$"):
            rt.tell("a0", "  ")
        with pytest.raises(UsageError, match="a0"):
            rt.tell("a0", "Hello")
        with pytest.raises(UsageError, match="text"):
            rt.tell("a0", "\udcff")


async def test_compacted_session_continues_from_the_summary(opened: Opened) -> None:
    model = ScriptedModel([call("list_dir"), say("One."), say("They said one."), say("Two.")])
    async with opened(model=model) as rt:
        first = await rt.run("One?")
        summed = await rt.compact(first.session)
        assert (summed.response, summed.session) == ("They said one.", first.session)
        second = await rt.run("Two?", session=first.session)
        assert second.session == first.session
        with pytest.raises(UnknownRun):
            await rt.compact("zzzz")
    assert model.requests[2].tools == ()
    assert len(model.requests[2].messages) > len(model.requests[3].messages)
    said = "\n".join(heard(model.requests[3]))
    assert "One?" not in said
    assert "They said one." in said
