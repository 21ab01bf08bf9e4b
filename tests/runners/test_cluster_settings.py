"""What `[cluster]` in the user's settings says about where children run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from itertools import groupby
from typing import Any

import pytest

import retinue
from retinue.config.environment import Environment
from retinue.domain.events import AgentPlaced, Event
from retinue.errors import RunError
from retinue.models.scripted.model import ScriptedModel, call, say
from retinue.runtime.runtime import Runtime
from retinue.testing.server import ModelServer, Received, Response, streamed
from tests.runners.conftest import SETTINGS
from tests.runners.ray_nodes import RayNodes

Opened = Callable[..., AbstractAsyncContextManager[Runtime]]


@pytest.fixture
def say_settings(environment: Environment) -> Callable[[str], None]:
    """Writes the user's settings."""

    def write(text: str) -> None:
        environment.user_settings_file.write_text(SETTINGS + text)

    return write


@pytest.fixture
def opened(new_project: Any, environment: Environment, open_project: Opened) -> Opened:
    def open_new(server: ModelServer, **options: Any) -> AbstractAsyncContextManager[Runtime]:
        return open_project(
            new_project("project"),
            **{"model": f"openai:any@{server.base_url}", "environment": environment, **options},
        )

    return open_new


def placements(seen: list[Event]) -> list[AgentPlaced]:
    return [event.fact for event in seen if isinstance(event.fact, AgentPlaced)]


def answering(*steps: Any) -> ModelServer:
    def answer(request: Received) -> Response:
        turn = sum(message["role"] == "assistant" for message in request.json["messages"])
        return streamed(steps[turn])

    return ModelServer(answer)


async def test_the_address_need_not_be_named(opened: Opened, say_settings: Any) -> None:
    say_settings('[cluster]\naddress = "local:1"\n')
    seen: list[Event] = []
    async with answering(say("Read.")) as server, opened(server, on_event=seen.append) as rt:
        assert (await rt.spawn("researcher", "Read.")).ok
    assert [fact.host for fact in placements(seen)] == ["local-1"]


@pytest.mark.parametrize("options", [{"cluster": "off"}, {"model": ScriptedModel([say("Read.")])}])
async def test_the_address_can_be_ignored(
    opened: Opened, say_settings: Any, options: dict[str, Any]
) -> None:
    """It is, too, for a model that no other process can ask."""
    say_settings('[cluster]\naddress = "local:1"\n')
    seen: list[Event] = []
    async with (
        answering(say("Read.")) as server,
        opened(server, on_event=seen.append, **options) as rt,
    ):
        assert (await rt.spawn("researcher", "Read.")).ok
    assert placements(seen) == []


async def test_a_project_names_no_cluster(
    environment: Environment, new_project: Any, open_project: Opened
) -> None:
    project, seen = new_project("foreign"), list[Event]()
    (project / "retinue.toml").write_text(
        '[cluster]\naddress = "head.example:6379"\nenvironment = { LD_PRELOAD = "/tmp/x.so" }\n'
    )
    async with (
        answering(say("Read.")) as server,
        open_project(
            project,
            model=f"openai:any@{server.base_url}",
            environment=environment,
            on_event=seen.append,
        ) as rt,
    ):
        assert (await rt.spawn("researcher", "Read.")).ok
    assert placements(seen) == []


async def test_children_wait_while_their_host_is_full(opened: Opened, say_settings: Any) -> None:
    say_settings("[cluster]\nchildren_per_node = 1\n")
    seen: list[Event] = []
    async with (
        answering(call("list_dir", path="."), say("Read.")) as server,
        opened(server, on_event=seen.append, cluster="local:1") as rt,
    ):
        tasks = [("researcher", f"Read {n}.") for n in range(4)]
        results = await rt.fan_out(tasks, max_concurrent=4)
    assert [result.error for result in results] == [None] * 4
    replied = [event.agent_id for event in seen if event.type == "model.replied"]
    one_after_the_other = [id for id, turns in groupby(replied) if len([*turns]) == 2]
    assert sorted(one_after_the_other) == sorted({*replied})
    waited = [fact.reason for fact in placements(seen) if not fact.host]
    assert waited == ["waits for a host: local-1 is full"] * 3


async def test_an_agent_that_waits_for_its_children_leaves_them_room(
    opened: Opened, say_settings: Any
) -> None:
    say_settings("[cluster]\nchildren_per_node = 1\n")
    steps = {
        "Read": [say("It says hello.")],
        "Write": [call("spawn_agent", task="Read a.txt.", role="reviewer"), say("Done.")],
    }

    def answer(request: Received) -> Response:
        messages = request.json["messages"]
        turn = sum(message["role"] == "assistant" for message in messages)
        task = next(str(m["content"]) for m in messages if m["role"] == "user")
        return streamed(steps["Read" if "Read a.txt." in task else "Write"][turn])

    async with (
        ModelServer(answer) as server,
        opened(server, cluster="local:1", shell=False, mode="auto") as rt,
    ):
        result = await rt.spawn("executor", "Write it.")
        state = retinue.fold([event async for event in rt.events(result.run_id)])
    assert result.ok, result.error
    assert [agent.host for agent in state.agents.values()] == ["", "local-1", "local-1"]


# Nodes of a Ray cluster


@pytest.fixture
def gpu_node(nodes: RayNodes) -> Iterator[None]:
    """A third node, with two GPUs as far as Ray knows, and a label."""
    raylet = nodes.add(num_gpus=2, labels={"team": "herons"})
    yield
    nodes.remove(raylet, graceful=True)


GPU_FOR_TESTERS = "[cluster.resources.tester]\nGPU = 1\n"


@pytest.mark.services
@pytest.mark.xdist_group("ray")
@pytest.mark.usefixtures("gpu_node")
async def test_a_role_gets_the_nodes_that_have_what_it_needs(
    opened: Opened, say_settings: Any, nodes: RayNodes
) -> None:
    say_settings("[cluster.resources.researcher]\nGPU = 1\n")
    seen, all_wait = list[Event](), asyncio.Event()

    def note(event: Event) -> None:
        seen.append(event)
        if sum("has no GPU free" in fact.reason for fact in placements(seen)) == 3:
            all_wait.set()

    def answer(_: Received) -> Response:
        return Response(body=streamed(say("Read.")).body, gate=all_wait)

    async with (
        ModelServer(answer) as server,
        opened(server, cluster=nodes.address, on_event=note) as rt,
    ):
        tasks = [("researcher", f"Read {n}.") for n in range(5)]
        results = await rt.fan_out(tasks, max_concurrent=5)
    assert [result.error for result in results] == [None] * 5
    hosts = [fact.host for fact in placements(seen) if fact.host]
    assert len(hosts) == 5
    assert len({*hosts}) == 1, "the node with GPUs"


@pytest.mark.services
@pytest.mark.xdist_group("ray")
async def test_a_role_that_no_node_can_serve_fails_at_once(
    opened: Opened, say_settings: Any, nodes: RayNodes
) -> None:
    say_settings(GPU_FOR_TESTERS + "[cluster.resources.testre]\nGPU = 1\n")
    async with (
        answering(say("Read.")) as server,
        opened(server, cluster=nodes.address, unsafe_no_sandbox=True) as rt,
    ):
        failed = await rt.spawn("tester", "Test it.")
        assert (await rt.spawn("researcher", "Read it.")).ok
        state = retinue.fold([event async for event in rt.events(failed.run_id)])
    error = failed.error or ""
    assert error.startswith("no host has what the role tester needs: ray-")
    assert error.count("has no GPU") == 2
    assert state.root is not None
    assert "[cluster.resources] has unknown roles: testre" in state.root.notes


@pytest.mark.services
@pytest.mark.xdist_group("ray")
@pytest.mark.usefixtures("gpu_node")
async def test_nodes_are_chosen_by_their_labels(
    opened: Opened, say_settings: Any, nodes: RayNodes
) -> None:
    say_settings('[cluster.labels]\nteam = "herons"\n')
    seen: list[Event] = []
    async with (
        answering(say("Read.")) as server,
        opened(server, cluster=nodes.address, on_event=seen.append) as rt,
    ):
        await rt.fan_out([("researcher", f"Read {n}.") for n in range(4)])
    assert len({fact.host for fact in placements(seen)}) == 1
    assert len(nodes.host_pids()) == 0


@pytest.mark.services
@pytest.mark.xdist_group("ray")
async def test_labels_that_no_node_has(opened: Opened, say_settings: Any, nodes: RayNodes) -> None:
    say_settings('[cluster.labels]\nteam = "owls"\n')
    async with answering() as server:
        with pytest.raises(RunError) as raised:
            async with opened(server, cluster=nodes.address):
                pass
    assert str(raised.value) == (
        f"No node of the Ray cluster {nodes.address} takes work: none has the labels team=owls"
        " and a CPU."
    )


@pytest.mark.services
@pytest.mark.xdist_group("ray")
async def test_hosts_on_nodes_get_variables(
    opened: Opened, say_settings: Any, nodes: RayNodes
) -> None:
    """Such as the key of a model server."""
    async with answering(say("Read.")) as server:
        say_settings(
            f'[servers."http://127.0.0.1:{server.port}"]\nkey_variable = "HERON_KEY"\n'
            '[cluster.environment]\nHERON_KEY = "s3cret-of-the-node"\n'
        )
        async with opened(server, cluster=nodes.address) as rt:
            assert (await rt.spawn("researcher", "Read.")).ok
        assert server.requests[-1].headers["authorization"] == "Bearer s3cret-of-the-node"
