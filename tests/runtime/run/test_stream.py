"""A run as a stream: what it yields, how it waits for its reader, and what leaving it does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, aclosing

import msgspec
import pytest

import retinue
from retinue.domain.plan.outcome import RunResult
from retinue.domain.result import Status
from retinue.errors import ProviderError, RunSuspended, Unreachable, UsageError
from retinue.events import AgentCreated, Event, RunFinished, ToolFinished
from retinue.models.scripted.model import ScriptedModel, call, fail, hold, say
from retinue.runtime.run.stream import MAX_UNREAD, TextDelta, ToolProgress
from retinue.runtime.runtime import Runtime

Opened = Callable[..., AbstractAsyncContextManager[Runtime]]
ROOT = "You lead"


class Count(msgspec.Struct):
    files: int


async def test_stream_yields_text_calls_children_and_the_result(opened: Opened) -> None:
    model = ScriptedModel(
        {
            "Count them.": [call("list_dir", path="."), say("None.")],
            "How many": [
                call("spawn_agent", role="researcher", task="Count them."),
                say('{"files": 0}'),
            ],
        }
    )
    seen: list[str] = []
    text: dict[str, str] = {}
    events: list[Event] = []
    async with opened(model=model) as rt:
        async for item in rt.stream("How many files?", output=Count):
            match item:
                case TextDelta(agent_id=agent, text=delta):
                    text[agent] = text.get(agent, "") + delta
                case Event(agent_id=agent, fact=ToolFinished(tool=tool)):
                    seen.append(f"{agent} called {tool}")
                case Event(fact=AgentCreated(path=path)):
                    seen.append(f"{path} created")
                case RunResult(data=data):
                    assert data == Count(files=0)
                    seen.append("result")
            if isinstance(item, Event):
                events.append(item)
        stored = [event async for event in rt.events(events[0].run_id)]
    assert seen == [
        "root created",
        "root/researcher.1 created",
        "a1 called list_dir",
        "a0 called spawn_agent",
        "result",
    ]
    assert text == {"a0": '{"files": 0}', "a1": "None."}
    assert events == stored


async def test_agents_wait_for_a_slow_reader(opened: Opened) -> None:
    turns = 40
    looks = [call("list_dir", path=".") for _ in range(turns)]
    others = [call("list_dir", path=".") for _ in range(10)]
    model = ScriptedModel({"Slowly.": [*looks, say("Done.")], "Fast.": [*others, say("Done.")]})
    events, full = 0, asyncio.Event()

    def listen(_: Event) -> None:
        nonlocal events
        events += 1
        if events == MAX_UNREAD + 1:
            full.set()

    async with opened(model=model, on_event=listen) as rt:
        stream = rt.stream("Slowly.")
        await anext(stream)
        await full.wait()
        asked = len(model.requests)
        assert asked < turns
        # Another child has all the time that it needs; the streamed run stands still meanwhile.
        assert (await rt.spawn("researcher", "Fast.")).ok
        assert len(model.requests) == asked + len(others) + 1
        items = [item async for item in stream]
    assert len(model.requests) == asked + len(others) + 1 + turns + 1 - asked
    assert isinstance(items[-1], RunResult)
    assert items[-1].ok


async def test_leaving_the_loop_cancels_the_run(opened: Opened) -> None:
    never, run_id = asyncio.Event(), ""
    model = ScriptedModel([hold(never, say("Thinking")), say("never asked")], strict=False)
    async with opened(model=model) as rt:
        async with aclosing(rt.stream("Think.")) as stream:
            async for item in stream:
                assert isinstance(item, Event)
                run_id = item.run_id
                break
        facts = [event.fact async for event in rt.events(run_id)]
        assert isinstance(facts[-1], RunFinished)
        assert (facts[-1].status, facts[-1].reason) == (
            Status.CANCELLED,
            "the program stopped reading the stream",
        )
        # Without `aclosing`, the loop's own cleanup does the same a moment later.
        async for item in rt.stream("Think."):
            assert isinstance(item, Event)
            run_id = item.run_id
            break
    async with opened(model=ScriptedModel([])) as rt:
        facts = [event.fact async for event in rt.events(run_id)]
    assert isinstance(facts[-1], RunFinished)
    assert facts[-1].status is Status.CANCELLED


async def test_a_stream_that_nobody_closes_ends_with_the_runtime(opened: Opened) -> None:
    never = asyncio.Event()
    model = ScriptedModel([hold(never, say("Thinking"))], strict=False)
    async with opened(model=model) as rt:
        stream = rt.stream("Think.")
        await anext(stream)
    with pytest.raises(asyncio.CancelledError):
        [item async for item in stream]


async def test_errors_reach_the_reader(opened: Opened) -> None:
    async with opened(model=ScriptedModel([fail(ProviderError("no", retryable=False))])) as rt:
        with pytest.raises(UsageError, match="The task is empty"):
            await anext(rt.stream(" "))
        *_, last = [item async for item in rt.stream("Go.")]
        assert isinstance(last, RunResult)
        assert last.status is Status.ERROR
    gone = ScriptedModel([fail(Unreachable("gone"))])
    async with opened(model=gone) as rt:
        with pytest.raises(RunSuspended):
            [item async for item in rt.stream("Go.")]


async def test_progress_of_tools_and_own_listeners(opened: Opened) -> None:
    @retinue.tool(effect="read")
    async def dig(agent: retinue.AgentContext) -> str:
        """Dig."""
        agent.report("deep")
        return "done"

    heard: list[Event] = []
    model = ScriptedModel([call("dig"), say("Done.")])
    async with opened(model=model, tools=[dig], on_event=heard.append) as rt:
        items = [item async for item in rt.stream("Dig.")]
    assert [item.text for item in items if isinstance(item, ToolProgress)] == ["deep"]
    assert heard == [item for item in items if isinstance(item, Event)]


async def test_caller_chooses_the_id_the_tools_and_the_attachments_of_a_stream(
    opened: Opened,
) -> None:
    model = ScriptedModel([say("On Friday.")])
    notes = retinue.NamedData("notes.txt", b"The launch is on Friday.")
    async with opened(model=model) as rt:
        stream = rt.stream("When?", context_files=[notes], run_id="chosen", tools=["read_file"])
        items = [item async for item in stream]
    assert isinstance(items[-1], RunResult)
    assert {item.run_id for item in items} == {"chosen"}
    assert [tool.name for tool in model.requests[0].tools] == ["read_file"]
    assert "on Friday" in str(model.requests[0].messages)
