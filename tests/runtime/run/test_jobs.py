"""Start now, join later; and what becomes of jobs when the runtime is left."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, closing
from pathlib import Path

import pytest

import retinue
from retinue.domain.contract import decode_contract
from retinue.domain.events import Event, RunFinished
from retinue.domain.messages import Request
from retinue.errors import StoreError, UsageError
from retinue.models.scripted.model import ScriptedModel, Step, call, hold, say
from retinue.project import open_journal
from retinue.runtime.history.audit import audit
from retinue.runtime.runtime import Runtime

Opened = Callable[..., AbstractAsyncContextManager[Runtime]]


def finished(events: list[Event]) -> list[tuple[str, str]]:
    found = [event.fact for event in events if isinstance(event.fact, RunFinished)]
    return [(fact.status, fact.reason) for fact in found]


async def test_a_job_is_started_at_once_with_its_contract_on_record(
    opened: Opened, project: Path
) -> None:
    gate = asyncio.Event()
    async with opened(model=ScriptedModel([hold(gate, say("Done."))])) as rt:
        job = await rt.start("researcher", "Take your time.")
        assert not job.done
        async with open_journal(project) as store:
            rows = {row.id: row for row in await store.agents(job.run_id)}
        contract = decode_contract(rows[job.id].context_json)
        assert contract.step.description == "Take your time."
        gate.set()
        assert (await job.result()).response == "Done."
        assert job.done


async def test_jobs_are_joined_in_the_order_asked_for(opened: Opened) -> None:
    gates = {name: asyncio.Event() for name in ("anna", "berta")}
    model = ScriptedModel({name: [hold(gate, say(name))] for name, gate in gates.items()})
    async with opened(model=model) as rt:
        anna, berta = [await rt.start("planner", name) for name in gates]
        gates["berta"].set()
        assert (await berta.result()).response == "berta"
        gates["anna"].set()
        assert [r.response for r in await rt.join([berta, anna])] == ["berta", "anna"]
        assert [r.response for r in await rt.join("*")] == ["anna", "berta"]
        assert [r.response for r in await rt.join()] == ["anna", "berta"], "and again"


async def test_join_without_jobs_returns_nothing(opened: Opened) -> None:
    async with opened(model=ScriptedModel([])) as rt:
        assert await rt.join("*") == []


async def test_cancelling_the_wait_does_not_cancel_the_job(opened: Opened) -> None:
    gate = asyncio.Event()
    async with opened(model=ScriptedModel([hold(gate, say("Done."))])) as rt:
        job = await rt.start("researcher", "Wait.")
        waiting = asyncio.create_task(rt.join([job]))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        gate.set()
        assert (await job.result()).ok


async def test_a_cancelled_job_has_a_result_that_says_so(opened: Opened, project: Path) -> None:
    asked, seen = asyncio.Event(), list[Event]()

    def listen(event: Event) -> None:
        seen.append(event)
        if event.type == "tool.finished":
            asked.set()

    never = asyncio.Event()
    model = ScriptedModel([call("list_dir"), hold(never, say("never"))])
    async with opened(model=model, on_event=listen) as rt:
        job = await rt.start("researcher", "Wait.")
        await asked.wait()
        job.cancel("no longer needed")
        result = await job.result()
        assert (result.status, result.error) == ("cancelled", "no longer needed")
        assert result.usage.tool_calls == 1
        assert await rt.join("*") == [result]
        job.cancel()
        assert await job.result() == result
        run_id = job.run_id
    assert finished(seen) == [("error", "1 of 1 children failed")]
    async with open_journal(project) as store:
        await audit(store, run_id)


async def test_a_job_that_is_done_cannot_be_cancelled(opened: Opened) -> None:
    async with opened(model=ScriptedModel([say("Done.")])) as rt:
        job = await rt.start("researcher", "Speak.")
        result = await job.result()
        job.cancel()
        assert await job.result() == result


async def test_join_of_something_else_raises(opened: Opened) -> None:
    async with opened(model=ScriptedModel([])) as rt:
        with pytest.raises(UsageError, match="Unknown role 'cook'"):
            await rt.start("cook", "Cook.")
        assert await rt.join("*") == []


async def test_closing_the_runtime_cancels_running_jobs(opened: Opened, project: Path) -> None:
    never, seen = asyncio.Event(), list[Event]()
    model = ScriptedModel({"": [hold(never, say("never"))]}, strict=False)
    async with opened(model=model, on_event=seen.append) as rt:
        jobs = [await rt.start("researcher", f"Wait {n}.") for n in range(3)]
    view = retinue.fold(seen)
    assert {agent.state for agent in view.agents.values()} == {"closed"}
    assert [view.agents[job.id].status for job in jobs] == ["cancelled"] * 3
    assert [view.agents[job.id].close_reason for job in jobs] == ["stopped with its run"] * 3
    assert (view.status, view.reason) == ("error", "3 of 3 children failed")
    assert [(await job.result()).status for job in jobs] == ["cancelled"] * 3
    async with open_journal(project) as store:
        await audit(store, view.id)


async def test_a_program_that_used_no_children_leaves_no_run(opened: Opened, project: Path) -> None:
    async with opened(model=ScriptedModel([])):
        pass
    async with open_journal(project) as store:
        assert await store.runs() == []


async def test_a_run_of_a_program_succeeds_when_all_its_children_did(opened: Opened) -> None:
    seen: list[Event] = []
    async with opened(model=ScriptedModel({"": [say("ok")]}), on_event=seen.append) as rt:
        await rt.spawn("researcher", "a")
        await rt.fan_out([("planner", "b")])
    assert finished(seen) == [("completed", "")]


async def test_run_with_cancelled_children_fails(opened: Opened) -> None:
    never, seen = asyncio.Event(), list[Event]()
    asked = asyncio.Event()

    def hang(request: Request) -> Step:
        asked.set()
        return hold(never, say("never"))

    async with opened(model=ScriptedModel([hang]), on_event=seen.append) as rt:
        spawn = asyncio.create_task(rt.spawn("researcher", "Wait."))
        await asked.wait()
        spawn.cancel()
        with pytest.raises(asyncio.CancelledError):
            await spawn
    assert finished(seen) == [("error", "1 of 1 children failed")]


# Errors of the body


class Mine(Exception):
    pass


async def test_an_error_of_the_body_reaches_the_caller_as_it_was_raised(opened: Opened) -> None:
    never, seen, error = asyncio.Event(), list[Event](), Mine("mine")
    model = ScriptedModel([hold(never, say("never"))])

    async def work() -> None:
        async with opened(model=model, on_event=seen.append) as rt:
            await rt.start("researcher", "Wait.")
            raise error

    with pytest.raises(Mine) as caught:
        await work()
    assert caught.value is error
    view = retinue.fold(seen)
    assert (view.status, view.suspend_reason) == (None, "the program ended with Mine")
    async with opened(model=ScriptedModel([say("Here.")])) as rt:
        result = await rt.resume(view.id)
    assert [child.response for child in result.results] == ["Here."]


async def test_error_of_the_body_without_running_children_finishes_the_run(opened: Opened) -> None:
    seen = list[Event]()

    async def work() -> None:
        async with opened(model=ScriptedModel([say("Here.")]), on_event=seen.append) as rt:
            await rt.spawn("researcher", "Look.")
            raise Mine

    with pytest.raises(Mine):
        await work()
    view = retinue.fold(seen)
    assert (view.status, view.reason) == ("error", "the program ended with Mine")
    assert {agent.state for agent in view.agents.values()} == {"closed"}


async def test_error_of_the_body_is_not_hidden_by_leftover_script(opened: Opened) -> None:
    with pytest.raises(Mine):
        async with opened(model=ScriptedModel([say("never asked")])):
            raise Mine
    with pytest.raises(AssertionError, match="not used: step 1, say 'never asked'"):
        async with opened(model=ScriptedModel([say("never asked")])):
            pass


# A store that breaks


def take_over(project: Path) -> None:
    """What another process does that drives the run from now on."""
    with closing(sqlite3.connect(project / ".retinue" / "retinue.db")) as connection, connection:
        connection.execute("UPDATE runs SET epoch = epoch + 1")


@pytest.mark.parametrize("how", ["run", "spawn", "fan_out", "start"])
async def test_a_broken_store_is_raised_as_it_is(opened: Opened, project: Path, how: str) -> None:
    @retinue.tool(effect="read")
    async def sabotage() -> str:
        """Break the journal."""
        take_over(project)
        return "done"

    model = ScriptedModel({"": [call("sabotage"), say("unheard")]})

    async def work() -> None:
        async with opened(model=model, tools=[sabotage]) as rt:
            task = retinue.Task(role="researcher", task="Break it.", tools=("sabotage",))
            match how:
                case "run":
                    await rt.run("Break it.")
                case "spawn":
                    await rt.spawn("researcher", "Break it.", tools=("sabotage",))
                case "fan_out":
                    await rt.fan_out([task, task])
                case _:
                    job = await rt.start("researcher", "Break it.", tools=("sabotage",))
                    await job.result()

    with pytest.raises(StoreError) as caught:
        await work()
    assert str(caught.value).startswith("Another process has taken over run ")


async def test_a_job_that_meets_a_broken_store_stops_the_body(
    opened: Opened, project: Path
) -> None:
    @retinue.tool(effect="read")
    async def sabotage() -> str:
        """Break the journal."""
        take_over(project)
        return "done"

    model = ScriptedModel([call("sabotage"), say("unheard")], strict=False)

    async def work() -> None:
        async with opened(model=model, tools=[sabotage]) as rt:
            await rt.start("researcher", "Break it.", tools=("sabotage",))
            await asyncio.Event().wait()

    with pytest.raises(StoreError, match="Another process has taken over run"):
        await work()
