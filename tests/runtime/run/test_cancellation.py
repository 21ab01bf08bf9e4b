"""Cancelled at any point, a run is closed, on record, and leaves nothing behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import retinue
from retinue.domain.events import Event
from retinue.domain.messages import Reply, Request
from retinue.domain.run_state import RunState
from retinue.models.scripted.model import ScriptedModel, call, calls, hold, say
from retinue.project import open_journal
from retinue.runtime.history.audit import audit, read_all
from retinue.runtime.runtime import Runtime
from retinue.testing.clock import FakeClock
from retinue.testing.server import Framing, ModelServer, Response, ResponseEnding

if TYPE_CHECKING:
    from tests.conftest import Repo

Opened = Callable[..., AbstractAsyncContextManager[Runtime]]

WHY = "interrupted by the user"


@asynccontextmanager
async def no_task_left_over() -> AsyncIterator[None]:
    before = asyncio.all_tasks()
    yield
    assert asyncio.all_tasks() == before


async def audited(project: Path) -> list[RunState]:
    """Every run in the journal, newest first, as far as it can be trusted."""
    views = []
    async with open_journal(project) as store:
        for row in await store.runs(limit=1_000):
            await audit(store, row.id)
            views.append(retinue.fold(await read_all(store, row.id)))
    return views


def contents(directory: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in directory.glob("[!.]*")}


def script() -> ScriptedModel:
    steps = [
        calls(call("list_dir"), call("find_files", pattern="*"), text="Looking."),
        call("write_file", path="made.txt", content="made\n"),
        say("Done."),
    ]
    return ScriptedModel({"": steps}, strict=False)


async def work_run(rt: Runtime) -> None:
    await rt.run("Work.")


async def work_spawn(rt: Runtime) -> None:
    await rt.spawn("executor", "Work.")


async def work_fan_out(rt: Runtime) -> None:
    await rt.fan_out([("executor", f"Work {n}.") for n in range(3)], max_concurrent=2)


async def work_jobs(rt: Runtime) -> None:
    for n in range(2):
        await rt.start("executor", f"Work {n}.")
    await rt.join("*")


@pytest.mark.parametrize("work", [work_run, work_spawn, work_fan_out, work_jobs])
async def test_cancelled_after_any_event_everything_is_closed(
    opened: Opened,
    project: Path,
    clock: FakeClock,
    work: Callable[[Runtime], Awaitable[None]],
) -> None:
    cancelled_at = 0

    async def attempt() -> None:
        """Work, cancelled after so many events."""
        clock.advance(1.0)
        seen, body = list[Event](), asyncio.current_task()
        assert body is not None

        def listen(event: Event) -> None:
            seen.append(event)
            if len(seen) == cancelled_at:
                rt.set_cancel_reason(WHY)
                body.cancel()

        async with opened(model=script(), mode="auto", on_event=listen) as rt:
            await work(rt)

    async with no_task_left_over():
        while True:
            cancelled_at += 1
            try:
                await asyncio.create_task(attempt())
            except asyncio.CancelledError:
                continue
            break
    assert cancelled_at > 15, "there are as many points as events"
    complete, *interrupted = await audited(project)
    assert complete.status == "completed"
    assert len(interrupted) == cancelled_at - 1
    for view in interrupted:
        assert {agent.state for agent in view.agents.values()} == {"closed"}
        assert all(agent.close_reason for agent in view.agents.values())
        # Where the last event was already written, the work was done before it was stopped.
        assert view.status in ("cancelled", "completed")
        if view.status == "cancelled":
            assert view.reason == WHY
        for agent in view.agents.values():
            assert agent.status in ("cancelled", "completed")
            if agent.status == "cancelled":
                assert agent.close_reason == WHY
    assert sum(view.status == "cancelled" for view in interrupted) >= cancelled_at - 6


async def test_cancelled_run_raises_for_its_caller(opened: Opened, project: Path) -> None:
    asked, never = asyncio.Event(), asyncio.Event()

    def listen(event: Event) -> None:
        if event.type == "turn.started":
            asked.set()

    model = ScriptedModel([hold(never, say("never"))], strict=False)
    async with opened(model=model, on_event=listen) as rt:
        run = asyncio.create_task(rt.run("Wait."))
        await asked.wait()
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
    (view,) = await audited(project)
    assert (view.status, view.reason) == ("cancelled", "stopped with its run")


class Silent:
    """A model that never answers; `asked` has an item for every question."""

    name = "silent"

    def __init__(self) -> None:
        self.asked: asyncio.Queue[Request] = asyncio.Queue()

    async def reply(self, request: Request, on_text: Callable[[str], None] | None = None) -> Reply:
        self.asked.put_nowait(request)
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    async def aclose(self) -> None:
        pass


async def test_children_without_a_permit_are_never_created(opened: Opened, project: Path) -> None:
    model = Silent()
    async with opened(model=model) as rt:
        fan = asyncio.create_task(rt.fan_out([("researcher", f"Wait {n}.") for n in range(5)]))
        for _ in range(3):
            await model.asked.get()
        fan.cancel()
        with pytest.raises(asyncio.CancelledError):
            await fan
    (view,) = await audited(project)
    assert len(view.agents) == 4
    assert (view.status, view.reason) == ("error", "3 of 3 children failed")


async def test_a_second_cancellation_does_not_stop_the_closing(
    opened: Opened, project: Path
) -> None:
    model = Silent()

    async def work() -> None:
        body = asyncio.current_task()
        assert body is not None

        def again(event: Event) -> None:
            if event.type == "agent.subagent_closed":
                body.cancel()

        async with opened(model=model, on_event=again) as rt:
            await rt.fan_out([("researcher", f"Wait {n}.") for n in range(3)])

    async with no_task_left_over():
        task = asyncio.create_task(work())
        for _ in range(3):
            await model.asked.get()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    (view,) = await audited(project)
    assert view.status == "cancelled"
    assert {agent.state for agent in view.agents.values()} == {"closed"}


@pytest.mark.parametrize(
    "cancelled_at",
    [
        ("tool.finished", "agent.work_kept"),
        ("tool.finished", "agent.subagent_closed"),
        ("agent.subagent_closed",),
    ],
)
async def test_cancelled_during_its_closing_an_agent_leaves_no_working_copy(
    opened: Opened, repo: Repo, project: Path, tmp_path: Path, cancelled_at: tuple[str, ...]
) -> None:
    repo.init()
    model = ScriptedModel(
        [call("write_file", path="new.txt", content="new\n"), say("Done.")], strict=False
    )

    async def work() -> None:
        body = asyncio.current_task()
        assert body is not None

        def listen(event: Event) -> None:
            if event.type in cancelled_at:
                body.cancel()

        async with opened(model=model, mode="auto", on_event=listen) as rt:
            await rt.spawn("executor", "Write.")

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(work())
    (view,) = await audited(project)
    assert view.agents["a1"].state == "closed"
    assert view.agents["a1"].files_modified, "it had a copy"
    assert not list((tmp_path / ".cache" / "retinue").glob("worktrees/*"))


@pytest.mark.parametrize("ending", [ResponseEnding.HANG, ResponseEnding.PROPER])
async def test_connections_to_the_model_are_closed(opened: Opened, ending: ResponseEnding) -> None:
    """Cancelled before the first byte of a reply, and in the middle of one."""
    gate = asyncio.Event() if ending is ResponseEnding.PROPER else None
    body = (
        b""
        if ending is ResponseEnding.PROPER
        else b'data: {"choices": [{"delta": {"content": "x"}}]}\n\n'
    )
    response = Response(body=body, framing=Framing.CLOSE, ending=ending, gate=gate)
    async with ModelServer([response] * 3) as server:

        async def work() -> None:
            async with opened(model=f"openai:m@{server.base_url}") as rt:
                await rt.fan_out([("researcher", f"Wait {n}.") for n in range(3)])

        task = asyncio.create_task(work())
        await server.received(3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        # One for each reply, and one for the look at what is served.
        await server.hung_up(4)
        assert server.connections == 4


async def test_a_write_under_way_is_finished_and_not_half_done(
    opened: Opened, project: Path
) -> None:
    content = "line\n" * 100_000

    async def work() -> None:
        body = asyncio.current_task()
        assert body is not None

        def listen(event: Event) -> None:
            if event.type == "tool.started":
                body.cancel()

        model = ScriptedModel([call("write_file", path="big.txt", content=content)], strict=False)
        async with opened(model=model, mode="auto", on_event=listen) as rt:
            await rt.run("Write.")

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(work())
    left = contents(project)
    assert left in ({}, {"big.txt": content}), "all of it or nothing, and nothing else"


# Listeners that raise


class Mine(Exception):
    pass


@pytest.mark.parametrize("work", [work_run, work_spawn, work_fan_out])
async def test_error_of_a_listener_is_raised_and_the_journal_is_complete(
    opened: Opened, project: Path, work: Callable[[Runtime], Awaitable[None]]
) -> None:
    async def attempt(raised_at: int) -> None:
        """Work, with a listener that raises at that event."""
        count = 0

        def listen(event: Event) -> None:
            nonlocal count
            count += 1
            if count == raised_at:
                raise Mine

        async with opened(model=script(), mode="auto", on_event=listen) as rt:
            await work(rt)

    raised_at = 0
    while True:
        raised_at += 1
        try:
            await attempt(raised_at)
        except Mine:
            continue
        break
    assert raised_at > 15
    for view in await audited(project):
        if view.status is None:  # Somebody was at work, and can go on.
            assert view.suspend_reason == "the program ended with Mine"
        else:
            assert {agent.state for agent in view.agents.values()} == {"closed"}
