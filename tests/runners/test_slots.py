"""The slots of a model server are divided among the processes that ask it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import retinue
from retinue.config.environment import Environment
from retinue.domain.events import AgentPlaced, Event
from retinue.models.scripted.model import call, say
from retinue.testing.server import ModelServer, Received, Response, streamed


def answer(request: Received) -> Response:
    turn = sum(message["role"] == "assistant" for message in request.json["messages"])
    reply = streamed([call("list_dir", path="."), say("Done.")][turn])
    return Response(body=reply.body, work_s=0.005)


@pytest.mark.parametrize(
    ("slots", "hosts"), [(3, {"local-1", "local-2"}), (2, {"local-1"}), (1, {""})]
)
async def test_hosts_together_keep_to_the_slots(
    slots: int, hosts: set[str], new_project: Any, environment: Environment, open_project: Any
) -> None:
    home = Path(environment.variables["HOME"]) / ".config" / "retinue"
    home.mkdir(parents=True, exist_ok=True)
    seen: list[Event] = []
    async with ModelServer(answer, slots=slots) as server:
        (home / "config.toml").write_text(
            f'[servers."http://127.0.0.1:{server.port}"]\nslots = {slots}\n'
        )
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
    assert {fact.host for fact in placed} == hosts
    assert retinue.fold(seen).status is retinue.Status.COMPLETED
