"""Spawn now, await later: jobs, their blocks, and what a parent is told without asking."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

import retinue
from retinue.domain.events import AgentClosed, Event, MessageReceived, ModelReplied, ToolFinished
from retinue.domain.messages import Message, Request, ToolMessage, UserMessage
from retinue.errors import ProviderError, RunSuspended, Unreachable
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
from retinue.project import open_journal
from retinue.runtime.history.audit import audit
from retinue.runtime.runtime import Runtime

Opened = Callable[..., AbstractAsyncContextManager[Runtime]]

ROOT = "at work in the user's project"


def of_root(model: ScriptedModel) -> list[Request]:
    return [r for r in model.requests if ROOT in r.messages[0].content]


def answers(model: ScriptedModel) -> list[str]:
    """What the root's tool calls were answered."""
    return [m.content for m in of_root(model)[-1].messages if isinstance(m, ToolMessage)]


def told(messages: tuple[Message, ...]) -> list[str]:
    """What the root was told between its turns."""
    return [m.content for m in messages[2:] if isinstance(m, UserMessage)]


def background(task: str, **more: object) -> ScriptedReply:
    spawn = {"task": task, "role": "researcher", "background": True}
    return call("spawn_agent", **spawn | more)


class Ended:
    """Opens when that many children have been closed."""

    def __init__(self, count: int = 1) -> None:
        self._left = count
        self._gate = asyncio.Event()

    def __call__(self, event: Event) -> None:
        if isinstance(event.fact, AgentClosed) and event.agent_id != "a0":
            self._left -= 1
            if self._left == 0:
                self._gate.set()

    async def wait(self) -> None:
        await self._gate.wait()


async def test_the_id_comes_at_once_while_the_child_works(opened: Opened) -> None:
    gate = asyncio.Event()

    def meanwhile(request: Request) -> Step:
        gate.set()
        return call("spawn_await", job_ids="a1")

    model = ScriptedModel(
        {ROOT: [background("Dig."), meanwhile, say("ok")], "Dig": [hold(gate, say("A bone."))]}
    )
    async with opened(model=model) as rt:
        result = await rt.run("Go.")
    assert answers(model) == [
        "a1 started in the background; spawn_await gets its report.",
        "[a1: OK]\nA bone.",
    ]
    assert result.usage.tool_calls == 2


async def test_a_wrong_background_call_is_answered_at_once(opened: Opened) -> None:
    model = ScriptedModel({ROOT: [background(""), background("x", role="cook"), say("ok")]})
    async with opened(model=model) as rt:
        assert (await rt.run("Go.")).children == 0
    assert [answer.split(";")[0] for answer in answers(model)] == [
        "[ERROR] The task is empty",
        "[ERROR] Unknown role 'cook'",
    ]


async def test_notes_of_the_contract_are_in_the_first_answer(opened: Opened) -> None:
    model = ScriptedModel(
        {ROOT: [background("x", max_turns=999), call("spawn_await"), say("ok")], "x": [say("1")]}
    )
    async with opened(model=model) as rt:
        await rt.run("Go.")
    assert answers(model)[0].splitlines()[1:] == [
        "note: max_turns 999 became 200: the parent has no more"
    ]


# spawn_await


@pytest.mark.parametrize(
    "job_ids", ["a1,a2,a9", "a1, a2 a9", ["a1", "a2", "a9"], '["a1", "a2", "a9"]']
)
async def test_a_block_for_each_id_in_the_order_asked_for(opened: Opened, job_ids: object) -> None:
    model = ScriptedModel(
        {
            ROOT: [
                calls(background("Good"), background("Bad")),
                call("spawn_await", job_ids=job_ids),
                say("ok"),
                say("The bad one does not matter."),
            ],
            "Good": [say("Fine\nand dandy.")],
            "Bad": [fail(ProviderError("connection refused"))],
        }
    )
    seen: list[Event] = []
    async with opened(model=model, on_event=seen.append) as rt:
        assert (await rt.run("Go.")).ok
    assert answers(model)[-1] == (
        "[a1: OK]\nFine\nand dandy.\n\n[a2: ERROR]\nerror: connection refused\n\n[a9: NOT FOUND]"
    )
    awaited = [
        e.fact.receipt.ok
        for e in seen
        if isinstance(e.fact, ToolFinished) and e.fact.tool == "spawn_await"
    ]
    assert awaited == [True], "never itself an error"


async def test_star_awaits_all_and_results_can_be_fetched_again(opened: Opened) -> None:
    fetch = call("spawn_await", job_ids="*")
    model = ScriptedModel(
        {
            ROOT: [
                background("One"),
                background("Two"),
                fetch,
                fetch,
                call("spawn_await"),
                call("spawn_await", job_ids="a2"),
                say("ok"),
            ],
            "One": [say("1")],
            "Two": [say("2")],
        }
    )
    async with opened(model=model) as rt:
        await rt.run("Go.")
    both = "[a1: OK]\n1\n\n[a2: OK]\n2"
    assert answers(model)[2:] == [both, both, both, "[a2: OK]\n2"]


async def test_awaiting_without_jobs(opened: Opened) -> None:
    model = ScriptedModel(
        {ROOT: [call("spawn_await", job_ids="*"), call("spawn_await", job_ids=""), say("ok")]}
    )
    async with opened(model=model) as rt:
        await rt.run("Go.")
    assert answers(model) == ["No jobs found.", "No jobs found."]


async def test_block_of_a_failed_job_has_its_last_text(opened: Opened) -> None:
    model = ScriptedModel(
        {
            ROOT: [background("Dig", max_tool_calls=1), call("spawn_await"), say("ok")],
            "Dig": [calls(call("list_dir"), call("list_dir")), say("Half a bone.")],
        }
    )
    async with opened(model=model) as rt:
        await rt.run("Go.")
    assert answers(model)[-1] == (
        "[a1: ERROR]\nbudget_exceeded: max_tool_calls 1 reached\nWhat it had:\nHalf a bone."
    )


# Delivery


def mentions(request: Request, text: str) -> int:
    return sum(message.content.count(text) for message in request.messages)


async def test_ended_job_is_reported_once_before_the_next_turn(
    opened: Opened,
) -> None:
    ended = Ended()
    model = ScriptedModel(
        {
            ROOT: [
                background("Dig"),
                hold(ended, call("list_dir")),
                call("list_dir"),
                call("list_dir"),
                say("ok"),
            ],
            "Dig": [say("A bone.")],
        }
    )
    seen: list[Event] = []

    def listen(event: Event) -> None:
        seen.append(event)
        ended(event)

    async with opened(model=model, on_event=listen) as rt:
        assert (await rt.run("Go.")).ok
    turns = of_root(model)
    assert [mentions(turn, "A bone.") for turn in turns] == [0, 0, 1, 1, 1]
    assert told(turns[-1].messages) == ["A background job has ended.\n[a1: OK]\nA bone."]
    facts = [e.fact for e in seen if isinstance(e.fact, MessageReceived)]
    assert [fact.about for fact in facts] == [("a1",)]


async def test_awaited_job_is_not_reported_again(opened: Opened) -> None:
    model = ScriptedModel(
        {
            ROOT: [
                background("Dig"),
                call("spawn_await", job_ids="a1"),
                call("list_dir"),
                say("ok"),
            ],
            "Dig": [say("A bone.")],
        }
    )
    async with opened(model=model) as rt:
        await rt.run("Go.")
    assert mentions(of_root(model)[-1], "A bone.") == 1
    assert told(of_root(model)[-1].messages) == []


async def test_job_that_ends_during_the_last_turn_is_reported(opened: Opened) -> None:
    first, second, go, never = Ended(), asyncio.Event(), asyncio.Event(), asyncio.Event()

    def last(request: Request) -> Step:
        go.set()
        return hold(second, say("Bye."))

    def listen(event: Event) -> None:
        first(event)
        # A tool is run when all before it is on record, the end of the first job included.
        if event.type == "tool.started" and event.agent_id == "a2":
            second.set()

    model = ScriptedModel(
        {
            ROOT: [
                background("Dig"),
                background("Rake"),
                last,
                say("Oh."),
                say("Bye then."),
            ],
            "Dig": [hold(go, say("A bone."))],
            "Rake": [hold(first, call("list_dir")), hold(never, say("never"))],
        }
    )
    async with opened(model=model, on_event=listen) as rt:
        result = await rt.run("Go.")
    assert result.response == "Bye then."
    bones = [mentions(turn, "[a1: OK]\nA bone.") for turn in of_root(model)]
    assert bones == [0, 0, 0, 1, 1]
    assert mentions(of_root(model)[-1], "Still running in the background: a2 (Rake).") == 1


async def test_each_ended_job_is_reported_once(opened: Opened) -> None:
    ended = Ended(3)
    model = ScriptedModel(
        {
            ROOT: [
                calls(*(background(f"Dig {where}.") for where in ("left", "right", "deep"))),
                hold(ended, call("list_dir")),
                call("list_dir"),
                say("ok"),
                say("Two bones will do."),
            ],
            "left": [say("bone one")],
            "right": [say("bone two")],
            "deep": [fail(ProviderError("the spade broke"))],
        }
    )
    async with opened(model=model, on_event=ended) as rt:
        await rt.run("Go.")
    last = of_root(model)[-2]  # The last one reminds of the failed job.
    for text in ("bone one", "bone two", "the spade broke", "[a1: OK]", "[a2: OK]", "[a3: ERROR]"):
        assert mentions(last, text) == 1, text


# Loose ends


async def test_parent_is_reminded_once_of_running_jobs(opened: Opened, project: Path) -> None:
    never, asked = asyncio.Event(), asyncio.Event()

    def dig(request: Request) -> Step:
        asked.set()
        return hold(never, say("never"))

    model = ScriptedModel(
        {
            ROOT: [background("Dig deep."), hold(asked, say("Bye.")), say("Yes, bye.")],
            "Dig": [dig],
        }
    )
    seen: list[Event] = []
    async with opened(model=model, on_event=seen.append) as rt:
        result = await rt.run("Go.")
    assert (result.status, result.response) == ("completed", "Yes, bye.")
    assert told(of_root(model)[-1].messages) == [
        "Still running in the background: a1 (Dig deep.). Wait for them with spawn_await, stop them"
        " with agent_cancel, or answer again to end without them."
    ]
    view = retinue.fold(seen)
    child = view.agents["a1"]
    assert (child.state, child.status, child.close_reason) == (
        "closed",
        "cancelled",
        "its parent is done",
    )
    order = [(e.agent_id, e.type) for e in seen if e.type == "agent.subagent_closed"]
    assert [agent for agent, _ in order] == ["a1", "a0"]
    async with open_journal(project) as store:
        await audit(store, result.id)


async def test_reminded_parent_may_wait_for_its_jobs(opened: Opened) -> None:
    gate = asyncio.Event()

    def wait(request: Request) -> Step:
        gate.set()
        return call("spawn_await")

    model = ScriptedModel(
        {
            ROOT: [background("Dig."), say("Bye."), wait, say("A bone, bye.")],
            "Dig": [hold(gate, say("A bone."))],
        }
    )
    async with opened(model=model) as rt:
        result = await rt.run("Go.")
    assert result.response == "A bone, bye."
    assert mentions(of_root(model)[-1], "[a1: OK]") == 1
    assert mentions(of_root(model)[-1], "Still running") == 1


async def test_jobs_resume_with_a_root_whose_model_failed(opened: Opened) -> None:
    gone = fail(Unreachable("gone"))
    model = ScriptedModel({ROOT: [background("Dig."), gone], "Dig": [gone]})
    seen: list[Event] = []
    async with opened(model=model, on_event=seen.append) as rt:
        with pytest.raises(RunSuspended, match="gone") as left:
            await rt.run("Go.")
    assert {agent.state for agent in retinue.fold(seen).agents.values()} == {"running"}
    lead = [background("Dig."), call("spawn_await"), say("I have it.")]
    back = ScriptedModel({ROOT: lead, "Dig": [say("A bone.")]})
    async with opened(model=back, on_event=seen.append) as rt:
        assert (await rt.resume(left.value.run_id)).response == "I have it."
    assert "A bone." in str(back.requests[-1].messages)
    assert {agent.state for agent in retinue.fold(seen).agents.values()} == {"closed"}


# What is shown


async def test_text_of_children_is_not_streamed_with_the_roots(
    opened: Opened, capsys: pytest.CaptureFixture[str]
) -> None:
    shown: list[str] = []
    model = ScriptedModel(
        {
            ROOT: [background("Dig"), call("spawn_await"), say("I have it.")],
            "Dig": [say("A bone nobody sees.")],
        }
    )
    async with opened(model=model, on_text=shown.append) as rt:
        await rt.run("Go.")
        await rt.spawn("researcher", "Dig")
    assert "".join(shown) == "I have it."
    assert capsys.readouterr() == ("", "")


async def test_partial_text_of_a_child_is_streamed(opened: Opened) -> None:
    never, half = asyncio.Event(), asyncio.Event()
    seen: list[Event] = []

    def listen(event: Event) -> None:
        seen.append(event)
        if event.type == "tool.finished":
            half.set()

    first = calls(call("list_dir"), text="Half a bone.")
    model = ScriptedModel([first, hold(never, say("never"))], strict=False)
    async with opened(model=model, on_event=listen) as rt:
        job = await rt.start("researcher", "Dig")
        await half.wait()
        assert not job.done
        replied = [e.fact.content for e in seen if isinstance(e.fact, ModelReplied)]
        assert replied == ["Half a bone."]
        stored = [event.type async for event in rt.events(job.run_id)]
        assert "model.replied" in stored


# From Python


async def test_a_program_starts_and_joins(opened: Opened) -> None:
    gate = asyncio.Event()
    model = ScriptedModel({"One": [hold(gate, say("1"))], "Two": [say("2")]})
    async with opened(model=model) as rt:
        one, two = await rt.start("researcher", "One"), await rt.start("planner", "Two")
        assert (await two.result()).response == "2"
        assert not one.done
        gate.set()
        assert [r.response for r in await rt.join("*")] == ["1", "2"]
        assert [r.response for r in await rt.join([two, one])] == ["2", "1"]


@pytest.mark.parametrize("awaits", [True, False])
async def test_many_long_reports_share_the_room(opened: Opened, awaits: bool) -> None:
    tasks = [f"T{n:02}" for n in range(20)]
    ended, gate = Ended(len(tasks)), asyncio.Event()

    def meanwhile(_: Request) -> Step:
        gate.set()
        return call("spawn_await") if awaits else hold(ended, call("list_dir"))

    model = ScriptedModel(
        {
            ROOT: [calls(*map(background, tasks)), meanwhile, say("Read.")],
            **{task: [hold(gate, say(task * 20_000))] for task in tasks},
        }
    )
    async with opened(model=model, on_event=ended) as rt:
        assert (await rt.run("Go.")).ok
    last = of_root(model)[-1]
    reports = "\n\n".join([*answers(model)[-1:], *told(last.messages)])
    assert len(reports) < 32_768 // 2 * 4
    for number, task in enumerate(tasks, start=1):
        assert f"[a{number}: OK]\n{task * 500}" in reports
        assert f'agent_result {{"id": "a{number}", "start": ' in reports


async def test_job_ids_are_parsed_leniently_and_echoed_shortly(
    opened: Opened,
) -> None:
    model = ScriptedModel(
        {
            ROOT: [
                background("Dig"),
                call("spawn_await", job_ids='["a1"]\n a1,\n' + "z" * 9_000),
                say("ok"),
            ],
            "Dig": [say("A bone.")],
        }
    )
    async with opened(model=model) as rt:
        assert (await rt.run("Go.")).ok
    assert answers(model)[-1] == f"[a1: OK]\nA bone.\n\n[{'z' * 40}: NOT FOUND]"
