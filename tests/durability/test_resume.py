"""Runs that are suspended, or whose process is gone, go on where they were."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path

import pytest

import retinue
from retinue.config.environment import Environment
from retinue.domain.events import Event, ModelReplied, ToolStarted
from retinue.domain.messages import Request, ToolMessage, UserMessage
from retinue.errors import RunError, UnknownRun
from retinue.models.scripted.model import ScriptedModel, Step, call, calls, hold, say
from retinue.project import open_journal, open_run_locks
from retinue.runtime.agent.conversation import INTERRUPTED
from retinue.runtime.agent.loop import GO_ON, STOPPED
from retinue.runtime.delegation.task import Task
from retinue.runtime.history.audit import audit, read_all
from retinue.runtime.runtime import Runtime

Opened = Callable[..., AbstractAsyncContextManager[Runtime]]


class At:
    """Is set at the first event for which `when` holds."""

    def __init__(self, when: Callable[[Event], bool]) -> None:
        self._when = when
        self.run_id = ""
        self.events: list[Event] = []
        self.reached = asyncio.Event()

    def __call__(self, event: Event) -> None:
        self.run_id = event.run_id
        self.events.append(event)
        if self._when(event):
            self.reached.set()


def script(*steps: Step) -> ScriptedModel:
    """A model whose place is told by the conversation, so that any process finds it."""
    return ScriptedModel({"": list(steps)}, strict=False)


async def suspend(rt: Runtime, work: asyncio.Task[object], *, at_once: bool = False) -> None:
    said = asyncio.Event()
    rt.suspend("the user has left", said.set)
    if not at_once:
        async with asyncio.timeout(20):
            await said.wait()
    work.cancel()
    with suppress(asyncio.CancelledError):
        await work


async def journal(project: Path, run_id: str) -> list[Event]:
    async with open_journal(project) as store:
        await audit(store, run_id)
        return await read_all(store, run_id)


async def test_suspended_agent_reports_and_is_resumed(opened: Opened, project: Path) -> None:
    (project / "a.txt").write_text("a\n")
    told: list[tuple[object, ...]] = []

    def last(request: Request) -> Step:
        told.append(request.messages)
        return say("The file says a.")

    gate = asyncio.Event()

    @retinue.tool
    async def wait() -> str:
        """Wait."""
        await gate.wait()
        return "waited"

    model = script(call("wait"), say("So far nothing."), call("read_file", path="a.txt"), last)
    at = At(lambda event: event.type == "tool.started")
    async with opened(model=model, on_event=at, tools=[wait], mode="auto") as rt:
        work = asyncio.create_task(rt.run("What is in a.txt?"))
        await at.reached.wait()
        suspended = asyncio.create_task(suspend(rt, work))
        await asyncio.sleep(0)
        gate.set()
        await suspended
    events = await journal(project, at.run_id)
    assert events[-1].summary == "run suspended: the user has left"
    replies = [e.fact.content for e in events if isinstance(e.fact, ModelReplied)]
    assert replies == ["", "So far nothing."]
    assert not open_run_locks(project).is_held(at.run_id)

    async with opened(model=model, tools=[wait], mode="auto") as rt:
        result = await rt.resume(at.run_id)
    assert (result.status, result.response, result.usage.turns) == (
        "completed",
        "The file says a.",
        4,
    )
    ((*_, stop, word, go_on, _, _),) = told
    assert (stop, go_on) == (UserMessage(STOPPED), UserMessage(GO_ON))
    assert word.content == "So far nothing."  # type: ignore[attr-defined]
    events = await journal(project, at.run_id)
    assert [event.epoch for event in events] == sorted(event.epoch for event in events)
    assert events[-1].epoch == 2


async def test_finished_or_locked_run_cannot_be_resumed(opened: Opened, project: Path) -> None:
    never = asyncio.Event()
    at = At(lambda event: event.type == "turn.started")
    async with opened(model=ScriptedModel([hold(never, say("never"))]), on_event=at) as rt:
        work = asyncio.create_task(rt.run("Wait."))
        await at.reached.wait()
        with pytest.raises(RunError, match=f"already works on run {at.run_id}"):
            await rt.resume(at.run_id)
        async with opened(model=ScriptedModel([])) as other:
            with pytest.raises(RunError, match=f"Another process works on run {at.run_id}"):
                await other.resume(at.run_id)
            # Reading is always allowed.
            assert len([event async for event in other.events(at.run_id)]) >= 2
        await suspend(rt, work, at_once=True)
    async with opened(model=ScriptedModel([say("done")])) as rt:
        assert (await rt.resume(at.run_id)).response == "done"
        with pytest.raises(RunError) as over:
            await rt.resume(at.run_id)
        assert str(over.value) == (
            f"Run {at.run_id} is over (completed); there is nothing to resume."
            f' To continue from it: retinue run -r {at.run_id} "…"'
        )
        with pytest.raises(UnknownRun):
            await rt.resume("zz")
    assert not open_run_locks(project).is_held(at.run_id)


async def test_interrupted_reads_are_repeated_and_writes_are_not(
    opened: Opened, project: Path
) -> None:
    (project / "a.txt").write_text("a\n")
    done: list[str] = []
    never, at_it = asyncio.Event(), asyncio.Event()

    @retinue.tool(effect="write")
    async def send() -> str:
        """Send."""
        done.append("sent")
        at_it.set()
        await never.wait()
        return "sent"

    @retinue.tool(effect="read")
    async def look() -> str:
        """Look."""
        done.append("looked")
        at_it.set()
        if len(done) == 1:
            await never.wait()
        return "seen"

    answers: list[str] = []

    def last(request: Request) -> Step:
        answers.extend(m.content for m in request.messages if isinstance(m, ToolMessage))
        return say("Done.")

    for tool, told in ((look, "seen"), (send, INTERRUPTED)):
        done.clear()
        answers.clear()
        model = script(call(tool.spec.name), last)
        at, at_it = At(lambda event: False), asyncio.Event()
        async with opened(model=model, on_event=at, tools=[send, look], mode="auto") as rt:
            work = asyncio.create_task(rt.run("Do it."))
            await at_it.wait()
            await suspend(rt, work, at_once=True)
        async with opened(model=model, tools=[send, look], mode="auto") as rt:
            result = await rt.resume(at.run_id)
        assert result.ok
        assert answers == [told]
        assert done == (["looked", "looked"] if tool is look else ["sent"])
        started = [e for e in await journal(project, at.run_id) if isinstance(e.fact, ToolStarted)]
        assert len(started) == 1
        assert result.usage.tool_calls == 1


async def test_resume_finishes_every_task_of_a_program(opened: Opened, project: Path) -> None:
    never = asyncio.Event()
    tasks = [Task(role="researcher", task=f"Task {n}.") for n in range(8)]
    tasks[5] = Task(role="researcher", task="Task 5.", max_turns=1, output={"type": "object"})

    def model(gate: asyncio.Event) -> ScriptedModel:
        rules: dict[str, list[Step]] = {f"Task {n}.": [say(f"Done {n}.")] for n in range(8)}
        rules["Task 2."] = [hold(gate, say("Done 2."))]
        rules["Task 5."] = [say('{"n": 5}')]
        return ScriptedModel(rules, strict=False)

    at = At(lambda event: event.agent_id == "a3" and event.type == "turn.started")
    with suppress(asyncio.CancelledError):
        async with opened(model=model(never), on_event=at, cache=False) as rt:
            work = [asyncio.create_task(rt.fan_out(tasks[:6], max_concurrent=2))]
            await at.reached.wait()
            work.append(asyncio.create_task(rt.fan_out(tasks[6:])))
            await asyncio.sleep(0)
            rt.suspend("the user has left")
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)
            raise asyncio.CancelledError
    closed = {e.agent_id for e in at.events if e.type == "agent.subagent_closed"}
    assert closed >= {"a1", "a2"}
    never.set()
    async with opened(model=model(never), cache=False) as rt:
        result = await rt.resume(at.run_id)
    assert (result.status, result.error) == ("completed", None)
    assert [r.response for r in result.results] == [
        '{"n": 5}' if n == 5 else f"Done {n}." for n in range(8)
    ]
    assert result.results[5].data == {"n": 5}
    assert (result.children, result.total.turns) == (8, 8)
    assert len({r.agent_id for r in result.results}) == 8
    await journal(project, at.run_id)


async def test_unread_message_is_delivered_after_a_resume(opened: Opened, project: Path) -> None:
    never, heard = asyncio.Event(), list[str]()

    def answer(request: Request) -> Step:
        heard.extend(m.content for m in request.messages[2:] if isinstance(m, UserMessage))
        return say("Heard.")

    model = ScriptedModel(
        {
            "Lead.": [
                call("spawn_agent", task="Listen.", role="researcher", background=True),
                calls(
                    call("agent_message", id="a1", text="One."),
                    call("agent_message", id="a1", text="Two."),
                ),
                call("spawn_await", job_ids="*"),
                say("Done."),
            ],
            "Listen.": [hold(never, call("list_dir")), answer],
        },
        strict=False,
    )
    at = At(lambda event: event.type == "tool.started" and "spawn_await" in event.summary)
    async with opened(model=model, on_event=at) as rt:
        work = asyncio.create_task(rt.run("Lead."))
        await at.reached.wait()
        await suspend(rt, work, at_once=True)
    never.set()
    async with opened(model=model) as rt:
        assert (await rt.resume(at.run_id)).ok
    assert heard == ["One.", "Two."]


async def test_limit_stays_reached_after_a_resume(opened: Opened, project: Path) -> None:
    """The last word is asked for once, and is the last."""
    never = asyncio.Event()
    model = script(call("list_dir"), hold(never, say("What I have.")))
    at = At(lambda event: event.type == "turn.started" and "the last" in event.summary)
    async with opened(model=model, on_event=at, limits={"max_turns": 2}) as rt:
        work = asyncio.create_task(rt.run("Look."))
        await at.reached.wait()
        await suspend(rt, work, at_once=True)
    never.set()
    async with opened(model=model) as rt:
        result = await rt.resume(at.run_id)
    assert (result.status, result.response) == ("budget_exceeded", "What I have.")
    assert result.error == "max_turns 2 reached"
    events = await journal(project, at.run_id)
    assert [e.type for e in events].count("agent.limit_reached") == 1


async def test_session_continues_after_a_resumed_run(opened: Opened, project: Path) -> None:
    never, seen = asyncio.Event(), list[int]()

    def second(request: Request) -> Step:
        seen.append(len(request.messages))
        return hold(never, say("Second."))

    def third(request: Request) -> Step:
        seen.append(len(request.messages))
        return say("Third.")

    at = At(lambda event: event.type == "turn.started")
    async with opened(model=ScriptedModel([say("First.")])) as rt:
        first = await rt.run("One.")
    async with opened(model=ScriptedModel([second], strict=False), on_event=at) as rt:
        work = asyncio.create_task(rt.run("Two.", session=first.id))
        await at.reached.wait()
        await asyncio.sleep(0)
        await suspend(rt, work, at_once=True)
    never.set()
    async with opened(model=ScriptedModel([second])) as rt:
        result = await rt.resume(at.run_id)
        assert (result.response, result.session) == ("Second.", first.id)
    async with opened(model=ScriptedModel([third])) as rt:
        await rt.run("Three.", session="last")
    # The system message, a question and an answer for each run, and the last question.
    assert seen[-2:] == [4, 6]


async def test_run_of_another_user_is_not_resumed(
    opened: Opened, project: Path, tmp_path: Path
) -> None:
    """A project can bring a journal along, in which an agent is about to do anything."""
    never = asyncio.Event()
    at = At(lambda event: event.type == "turn.started")
    theirs = Environment(variables={"HOME": str(tmp_path / "theirs"), "PATH": "/usr/bin:/bin"})
    waits = script(hold(never, say("never")))
    async with opened(model=waits, on_event=at, environment=theirs) as rt:
        work = asyncio.create_task(rt.run("Wait."))
        await at.reached.wait()
        await suspend(rt, work, at_once=True)
    async with opened(model=script(say("done"))) as rt:
        with pytest.raises(RunError) as refused:
            await rt.resume(at.run_id)
    assert str(refused.value).startswith(f"Run {at.run_id} was not started by you")
    assert not open_run_locks(project).is_held(at.run_id)
    async with opened(model=script(say("done")), environment=theirs) as rt:
        assert (await rt.resume(at.run_id)).ok
    key = tmp_path / "theirs" / ".local" / "state" / "retinue" / "key"
    assert key.stat().st_mode & 0o777 == 0o600
