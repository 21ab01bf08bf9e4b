"""A session: the next run's root goes on with the conversation, read back from the journals."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import retinue
from retinue.config.environment import Environment
from retinue.domain.messages import AssistantMessage, Message, Request, ToolMessage, UserMessage
from retinue.errors import ProviderError, RunError, UnknownRun
from retinue.models.scripted.model import ScriptedModel, Step, call, calls, fail, hold, say
from retinue.project import open_journal, open_run_locks
from retinue.runtime.history.audit import audit
from retinue.runtime.history.session import load_session
from retinue.runtime.runtime import Runtime
from retinue.testing.clock import FakeClock
from retinue.tools.function import tool

Opened = Callable[..., AbstractAsyncContextManager[Runtime]]


@tool(effect="read")
async def page(number: int, lines: int = 1) -> str:
    """A page of a book."""
    return f"This stands on page {number}.\n" * lines


def everything_said(model: ScriptedModel, answer: str) -> tuple[Message, ...]:
    """The whole conversation, as the model has it after its last reply."""
    return (*model.requests[-1].messages, AssistantMessage(answer))


async def test_next_run_continues_with_the_same_messages(opened: Opened) -> None:
    model = ScriptedModel([call("page", number=1), say("One."), say("Two.")])
    async with opened(model=model, tools=[page]) as rt:
        first = await rt.run("Read page 1.")
        said = everything_said(model, "One.")
        second = await rt.run("And now?", session=first.session)
    *before, new = model.requests[-1].messages
    assert tuple(before) == said
    assert isinstance(new, UserMessage)
    assert new.content.startswith("And now?\n")
    assert model.requests[-1].tools == model.requests[0].tools
    assert second.session == first.session == first.id
    assert second.id != first.id
    assert second.response == "Two."


async def test_run_without_a_session_starts_one(opened: Opened) -> None:
    model = ScriptedModel([say("One."), say("Two.")])
    async with opened(model=model) as rt:
        first, second = await rt.run("First."), await rt.run("Second.")
    assert first.session != second.session
    assert len(model.requests[-1].messages) == 2


async def test_another_process_finds_the_last_session(opened: Opened, project: Path) -> None:
    async with opened(model=ScriptedModel([say("One.")])) as rt:
        first = await rt.run("First.")
    async with opened(model=ScriptedModel({"": [say("fan")]})) as rt:
        await rt.spawn("researcher", "Something else.")
    model = ScriptedModel([say("Two."), say("Three.")])
    async with opened(model=model) as rt:
        second = await rt.run("Second.", session="last")
        third = await rt.run("Third.", session=second.id[:6])
    assert [m.content.split("\n")[0] for m in model.requests[-1].messages[1:]] == [
        "First.",
        "One.",
        "Second.",
        "Two.",
        "Third.",
    ]
    assert third.session == first.id
    async with open_journal(project) as store:
        rows = await store.session(second.id)
        assert [row.id for row in rows] == [first.id, second.id, third.id]
        for row in rows:
            assert row.session == first.id
            assert (await audit(store, row.id)).agents == 1


async def test_each_run_of_a_session_has_its_own_budget_and_outcome(opened: Opened) -> None:
    turns = [call("page", number=n) for n in range(3)]
    model = ScriptedModel([*turns, say("One."), *turns, say("Two.")])
    async with opened(model=model, tools=[page], limits={"max_turns": 5}) as rt:
        first = await rt.run("Read.")
        second = await rt.run("Read again.", session="last")
    assert (first.status, first.usage.turns) == ("completed", 4)
    assert (second.status, second.usage.turns) == ("completed", 4)


async def test_children_are_numbered_across_the_session(opened: Opened) -> None:
    model = ScriptedModel(
        {
            "Lead.": [
                calls(
                    call("spawn_agent", role="researcher", task="child"),
                    call("spawn_agent", role="researcher", task="child"),
                ),
                say("One."),
                call("spawn_agent", role="researcher", task="child"),
                say("Two."),
            ],
            "child": [say("done")],
        }
    )
    async with opened(model=model) as rt:
        first = await rt.run("Lead.")
        second = await rt.run("Go on.", session="last")
        ids = [e.agent_id async for e in rt.events(second.id) if e.type == "agent.subagent_created"]
    assert (first.children, second.children) == (2, 1)
    assert ids == ["a0", "a3"]


async def test_earlier_reports_can_still_be_read(opened: Opened) -> None:
    long = "It stands on line 1.\n" * 500
    model = ScriptedModel(
        {
            "Lead.": [
                calls(
                    call("spawn_agent", role="researcher", task="child"),
                    call("spawn_agent", role="researcher", task="broken"),
                ),
                say("One."),
                say("The broken one does not matter."),
                calls(call("agent_result", id="a1", start=8_000), call("agent_result", id="a9")),
                call("spawn_await", job_ids="a2, a9"),
                say("Two."),
            ],
            "child": [say(long)],
            "broken": [fail(ProviderError("No."))],
        }
    )
    async with opened(model=model) as rt:
        await rt.run("Lead.")
        await rt.run("Go on.", session="last")
    *_, read, unknown, awaited = (
        m.content for m in model.requests[-1].messages if isinstance(m, ToolMessage)
    )
    assert read.startswith("<report-")
    assert long[8_000:] in read
    assert unknown == "[ERROR] You have no child 'a9'; you have: none yet."
    assert awaited == "[a2: ERROR]\nerror: No.\n\n[a9: NOT FOUND]"


async def test_messages_between_turns_are_read_back(opened: Opened) -> None:
    model = ScriptedModel(
        {
            "Lead.": [
                call("spawn_agent", role="researcher", task="child", background=True),
                # Refused, and answered side by side: answers stand in the order of the calls.
                calls(call("rocket"), call("page", number=1), call("page", number=2)),
                say("Soon."),
                say("One."),
                say("Two."),
            ],
            "child": [hold(asyncio.Event(), say("never"))],
        }
    )
    async with opened(model=model, tools=[page]) as rt:
        await rt.run("Lead.")
        said = [r for r in model.requests if r.messages[1].content.startswith("Lead.")][-1]
        await rt.run("Go on.", session="last")
    assert said.messages[-1].content.startswith("Still running in the background: a1 (child).")
    assert model.requests[-1].messages[:-1] == (*said.messages, AssistantMessage("One."))


# Runs that did not come to their end


async def test_failed_run_is_mentioned_in_the_session(opened: Opened) -> None:
    model = ScriptedModel([fail(ProviderError("The server is away.")), say("Two.")])
    async with opened(model=model) as rt:
        assert not (await rt.run("First.")).ok
        await rt.run("Again.", session="last")
    _, first, note, _ = model.requests[-1].messages
    assert first.content.startswith("First.")
    assert note == UserMessage("[This was ended before it was done: error: The server is away.]")


async def test_run_that_reached_a_limit_keeps_its_answer(opened: Opened) -> None:
    more = calls(call("page", number=1), call("page", number=2))
    model = ScriptedModel([more, say("Half."), say("Two.")])
    async with opened(model=model, tools=[page], limits={"max_tool_calls": 1}) as rt:
        await rt.run("First.")
        await rt.run("Go on.", session="last")
    said = model.requests[-1].messages
    # Nothing about a budget that is over, which a model could take for its new one.
    assert said[3:6] == (
        ToolMessage("call_0_0", "This stands on page 1.\n"),
        ToolMessage(
            "call_0_1", "[DENIED] No tool calls are left. Answer with what you have.", True
        ),
        AssistantMessage("Half."),
    )
    ended = "budget_exceeded: max_tool_calls 1 reached"
    assert said[6] == UserMessage(f"[This was ended before it was done: {ended}]")


async def test_interrupted_calls_are_answered(opened: Opened) -> None:
    begun, never = asyncio.Event(), asyncio.Event()

    @tool(effect="write")
    async def dig() -> str:
        """Dig for ever."""
        begun.set()
        await never.wait()
        return "done"

    model = ScriptedModel([calls(call("dig"), call("dig")), say("Two.")])
    async with opened(model=model, tools=[dig], mode="auto") as rt:
        digging = asyncio.create_task(rt.run("Dig."))
        await begun.wait()
        rt.cancel("a0")
        assert (await digging).status == "cancelled"
        await rt.run("Go on.", session="last")
    *_, done, undone, note, _ = model.requests[-1].messages
    assert done == ToolMessage("call_0_0", "[ERROR] interrupted; it may have been done", True)
    assert undone == ToolMessage("call_0_1", "[ERROR] interrupted before it was run", True)
    assert note == UserMessage(
        "[This was ended before it was done: cancelled: stopped by the user]"
    )


# The window


async def test_long_session_is_masked_before_it_is_sent(opened: Opened) -> None:
    script = [call("page", number=n, lines=400) for n in range(4)]
    wide, narrow = {"max_context_tokens": 30_000}, {"max_context_tokens": 8_000}
    reader, model = ScriptedModel([*script, say("One.")]), ScriptedModel([say("Two.")])
    async with opened(model=reader, tools=[page], limits=wide) as rt:
        await rt.run("Read.")
    async with opened(model=model, tools=[page], limits=narrow) as rt:
        await rt.run("Go on.", session="last")
    answers = [m for m in model.requests[-1].messages if isinstance(m, ToolMessage)]
    assert [a.content.startswith("[masked: ") for a in answers] == [True, True, False, False]


async def test_summarized_session_continues_from_the_summary(opened: Opened) -> None:
    model = ScriptedModel(
        [
            say("x" * 8_000),
            say("It said x."),  # when asked to sum up, before the second task is begun
            say("Two."),
            say("Three."),
        ]
    )
    async with opened(model=model, limits={"max_context_tokens": 2_500}) as rt:
        await rt.run("First.")
        await rt.run("Second.", session="last")
        await rt.run("Third.", session="last")
    texts = [message.content for message in model.requests[-1].messages[1:]]
    assert [text.split("\n")[-1] for text in texts[1:-1]] == ["It said x.", "Two."]
    assert texts[0].startswith("Second.\n")
    assert texts[-1].startswith("Third.\n")
    assert not any("xxxx" in text for text in texts)


steps = st.lists(
    st.one_of(
        st.integers(0, 60).map(lambda lines: call("page", number=1, lines=lines * 5)),
        st.lists(st.integers(0, 30), min_size=2, max_size=4).map(
            lambda sizes: calls(*(call("page", number=1, lines=n * 5) for n in sizes), text="Hm.")
        ),
        st.just(call("rocket")),
    ),
    max_size=6,
)


@settings(max_examples=25)
@given(runs=st.lists(steps, min_size=1, max_size=3), window=st.sampled_from([1_500, 4_000, 30_000]))
async def test_conversation_read_back_is_what_the_model_had(
    runs: list[list[Step]], window: int
) -> None:
    """Whatever was called, masked or summed up, over several runs."""
    script = [step for number, some in enumerate(runs) for step in (*some, say(f"Done {number}."))]

    def next_step(request: Request) -> Step:
        if request.messages[-1].content.startswith("The conversation is too long"):
            return say("It was read.")
        return script.pop(0)

    model = ScriptedModel([next_step] * (len(script) + 20), strict=False)
    with tempfile.TemporaryDirectory() as home:
        user = Environment(variables={"HOME": f"{home}-user"})
        async with retinue.open(
            home,
            model=model,
            tools=[page],
            limits={"max_context_tokens": window},
            clock=FakeClock(),
            environment=user,
        ) as rt:
            for number, _ in enumerate(runs):
                result = await rt.run("Read.", session=None if number == 0 else "last")
                if not result.ok:
                    return  # It did not fit its window; that it ended is told in other words.
                async with open_journal(home, user) as store:
                    read_back = (await load_session(store, open_run_locks(home), "last")).messages
                assert read_back == everything_said(model, f"Done {number}.")[1:]


# Mistakes


async def test_session_at_work_cannot_be_continued(opened: Opened) -> None:
    asked, gate = asyncio.Event(), asyncio.Event()

    def listen(event: retinue.Event) -> None:
        if event.type == "turn.started":
            asked.set()

    model = ScriptedModel([hold(gate, say("One."))])
    async with opened(model=model, on_event=listen) as rt:
        working = asyncio.create_task(rt.run("First."))
        await asked.wait()
        async with opened(model=ScriptedModel([])) as other:
            with pytest.raises(RunError) as refused:
                await other.run("Go on.", session="last")
        gate.set()
        first = await working
    assert str(refused.value) == (
        f"The session is still at work, in run {first.id}; wait for it, or stop it with"
        f" `retinue cancel {first.id}`."
    )


async def test_unknown_session_is_an_error(opened: Opened) -> None:
    async with opened(model=ScriptedModel([])) as rt:
        with pytest.raises(UnknownRun, match="There is no session to continue yet; `retinue run`"):
            await rt.run("Go on.", session="last")
        with pytest.raises(UnknownRun, match="No run 'zzz'"):
            await rt.run("Go on.", session="zzz")


async def test_run_led_by_a_program_is_not_a_session(opened: Opened) -> None:
    async with opened(model=ScriptedModel([say("done")])) as rt:
        child = await rt.spawn("researcher", "Look.")
        with pytest.raises(UnknownRun, match=f"Run {child.run_id} does not belong to a session"):
            await rt.run("Go on.", session=child.run_id)
        with pytest.raises(UnknownRun, match="There is no session"):
            await rt.run("Go on.", session="last")
