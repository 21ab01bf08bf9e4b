"""Messages, cancellation, suspension and silence of children on hosts; and children that stay."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

import retinue
from retinue.config.environment import Environment
from retinue.domain.events import AgentPlaced, Event, MessageReceived, SilenceDetected
from retinue.errors import UsageError
from retinue.interfaces.view.agent_details import agent_details
from retinue.interfaces.view.agent_tree import AgentTree
from retinue.interfaces.view.styled_text import plain_text
from retinue.interfaces.web.run_changes import RunFold
from retinue.models.scripted.model import ScriptedModel, call, say
from retinue.process_hosts import ConnectedHost
from retinue.runtime.placement.messages import Cancel, Command, Place
from retinue.runtime.runtime import Runtime
from retinue.telemetry.spans import SpanFold
from retinue.testing.server import ModelServer, Response, streamed
from tests.runners.host_processes import host_pids, kill

Opened = Callable[..., AbstractAsyncContextManager[Runtime]]


class Gate:
    """A model server whose answers wait."""

    def __init__(self, *steps: Any) -> None:
        self.opened = asyncio.Event()
        self._steps = steps
        self.server = ModelServer(self._answer)

    def _answer(self, request: Any) -> Response:
        turn = sum(message["role"] == "assistant" for message in request.json["messages"])
        reply = streamed(self._steps[min(turn, len(self._steps) - 1)])
        return Response(body=reply.body, gate=self.opened)


@pytest.fixture
def hosted(
    new_project: Any, environment: Environment, open_project: Opened
) -> Callable[..., AbstractAsyncContextManager[Runtime]]:
    def open_hosted(server: ModelServer, **options: Any) -> AbstractAsyncContextManager[Runtime]:
        return open_project(
            new_project("project"),
            model=f"openai:any@{server.base_url}",
            environment=environment,
            **{"cluster": "local:1", **options},
        )

    return open_hosted


async def test_a_message_is_read_in_the_next_turn(hosted: Opened) -> None:
    gate, seen = Gate(call("list_dir", path="."), say("I have looked.")), list[Event]()
    async with gate.server, hosted(gate.server, on_event=seen.append) as rt:
        job = await rt.start("researcher", "Look.")
        await gate.server.received()
        rt.tell(job.id, "Look twice.")
        gate.opened.set()
        result = await job.result()
    assert result.ok
    told = [event.fact for event in seen if isinstance(event.fact, MessageReceived)]
    assert [(fact.source, fact.content) for fact in told] == [("user", "Look twice.")]
    assert "Look twice." in str(gate.server.requests[1].json["messages"])


async def test_cancelling_ends_the_call_on_the_host(hosted: Opened) -> None:
    gate = Gate(say("Too late."))
    async with gate.server, hosted(gate.server) as rt:
        job = await rt.start("researcher", "Look.")
        await gate.server.received()
        rt.cancel(job.id)
        result = await job.result()
        await gate.server.hung_up()
    assert (result.status, result.error) == (retinue.Status.CANCELLED, "stopped by the user")


async def test_cancelling_an_agent_that_waits_for_a_host(
    hosted: Opened, environment: Environment
) -> None:
    environment.user_settings_file.write_text("[cluster]\nchildren_per_node = 1\n")
    gate, waits = Gate(say("I have looked.")), asyncio.Event()

    def note(event: Event) -> None:
        if isinstance(event.fact, AgentPlaced) and event.fact.reason.startswith("waits for a host"):
            waits.set()

    async with gate.server, hosted(gate.server, on_event=note) as rt:
        first, second = [await rt.start("researcher", f"Look {n}.") for n in (1, 2)]
        await waits.wait()
        rt.cancel(second.id)
        result = await second.result()
        assert (result.status, result.error) == (retinue.Status.CANCELLED, "stopped by the user")
        gate.opened.set()
        assert (await first.result()).ok


async def test_a_program_that_fails_cancels_its_children(hosted: Opened) -> None:
    gate, seen = Gate(say("Too late.")), list[Event]()
    async with gate.server:
        async with hosted(gate.server, on_event=seen.append) as rt:
            work = asyncio.create_task(rt.spawn("researcher", "Look."))
            await gate.server.received()
            work.cancel()
            with pytest.raises(asyncio.CancelledError):
                await work
        await gate.server.hung_up()
    failed = [event.summary for event in seen if event.type == "model.failed"]
    assert len(failed) == 1
    assert "the call was cancelled" in failed[0]


async def test_an_agent_that_is_cancelled_before_its_host_has_begun_it(
    hosted: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy host reads both messages at once."""
    placed, cancelled = asyncio.Event(), asyncio.Event()

    def send(host: ConnectedHost, command: Command) -> None:
        send_it(host, command)
        for kind, event in ((Place, placed), (Cancel, cancelled)):
            if isinstance(command, kind):
                event.set()

    send_it = ConnectedHost.send
    monkeypatch.setattr(ConnectedHost, "send", send)
    async with ModelServer([]) as server, hosted(server) as rt:
        (host,) = host_pids()
        kill(host, signal.SIGSTOP)
        work = asyncio.create_task(rt.spawn("researcher", "Look."))
        await placed.wait()
        work.cancel()
        await cancelled.wait()
        kill(host, signal.SIGCONT)
        with pytest.raises(asyncio.CancelledError):
            await work
        assert host_pids() == [host], "it was not the loss of the host that ended the agent"


async def suspend_in_the_first_turn(
    opening: AbstractAsyncContextManager[Runtime], gate: Gate
) -> None:
    async with opening as rt:
        work = asyncio.create_task(rt.spawn("researcher", "Look."))
        await gate.server.received()
        idle = asyncio.Event()
        rt.suspend("a break", idle.set)
        gate.opened.set()
        await idle.wait()
        work.cancel()
        await work


async def test_a_suspended_run_goes_on_later(
    hosted: Opened, environment: Environment, open_project: Opened
) -> None:
    gate = Gate(call("list_dir", path="."), say("So far nothing."), say("Now I know."))
    async with gate.server:
        name = f"openai:any@{gate.server.base_url}"
        seen: list[Event] = []
        with pytest.raises(asyncio.CancelledError):
            await suspend_in_the_first_turn(hosted(gate.server, on_event=seen.append), gate)
        project = Path(retinue.fold(seen).directory)
        run_id = seen[0].run_id
        seen.clear()
        async with open_project(
            project, model=name, environment=environment, cluster="local:1", on_event=seen.append
        ) as rt:
            result = await rt.resume(run_id)
    (child,) = result.results
    assert child.response == "Now I know."
    placed = [event.fact for event in seen if isinstance(event.fact, AgentPlaced)]
    assert [(fact.host, fact.placement) for fact in placed] == [("local-1", 2)]
    last = gate.server.requests[-1].json["messages"]
    assert "The work goes on where it was stopped" in str(last)


async def test_a_silent_child_is_stopped(
    hosted: Opened, environment: Environment, tmp_path: Path
) -> None:
    settings = tmp_path / "home" / ".config" / "retinue" / "config.toml"
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text("silence_s = 1\n")
    gate, seen = Gate(say("Too late.")), list[Event]()
    async with gate.server, hosted(gate.server, on_event=seen.append) as rt:
        result = await rt.spawn("researcher", "Look.", max_retries=0)
    assert result.status is retinue.Status.TIMEOUT
    assert (result.error or "").endswith("s without a sign of life")
    silences = [event.fact for event in seen if isinstance(event.fact, SilenceDetected)]
    assert [fact.stopped for fact in silences] == [False, True]


@retinue.tool(effect="read")
async def lookup(name: str) -> str:
    """Look something up."""
    return f"{name} is known."


async def test_children_that_need_something_of_the_program_stay_in_it(
    hosted: Opened, environment: Environment
) -> None:
    seen: list[Event] = []
    gate = Gate(say('{"n": 1}'))
    gate.opened.set()
    own = ScriptedModel([say("Mine.")], name="own")
    async with (
        gate.server,
        hosted(gate.server, on_event=seen.append, tools=[lookup], models={"own": own}) as rt,
    ):
        first = await rt.spawn("general", "Look.", tools=("lookup",))
        second = await rt.spawn("researcher", "Count.", output=dict[str, int])
        third = await rt.spawn("researcher", "Look.", model="own")
        fourth = await rt.spawn("researcher", "Look.")
    assert [one.error for one in (first, second, third, fourth)] == [None] * 4
    placed = [event.fact for event in seen if isinstance(event.fact, AgentPlaced)]
    assert [fact.host or fact.reason for fact in placed] == [
        "runs here: local-1 has no lookup",
        "runs here: its output type belongs to this program",
        "runs here: own cannot be asked by another process",
        "local-1",
    ]


@pytest.mark.parametrize(
    "name", ["local", "local:", "local:0", "local:x", "local:999", "head", ":6379"]
)
async def test_an_unknown_cluster(hosted: Opened, name: str) -> None:
    async with ModelServer() as server:
        with pytest.raises(UsageError, match=f"^Unknown cluster '{name}'; local:N runs children"):
            async with hosted(server, cluster=name):
                pass


async def test_the_address_of_a_ray_client_is_refused(hosted: Opened) -> None:
    async with ModelServer() as server:
        with pytest.raises(UsageError) as raised:
            async with hosted(server, cluster="ray://head:10001"):
                pass
    assert str(raised.value) == (
        "'ray://head:10001' is an address of Ray Client, which retinue does not use: name the head"
        " as HOST:PORT, on a machine that has joined the cluster."
    )


async def test_where_a_child_runs_is_shown(hosted: Opened) -> None:
    gate, seen = Gate(say("Looked.")), list[Event]()
    gate.opened.set()
    async with gate.server, hosted(gate.server, on_event=seen.append) as rt:
        await rt.spawn("researcher", "Look.")
    child = retinue.fold(seen).agents["a1"]
    (heading, *_) = agent_details(child, None, [], width=80, now=0.0)
    assert plain_text(heading.lines).endswith(" on local-1")
    page = RunFold()
    shown = [
        change.agents["a1"].get("host") for e in seen if "a1" in (change := page.apply(e)).agents
    ]
    assert [host for host in shown if host is not None] == ["", "local-1"]
    tree, fold = AgentTree(), SpanFold()
    names = set()
    for event in seen:
        tree.apply(event)
        names |= {row.label for row in tree.rows(event.time)}
    assert {"researcher.1", "researcher.1@local-1"} < names
    spans = [span for event in seen for span in fold.apply(event)]
    placed = [
        span.attributes["retinue.host"] for span in spans if "retinue.host" in span.attributes
    ]
    assert placed == ["local-1"]
