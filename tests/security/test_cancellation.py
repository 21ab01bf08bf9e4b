"""Cancelled at any moment, a tree of agents leaves no task, no process and no open child."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import select
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

import retinue
from retinue.domain.events import AgentCreated, Event, ToolFinished
from retinue.domain.grant import Access
from retinue.domain.messages import Request
from retinue.domain.run_state import RunState
from retinue.domain.scope import NOWHERE
from retinue.models.scripted.model import ScriptedModel, ScriptedReply, Step, call, calls, hold, say
from retinue.ports.sandbox import ShellCommand
from retinue.project import open_journal
from retinue.runtime.history.audit import audit, read_all
from retinue.runtime.runtime import Runtime
from retinue.sandbox.unconfined import Unconfined

Opened = Callable[..., AbstractAsyncContextManager[Runtime]]

WHY = "the user has left"
# So that executors have children in every way.
SETTINGS = """
[roles.executor]
tools = ["list_dir", "read_file", "write_file", "remember", "spawn_await", "delegate_task"]
"""


@pytest.fixture(autouse=True)
def executors(settings: Callable[[str], None]) -> None:
    settings(SETTINGS)


def processes_of(home: Path) -> list[str]:
    """The processes that a command of ours has started: nobody else has that home."""
    mark = f"HOME={home}".encode()
    found = []
    for pid in os.listdir("/proc"):
        if pid.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as environ:
                if mark in environ.read().split(b"\0"):
                    found.append(pid)
    return found


def is_gone(pid: int) -> bool:
    """Wait for the end of a process that was killed, which need not be a child of ours."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([process], [], [], 5)[0])
    finally:
        os.close(process)


async def all_gone(home: Path) -> bool:
    """Killed is as good as gone, but takes the system a moment."""
    return all([await asyncio.to_thread(is_gone, int(pid)) for pid in processes_of(home)])


def small(answer: ScriptedReply) -> ScriptedReply:
    return answer.using(200, 20)


def busy_tree() -> ScriptedModel:
    """A root with children of every kind at once.

    One runs a command that would take a quarter of an hour, until the root stops it; one has
    grandchildren; one works through a plan; others wait for a slot, and for tokens.
    """

    def spawn(task: str, **terms: object) -> ScriptedReply:
        return call("spawn_agent", **{"task": task, "role": "researcher"} | terms)

    root: list[Step] = [
        small(
            calls(
                spawn("sleeper: rest", role="reviewer", background=True),
                spawn("planner: go", role="executor", background=True),
                spawn("reader: c", role="researcher", background=True),
                spawn("reader: d", role="researcher"),
                spawn("parent: e", role="executor"),
                spawn("writer: f", role="executor", scope="out"),
            )
        ),
        small(call("agent_message", id="a1", text="Are you still asleep?")),
        small(
            call(
                "delegate_task",
                plan="two things",
                subtasks=[
                    {"task": "reader: g", "role": "researcher"},
                    {"task": "reader: h", "role": "reviewer", "depends_on": 0},
                ],
            )
        ),
        small(call("agent_cancel", id="a1")),
        small(call("spawn_await", job_ids="*")),
        small(say("All done.")),
    ]
    look = small(calls(call("list_dir"), call("read_file", path="notes.txt")))
    return ScriptedModel(
        {
            "sleeper:": [
                small(call("run_command", command="sleep 1000; true")),
                small(say("Awake.")),
            ],
            "planner:": [
                small(
                    call(
                        "delegate_task",
                        plan="one thing",
                        subtasks=[{"task": "reader: i", "role": "reviewer"}],
                    )
                ),
                small(say("Planned.")),
            ],
            "parent:": [
                small(
                    calls(
                        spawn("reader: j", role="reviewer", background=True),
                        spawn("commander: k", role="reviewer"),
                    )
                ),
                small(say("Mine are done.")),
                small(say("They are.")),
            ],
            "commander:": [small(call("run_command", command="true")), small(say("Ran."))],
            "writer:": [
                small(call("write_file", path="out/f.txt", content="f\n")),
                small(call("remember", text="f is written")),
                small(say("Written.")),
            ],
            "reader:": [look, small(say("Read."))],
            "": root,
        },
        strict=False,
    )


class Trip:
    """Sets `reached` at the event of a number."""

    def __init__(self) -> None:
        self.at = 0
        self.seen = 0
        self.reached = asyncio.Event()

    def arm(self, at: int) -> None:
        self.at, self.seen = at, 0
        self.reached.clear()

    def __call__(self, event: Event) -> None:
        self.seen += 1
        if self.seen == self.at:
            self.reached.set()


LIMITS = {"max_tokens": 45_000}
EVENTS, PARTS = 150, 4


async def views(project: Path) -> list[RunState]:
    """Every run in the journal, oldest first, as far as it can be trusted."""
    found = []
    async with open_journal(project) as store:
        for row in reversed(await store.runs(limit=1_000)):
            await audit(store, row.id)
            found.append(retinue.fold(await read_all(store, row.id)))
    return found


def opened_tree(opened: Opened, trip: Trip) -> AbstractAsyncContextManager[Runtime]:
    return opened(
        model=busy_tree(),
        mode="auto",
        limits=LIMITS,
        shell=True,
        unsafe_no_sandbox=True,
        cache=False,
        on_event=trip,
    )


async def test_tree_ends_without_cancellation(opened: Opened, project: Path) -> None:
    """Or the test below would show little."""
    (project / "notes.txt").write_text("note\n")
    trip = Trip()
    async with opened_tree(opened, trip) as rt:
        run = await rt.run("Lead.")
    assert (run.status, run.error) == ("completed", None)
    assert run.children == 11
    (view,) = await views(project)
    assert view.agents["a1"].status == "cancelled"
    assert {a.status for a in view.agents.values() if a.id != "a1"} == {"completed"}
    assert trip.seen > EVENTS
    assert processes_of(project.parent / "home") == []


@pytest.mark.parametrize("part", range(PARTS))
async def test_cancelling_at_any_moment_leaves_nothing(
    opened: Opened, project: Path, part: int
) -> None:
    (project / "notes.txt").write_text("note\n")
    home, some, trip = project.parent / "home", random.Random(part), Trip()
    events = range(1 + part, EVENTS + 1, PARTS)
    moments = [(at, some.choice([0, 0, 1, 2, 5, 20])) for at in events]
    cancelled = 0
    async with opened_tree(opened, trip) as rt:
        before = asyncio.all_tasks()
        for at, later in moments:
            trip.arm(at)
            run = asyncio.create_task(rt.run("Lead."))
            waiting = asyncio.create_task(trip.reached.wait())
            await asyncio.wait([run, waiting], return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            for _ in range(later):
                await asyncio.sleep(0)
            rt.set_cancel_reason(WHY)
            run.cancel()
            if some.random() < 0.3:
                # An impatient user.
                await asyncio.sleep(0)
                run.cancel()
            await asyncio.wait([run, waiting])
            cancelled += run.cancelled()
            assert asyncio.all_tasks() == before, (at, later)
            assert await all_gone(home), (at, later)
    found = await views(project)
    assert len(found) == len(moments)
    for view, moment in zip(found, moments, strict=True):
        assert view.status in ("cancelled", "completed"), moment
        assert {agent.state for agent in view.agents.values()} == {"closed"}, moment
        assert all(agent.close_reason for agent in view.agents.values()), moment
    assert sum(view.status == "cancelled" for view in found) == cancelled
    assert cancelled >= 0.9 * len(moments)
    assert {view.reason for view in found if view.status == "cancelled"} == {WHY}
    assert any(len(view.agents) > 8 for view in found if view.status == "cancelled")
    assert os.listdir(project / "out") == ["f.txt"]


async def test_cancelled_fan_out_returns_its_reservations(opened: Opened) -> None:
    never, asked = asyncio.Event(), asyncio.Semaphore(0)

    def stuck(request: Request) -> Step:
        asked.release()
        return hold(never, say("never"))

    # With the densest text a question takes about 3,000; the answers have the rest.
    model = ScriptedModel({"Wait": [stuck], "Last": [small(say("Mine."))]})
    async with opened(model=model, limits={"max_tokens": 20_000}) as rt:
        fan = asyncio.create_task(
            rt.fan_out([("researcher", f"Wait {n}.") for n in range(50)], max_concurrent=50)
        )
        await asked.acquire()
        fan.cancel()
        await asyncio.wait([fan])
        result = await rt.spawn("researcher", "Last.")
    assert result.response == "Mine."
    last = model.requests[-1]
    assert last.max_output_tokens == 8_192, "as much as if nobody had ever asked"


async def test_cancelling_a_child_cancels_its_children(opened: Opened, project: Path) -> None:
    never, asked = asyncio.Event(), asyncio.Event()

    def stuck(request: Request) -> Step:
        asked.set()
        return hold(never, say("never"))

    model = ScriptedModel(
        {
            "grandchild:": [stuck],
            "child:": [
                calls(
                    call("spawn_agent", task="grandchild: 1", role="reviewer", background=True),
                    call("spawn_agent", task="grandchild: 2", role="reviewer"),
                ),
            ],
            "": [
                call("spawn_agent", task="child: go", role="executor", background=True),
                hold(asked, call("agent_cancel", id="a1")),
                call("agent_message", id="a1", text="Come back!"),
                call("spawn_await", job_ids="a1"),
                say("It is gone."),
            ],
        }
    )
    seen: list[Event] = []
    async with opened(model=model, mode="auto", on_event=seen.append) as rt:
        before = asyncio.all_tasks()
        run = await rt.run("Lead.")
        assert asyncio.all_tasks() == before
    assert run.ok
    (view,) = await views(project)
    below = [agent for agent in view.agents.values() if agent.id != "a0"]
    assert len(below) == 3
    assert {(a.status, a.state, a.close_reason) for a in below} == {
        ("cancelled", "closed", "cancelled by its parent")
    }
    answers = [
        f.content for e in seen if e.agent_id == "a0" and isinstance(f := e.fact, ToolFinished)
    ]
    assert answers[2] == "[ERROR] a1 was stopped (cancelled by its parent) and stays so."
    assert answers[3].startswith("[a1: ERROR]")
    assert sum(isinstance(e.fact, AgentCreated) for e in seen) == len(view.agents)


async def test_job_cancelled_by_the_user_stays_cancelled(opened: Opened) -> None:
    never, asked = asyncio.Event(), asyncio.Event()

    def stuck(request: Request) -> Step:
        asked.set()
        return hold(never, say("never"))

    model = ScriptedModel({"child:": [stuck]})
    async with opened(model=model, mode="auto") as rt:
        job = await rt.start("researcher", "child: go", max_retries=3)
        await asked.wait()
        job.cancel("the user said stop")
        result = await job.result()
        job.cancel("again")
        assert (result.status, result.error) == ("cancelled", "the user said stop")
        assert await rt.join("*") == [result]
    assert len(model.requests) == 1, "no attempt follows a stop"


async def test_job_cancelled_before_its_start_is_closed(opened: Opened, project: Path) -> None:
    model = ScriptedModel({"": [small(say("Too late."))]}, strict=False)
    async with opened(model=model) as rt:
        for later in range(12):
            job = await rt.start("researcher", f"Go {later}.")
            for _ in range(later):
                await asyncio.sleep(0)
            job.cancel("no more")
            result = await job.result()
            assert result.status in ("cancelled", "completed")
    (view,) = await views(project)
    assert {agent.state for agent in view.agents.values()} == {"closed"}


async def test_command_is_killed_with_its_descendants(opened: Opened, project: Path) -> None:
    """It says that it has begun by opening a pipe, for which the test waits."""
    os.mkfifo(project / "begun")
    command = "sleep 1000 & (sleep 1000; echo) & echo > begun; wait"
    model = ScriptedModel({"": [call("run_command", command=command)]}, strict=False)
    home = project.parent / "home"
    async with opened(model=model, mode="auto", shell=True, unsafe_no_sandbox=True) as rt:
        run = asyncio.create_task(rt.run("Sleep."))
        await asyncio.to_thread((project / "begun").read_text)
        started = processes_of(home)
        assert len(started) >= 3
        run.cancel()
        await asyncio.wait([run])
        assert run.cancelled()
    for pid in started:
        assert await asyncio.to_thread(is_gone, int(pid))


async def test_command_that_is_being_started_is_killed(tmp_path: Path) -> None:
    """Cancelled while it starts a shell, asyncio kills the shell, and not what that has started."""
    home = tmp_path / "home"
    sandbox = Unconfined({"HOME": str(home), "PATH": "/usr/bin:/bin"})
    access = Access(root=str(tmp_path), write_scope=NOWHERE)
    for later in range(90):
        running = asyncio.create_task(
            sandbox.run(
                ShellCommand("sleep 1000; true", access=access, timeout_s=60, max_output_bytes=100)
            )
        )
        for _ in range(later % 6):
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait([running])
        assert await all_gone(home), later
