"""The slots of a model server are shared by the processes that ask it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import retinue
from retinue.config.environment import Environment
from retinue.domain.events import AgentCreated, AgentPlaced, Event
from retinue.models.scripted.model import call, say
from retinue.testing.server import ModelServer, Received, Response, streamed


def answer(request: Received) -> Response:
    turn = sum(message["role"] == "assistant" for message in request.json["messages"])
    reply = streamed([call("list_dir", path="."), say("Done.")][turn])
    return Response(body=reply.body, work_s=0.005)


def tell_slots(environment: Environment, server: ModelServer, slots: int) -> None:
    home = Path(environment.variables["HOME"]) / ".config" / "retinue"
    home.mkdir(parents=True, exist_ok=True)
    address = f"http://127.0.0.1:{server.port}"
    (home / "config.toml").write_text(f'[servers."{address}"]\nslots = {slots}\n')


@pytest.mark.parametrize("slots", [3, 1])
async def test_hosts_together_keep_to_the_slots(
    slots: int, new_project: Any, environment: Environment, open_project: Any
) -> None:
    """Also if there are fewer slots than hosts."""
    seen: list[Event] = []
    async with ModelServer(answer, slots=slots) as server:
        tell_slots(environment, server, slots)
        async with open_project(
            new_project("slots"),
            model=f"openai:any@{server.base_url}",
            environment=environment,
            cluster="local:2",
            on_event=seen.append,
        ) as rt:
            tasks = [("researcher", f"Look {n}.") for n in range(12)]
            results = await rt.fan_out(tasks, max_concurrent=12)
    assert [result.error for result in results] == [None] * 12
    assert server.refused == 0
    assert server.busiest <= slots
    placed = [event.fact for event in seen if isinstance(event.fact, AgentPlaced)]
    assert {fact.host for fact in placed} == {"local-1", "local-2"}
    assert retinue.fold(seen).status is retinue.Status.COMPLETED


async def test_a_host_gets_all_slots_when_only_its_agents_wait(
    new_project: Any, environment: Environment, open_project: Any
) -> None:
    slots, hosts = 4, 3
    all_at_once = asyncio.Event()
    titles: dict[str, str] = {}
    long: set[str] = set()
    """Tasks on the first host. The others end with the first call."""
    held: list[str] = []

    def note(event: Event) -> None:
        if isinstance(event.fact, AgentCreated):
            titles[event.agent_id] = event.fact.title
        elif isinstance(event.fact, AgentPlaced) and event.fact.host == "local-1":
            long.add(titles[event.agent_id])

    def answer_long(request: Received) -> Response:
        messages = request.json["messages"]
        turn = sum(message["role"] == "assistant" for message in messages)
        title = next(one for one in titles.values() if one in str(messages[1]["content"]))
        if title not in long:
            return Response(body=streamed(say("Done.")).body, work_s=0.002)
        if turn == 0:
            return streamed(call("list_dir", path="."))
        # Answered when as many as there are slots wait side by side.
        held.append(title)
        if len(held) == slots:
            all_at_once.set()
        return Response(body=streamed(say("Done.")).body, gate=all_at_once)

    async with ModelServer(answer_long, slots=slots) as server:
        tell_slots(environment, server, slots)
        async with open_project(
            new_project("uneven"),
            model=f"openai:any@{server.base_url}",
            environment=environment,
            cluster=f"local:{hosts}",
            on_event=note,
        ) as rt:
            tasks = [("researcher", f"Look at {n:02}.") for n in range(slots * hosts)]
            results = await rt.fan_out(tasks, max_concurrent=slots * hosts)
    assert [result.error for result in results] == [None] * slots * hosts
    assert sorted(held) == sorted(long)
    assert server.refused == 0
    assert server.busiest == slots
