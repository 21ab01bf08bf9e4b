"""What `rt.events` gives, and that folding it is the same as having been told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

import retinue
from retinue.domain.events import Event
from retinue.errors import ProviderError, UnknownRun
from retinue.models.scripted.model import ScriptedModel, call, calls, fail, hold, say
from retinue.runtime.runtime import Runtime
from retinue.testing.clock import FakeClock

Opened = Callable[..., AbstractAsyncContextManager[Runtime]]


async def test_stored_events_equal_those_of_the_listener(opened: Opened) -> None:
    seen: list[Event] = []
    async with opened(
        model=ScriptedModel([call("list_dir"), say("ok")]), on_event=seen.append
    ) as rt:
        result = await rt.run("Look.")
        assert [event async for event in rt.events(result.id)] == seen
        assert [event async for event in rt.events(result.id[:4])] == seen
    assert [event.seq for event in seen] == list(range(1, len(seen) + 1))


async def test_following_continues_until_the_run_is_finished(
    opened: Opened, clock: FakeClock
) -> None:
    gate = asyncio.Event()
    async with opened(model=ScriptedModel([hold(gate, say("ok"))])) as rt:
        job = await rt.start("researcher", "Look.")
        followed: list[str] = []
        caught_up, closed = asyncio.Event(), asyncio.Event()

        async def follow() -> None:
            async for event in rt.events(job.run_id, follow=True):
                followed.append(event.type)
                if event.type == "turn.started":
                    caught_up.set()
                if event.type == "agent.subagent_closed":
                    closed.set()

        async def keep_time() -> None:
            while True:
                await clock.asleep(0.05)
                clock.advance(0.05)

        following, time = asyncio.create_task(follow()), asyncio.create_task(keep_time())
        await caught_up.wait()
        assert not following.done()
        gate.set()
        await job.result()
        async with opened(model=ScriptedModel([say("of another run")])) as other:
            await other.run("Speak.")
        await closed.wait()
        assert not following.done(), "there may be more children"
        following.cancel()
        time.cancel()
        await asyncio.gather(following, time, return_exceptions=True)


async def test_following_a_finished_run_ends_at_once(opened: Opened) -> None:
    async with opened(model=ScriptedModel([say("ok")])) as rt:
        result = await rt.run("Look.")
        types = [event.type async for event in rt.events(result.id, follow=True)]
    assert types[-1] == "run.finished"


async def test_unknown_run_is_an_error(opened: Opened) -> None:
    async with opened(model=ScriptedModel([])) as rt:
        with pytest.raises(UnknownRun, match="No run 'zzzz' in"):
            async for _ in rt.events("zzzz"):
                pass


async def test_folded_state_agrees_with_the_results(
    opened: Opened, project: Path, clock: FakeClock
) -> None:
    """For children that complete, fail, run out of calls, are denied, and are timed out."""
    acting = asyncio.Event()

    @retinue.tool(effect="write")
    async def hang() -> str:
        """Hang."""
        acting.set()
        await asyncio.Event().wait()
        return "never"

    (project / "a.txt").write_text("a\n")
    model = ScriptedModel(
        {
            "task completes": [
                calls(call("read_file", path="a.txt"), call("nope"), text="Looking."),
                call("write_file", path="b.txt", content="b\nb\n").using(700, 30),
                call("edit_file", path="b.txt", old_text="b\nb", new_text="c"),
                say("Done."),
            ],
            "task fails": [call("list_dir"), fail(ProviderError("Refused."))],
            "task runs out": [calls(*[call("list_dir")] * 9), say("Enough.").using(50, 5)],
            "task hangs": [call("hang")],
        }
    )
    seen: list[Event] = []
    async with opened(model=model, tools=[hang], mode="auto", on_event=seen.append) as rt:
        tasks = ("task completes", "task fails", "task runs out", "task hangs")
        jobs = [
            await rt.start(
                "executor",
                task,
                tools=("list_dir", "read_file", "write_file", "edit_file", "hang"),
                max_tool_calls=4,
                max_retries=0,
                timeout_s=60,
            )
            for task in tasks
        ]
        results = await rt.join(jobs[:3])
        await acting.wait()
        clock.advance(60)
        results += await rt.join(jobs[3:])
        events = [event async for event in rt.events(jobs[0].run_id)]
    assert [result.status for result in results] == [
        "completed",
        "error",
        "budget_exceeded",
        "timeout",
    ]
    view = retinue.fold(events)
    for result in results:
        agent = view.agents[result.agent_id]
        assert agent.status == result.status
        assert agent.response == result.response
        assert (agent.error or None) == result.error
        assert agent.tool_calls == result.usage.tool_calls, result.task
        assert agent.usage.tokens_in == result.usage.tokens_in
        assert agent.usage.tokens_out == result.usage.tokens_out
        assert agent.duration_s == result.usage.duration_s
        assert tuple(agent.files_read) == result.files_read
        assert tuple(agent.files_modified.values()) == result.files_modified
        assert tuple(agent.receipts) == result.receipts
        assert agent.attempt == result.attempts
        assert agent.state == "closed"


async def test_usage_of_a_run_is_the_sum_of_its_tree(opened: Opened) -> None:
    seen: list[Event] = []
    model = ScriptedModel([call("list_dir").using(400, 20), say("ok").using(500, 10)])
    async with opened(model=model, on_event=seen.append) as rt:
        result = await rt.run("Look.")
    assert (result.total.tokens, result.total.turns, result.total.tool_calls) == (510, 2, 1)
    assert result.children == 0
    assert result.total.billed_tokens == 930
    assert retinue.fold(seen).usage.tokens == 510
    assert retinue.fold(seen).usage.billed_tokens == 930


async def test_text_is_streamed_while_the_model_writes(opened: Opened) -> None:
    model = ScriptedModel(
        {
            "Lead.": [call("spawn_agent", role="researcher", task="Look"), say("All is well.")],
            "Look": [say("It is here.")],
        }
    )
    said: list[str] = []
    partial: list[tuple[str, ...]] = []
    heard = {"on_text": said.append, "on_child_text": lambda *words: partial.append(words)}
    async with opened(model=model, **heard) as rt:
        run = await rt.run("Lead.")
    assert said == ["All", " is", " well."]
    assert partial == [(run.run_id, "a1", word) for word in ("It", " is", " here.")]
