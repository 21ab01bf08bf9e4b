"""Nodes of a Ray cluster that are lost, frozen or cut off, and a head that says nothing."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any

import pytest

from retinue.config.environment import Environment
from retinue.domain.events import AgentPlaced, Event
from retinue.domain.result import Result
from retinue.models.scripted.model import ScriptedReply, call, say
from retinue.project import open_journal
from retinue.runtime.history.audit import audit
from retinue.runtime.runtime import Runtime
from retinue.testing.server import ModelServer, Received, Response, streamed
from tests.runners.host_processes import ended, is_alive, kill
from tests.runners.ray_nodes import RAY, RayNodes, descendants, parent
from tests.runners.writers import Writer, check_done_once, of_type, writer_tasks

pytestmark = RAY
CHILDREN = 4
Opened = Callable[..., AbstractAsyncContextManager[Runtime]]


class Work:
    """Four children that write files on a cluster."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.on_event: Callable[[Event], None] = lambda event: None
        self.placed_again = asyncio.Event()
        self.all_closed = asyncio.Event()
        self.goes_on = asyncio.Event()
        """Replies to children that have called a tool wait for it."""
        self.done: asyncio.Task[list[Result]]

    async def until(self, event: asyncio.Event) -> None:
        """Wait for `event`, which comes before the children are done."""
        waiting = asyncio.create_task(event.wait())
        await asyncio.wait({waiting, self.done}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        assert event.is_set(), [e.summary for e in self.events if e.type == "agent.placed"]

    def note(self, event: Event) -> None:
        self.events.append(event)
        self.on_event(event)
        if isinstance(fact := event.fact, AgentPlaced) and fact.host and fact.placement > 1:
            self.placed_again.set()
        if len(of_type(self.events, "agent.subagent_closed")) == CHILDREN:
            self.all_closed.set()

    @property
    def reasons(self) -> set[str]:
        """Why children were placed again, without the names of hosts."""
        placed = of_type(self.events, "agent.placed")
        return {f.reason.partition(" ")[2] for f in placed if f.host and f.placement > 1}


@pytest.fixture
def writing(
    new_project: Any, environment: Environment, open_project: Opened, nodes: RayNodes
) -> Callable[[], AbstractAsyncContextManager[Work]]:
    """The block begins when all children wait for replies, two on each node.

    After it, they have done all, once.
    """

    @asynccontextmanager
    async def write() -> AsyncIterator[Work]:
        project, model, work, asked = new_project("project"), Writer(), Work(), asyncio.Event()

        def answer(request: Received) -> ScriptedReply | Response:
            reply = model(request)
            if all(message["role"] != "tool" for message in request.json["messages"]):
                return reply
            if model.requests == 2 * CHILDREN:
                asked.set()
            return Response(body=streamed(reply).body, gate=work.goes_on)

        async with (
            ModelServer(answer) as server,
            open_project(
                project,
                model=f"openai:any@{server.base_url}",
                environment=environment,
                mode="auto",
                cluster=nodes.address,
                unsafe_no_sandbox=True,
                on_event=work.note,
            ) as rt,
        ):
            fan_out = rt.fan_out(writer_tasks(CHILDREN), max_concurrent=CHILDREN)
            work.done = asyncio.create_task(fan_out)
            await work.until(asked)
            yield work
            work.goes_on.set()
            results = await work.done
        async with open_journal(project, environment) as store:
            await audit(store, results[0].run_id)
        assert [result.error for result in results] == [None] * CHILDREN
        check_done_once(work.events, results, model.requests, project)

    return write


@contextmanager
def frozen(*pids: int) -> Iterator[None]:
    """Stop processes for the length of the block."""
    for pid in pids:
        kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            kill(pid, signal.SIGCONT)


@contextmanager
def lost_afterwards(nodes: RayNodes, raylet: int) -> Iterator[None]:
    """Another node replaces this one after the block."""
    try:
        yield
    finally:
        if raylet in nodes.raylets:
            nodes.remove(raylet)
        nodes.add()


async def test_a_node_that_is_lost(writing: Any, nodes: RayNodes) -> None:
    with lost_afterwards(nodes, nodes.raylets[-1]):
        async with writing() as work:
            await asyncio.to_thread(nodes.remove, nodes.raylets[-1])
            # Else a quick child is done before the loss is noticed.
            await work.until(work.placed_again)
        assert {reason[:15] for reason in work.reasons} == {"was lost: Actor"}


async def test_a_node_that_freezes_and_wakes_up(writing: Any, nodes: RayNodes) -> None:
    node = nodes.raylets[-1]
    with lost_afterwards(nodes, node):
        async with writing() as work:
            hosts = nodes.host_pids(node)
            assert hosts
            with frozen(*descendants(node)):
                work.goes_on.set()
                await work.until(work.placed_again)
                assert all(map(is_alive, hosts))
            # It ends at once, beside its successor.
            for pid in hosts:
                await ended(pid)
        assert work.reasons == {"has not answered for 10 s"}


async def test_a_host_that_is_cut_off_ends_before_its_children_go_on(
    writing: Any, nodes: RayNodes
) -> None:
    """It works on, and its run cannot end it: nothing passes through its frozen Ray worker."""
    async with writing() as work:
        host = nodes.host_pids(nodes.raylets[-1])[0]
        alive: list[bool] = []

        def note(event: Event) -> None:
            if isinstance(fact := event.fact, AgentPlaced) and fact.host and fact.placement > 1:
                alive.append(is_alive(host))

        work.on_event = note
        with frozen(parent(parent(host))):
            work.goes_on.set()
            await work.until(work.placed_again)
    assert alive
    assert not any(alive)
    assert work.reasons == {"has not answered for 10 s"}


async def test_the_commands_of_a_frozen_host_end_before_its_child_goes_on(
    new_project: Any, environment: Environment, open_project: Opened, nodes: RayNodes
) -> None:
    """The host cannot end them, so its node does."""
    fifo = nodes.folder / "started"
    os.mkfifo(fifo)
    command = f"echo $$ > {fifo}; while sleep 0.02; do :; done"
    steps = [call("run_command", command=command), say("It was interrupted.")]
    model = ModelServer(lambda request: steps["interrupted" in request.body.decode()])
    alive: list[bool] = []
    shell = 0

    def note(event: Event) -> None:
        if isinstance(fact := event.fact, AgentPlaced) and fact.host and fact.placement > 1:
            alive.append(is_alive(shell))

    async with (
        model as server,
        open_project(
            new_project("commands"),
            model=f"openai:any@{server.base_url}",
            environment=environment,
            mode="auto",
            cluster=nodes.address,
            unsafe_no_sandbox=True,
            on_event=note,
        ) as rt,
    ):
        job = await rt.start("executor", "Tick.")
        shell = int(await asyncio.to_thread(fifo.read_text))
        assert is_alive(shell)
        with frozen(*nodes.host_pids()):
            result = await job.result()
    fifo.unlink()
    assert alive == [False]
    assert result.response == "It was interrupted."


async def test_children_work_on_while_the_head_says_nothing(writing: Any, nodes: RayNodes) -> None:
    async with writing() as work:
        with frozen(nodes.gcs_pid):
            work.goes_on.set()
            await work.until(work.all_closed)
    assert not work.reasons
