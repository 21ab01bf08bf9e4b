from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import msgspec
import pytest

import retinue
from retinue.config.environment import Environment
from retinue.domain.remote_commands import Command, Verb, encode_command
from retinue.errors import UsageError
from retinue.models.scripted.model import ScriptedModel, call, hold, say
from retinue.project import open_run_locks
from retinue.runtime.run.runs import MESSAGE_POLL_S
from retinue.runtime.runtime import Runtime
from retinue.testing.clock import FakeClock

Opened = Callable[..., AbstractAsyncContextManager[Runtime]]


class Asked:
    """Is set when the model of an agent is being asked."""

    def __init__(self) -> None:
        self._agents: dict[str, asyncio.Event] = {}
        self.run_id: str | None = None

    def __call__(self, event: retinue.Event) -> None:
        self.run_id = event.run_id
        if event.type == "turn.started":
            self.of(event.agent_id).set()

    def of(self, agent_id: str) -> asyncio.Event:
        return self._agents.setdefault(agent_id, asyncio.Event())


async def test_child_stopped_by_the_user_stays_stopped(opened: Opened) -> None:
    never, asked = asyncio.Event(), Asked()
    model = ScriptedModel(
        {
            "Lead.": [
                call("spawn_agent", task="Wait.", role="researcher", background=True),
                call("spawn_await", job_ids="*"),
                call("agent_message", id="a1", text="Go on, please."),
                say("It was stopped."),
            ],
            "Wait.": [hold(never, say("never"))],
        }
    )
    async with opened(model=model, on_event=asked) as rt:
        led = asyncio.create_task(rt.run("Lead."))
        await asked.of("a1").wait()
        rt.cancel("a1")
        result = await led
        told = [e.fact.content async for e in rt.events(result.id) if e.type == "tool.finished"]  # type: ignore[union-attr]
    assert result.ok
    assert told[1] == "[a1: ERROR]\ncancelled: stopped by the user"
    assert told[2] == "[ERROR] a1 was stopped (stopped by the user) and stays so."


async def test_stopping_a_child_leaves_siblings_and_caller_alone(opened: Opened) -> None:
    never, asked = asyncio.Event(), Asked()
    model = ScriptedModel({"Wait": [hold(never, say("never"))], "Work": [say("done")]})
    async with opened(model=model, on_event=asked) as rt:
        work = asyncio.create_task(
            rt.fan_out([("researcher", "Wait"), ("researcher", "Work")], max_concurrent=2)
        )
        await asked.of("a1").wait()
        rt.cancel("a1")
        stopped, done = await work
        alone = asyncio.create_task(rt.spawn("researcher", "Wait"))
        await asked.of("a3").wait()
        rt.cancel("a3")
        assert (await alone).error == "stopped by the user"
    assert (stopped.status, stopped.error) == ("cancelled", "stopped by the user")
    assert stopped.attempts == 1
    assert done.ok


async def test_only_open_agents_can_be_stopped(opened: Opened) -> None:
    async with opened(model=ScriptedModel([say("done")])) as rt:
        with pytest.raises(UsageError, match="No agent 'a1' is at work"):
            rt.cancel("a1")
        await rt.spawn("researcher", "Work.")
        with pytest.raises(UsageError, match="No agent 'a1' is at work"):
            rt.cancel("a1")


async def test_another_process_stops_a_child_for_good(
    opened: Opened, project: Path, clock: FakeClock, tmp_path: Path
) -> None:
    never, asked = asyncio.Event(), Asked()
    run_locks = open_run_locks(project, Environment(variables={"HOME": str(tmp_path)}))
    model = ScriptedModel(
        {
            "Lead.": [
                call("spawn_agent", task="Wait.", role="researcher"),
                call("agent_message", id="a1", text="Go on, please."),
                say("It was stopped."),
            ],
            "Wait.": [hold(never, say("never"))],
        }
    )
    async with opened(model=model, on_event=asked) as rt:
        led = asyncio.create_task(rt.run("Lead."))
        await asked.of("a1").wait()
        assert asked.run_id is not None
        cancel = Command(verb=Verb.CANCEL, agent_id="a7", by="cli")
        # An agent that is not there, and a line that is no command, are ignored.
        assert run_locks.send(asked.run_id, encode_command(cancel))
        assert run_locks.send(asked.run_id, "dance a1")
        cancel = msgspec.structs.replace(cancel, agent_id="a1")
        assert run_locks.send(asked.run_id, encode_command(cancel))
        await clock.asleep(MESSAGE_POLL_S)
        clock.advance(MESSAGE_POLL_S)
        result = await led
        told = [e.fact.content async for e in rt.events(result.id) if e.type == "tool.finished"]  # type: ignore[union-attr]
        assert not run_locks.is_held(result.id)
    assert result.ok
    assert told[0].startswith("[ERROR] cancelled: stopped by the user\n")
    assert told[1] == "[ERROR] a1 was stopped (stopped by the user) and stays so."


async def test_stopping_the_root_of_a_run_ends_the_run(opened: Opened) -> None:
    never, asked = asyncio.Event(), Asked()
    model = ScriptedModel(
        {
            "Lead.": [call("spawn_agent", task="Wait.", role="researcher")],
            "Wait.": [hold(never, say("never"))],
        }
    )
    async with opened(model=model, on_event=asked) as rt:
        led = asyncio.create_task(rt.run("Lead."))
        await asked.of("a1").wait()
        rt.cancel("a0")
        result = await led
        view = retinue.fold([event async for event in rt.events(result.id)])
    assert (result.status, result.error) == ("cancelled", "stopped by the user")
    assert (view.status, view.reason) == ("cancelled", "stopped by the user")
    assert [agent.close_reason for agent in view.agents.values()] == ["stopped by the user"] * 2


async def test_stopping_the_run_of_a_program_starts_no_more_children(opened: Opened) -> None:
    never, asked = asyncio.Event(), Asked()
    model = ScriptedModel({"Wait": [hold(never, say("never"))]})
    async with opened(model=model, on_event=asked) as rt:
        work = asyncio.create_task(rt.fan_out([("researcher", "Wait")] * 50, max_concurrent=2))
        await asked.of("a2").wait()
        rt.cancel("a0")
        results = await work
        later = await rt.spawn("researcher", "Wait")
        job = await rt.start("researcher", "Wait")
        started = await job.result()
    for result in (*results, later, started):
        assert (result.status, result.error) == ("cancelled", "stopped by the user")
        assert result.response == ""
    assert [result.agent_id for result in results] == ["a1", "a2", *[""] * 48]
    async with opened(model=ScriptedModel([])) as rt:
        view = retinue.fold([event async for event in rt.events(results[0].run_id)])
    assert (view.status, view.reason) == ("cancelled", "stopped by the user")
