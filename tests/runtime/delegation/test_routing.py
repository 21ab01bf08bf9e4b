"""Routing: a model and an endpoint per task and per role, among those the user knows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

import retinue
from retinue.config.environment import Environment
from retinue.domain.contract import Contract
from retinue.domain.messages import ToolMessage
from retinue.errors import ConfigError
from retinue.models.scripted.model import ScriptedModel, call, say
from retinue.runtime.runtime import Runtime

Opened = Callable[..., AbstractAsyncContextManager[Runtime]]
Contracts = Callable[[], Awaitable[dict[str, Contract]]]
Settings = Callable[[str], None]

ROOT = "at work in the user's project"


def answers(model: ScriptedModel) -> list[str]:
    return [m.content for m in model.requests[-1].messages if isinstance(m, ToolMessage)]


async def test_a_task_has_its_own_model(opened: Opened, contracts: Contracts) -> None:
    small = ScriptedModel([say("A title.")], name="small")
    large = ScriptedModel(
        {ROOT: [call("spawn_agent", role="researcher", task="Name it", model="small"), say("ok")]},
        name="large",
    )
    async with opened(model=large, models={"small": small}) as rt:
        result = await rt.run("Go.")
    assert result.ok
    assert len(small.requests) == 1
    assert (await contracts())["a1"].execution.model == "small"


async def test_a_program_chooses_too(opened: Opened) -> None:
    small, large = (
        ScriptedModel([say("tiny")], name="small"),
        ScriptedModel([say("huge")], name="large"),
    )
    async with opened(model=large, models={"small": small}) as rt:
        assert (await rt.spawn("researcher", "x", model="small")).response == "tiny"
        assert (await rt.spawn("researcher", "x")).response == "huge", "as its parent, else"


async def test_a_role_has_its_own_model_and_a_call_goes_before_it(
    opened: Opened, settings: Settings
) -> None:
    settings('[roles.planner]\nmodel = "small"\n[profiles.poet]\npool = "small"\n')
    small = ScriptedModel({"": [say("tiny")]}, name="small")
    large = ScriptedModel({"": [say("huge")]}, name="large")
    async with opened(model=large, models={"small": small}) as rt:
        assert (await rt.spawn("planner", "x")).response == "tiny"
        assert (await rt.spawn("poet", "x")).response == "tiny"
        assert (await rt.spawn("planner", "x", model="large")).response == "huge"


async def test_an_unknown_model_or_endpoint_is_refused_and_nothing_is_spawned(
    opened: Opened,
) -> None:
    model = ScriptedModel(
        {
            ROOT: [
                call("spawn_agent", role="researcher", task="x", model="gpt-9"),
                call("spawn_agent", role="researcher", task="x", endpoint="http://evil.example/v1"),
                call("spawn_agent", role="researcher", task="x", model="m@http://evil.example/v1"),
                call("spawn_agent", role="researcher", task="x", model="scripted:/etc/passwd"),
                say("ok"),
            ]
        }
    )
    async with opened(model=model) as rt:
        result = await rt.run("Go.")
        with pytest.raises(ConfigError, match=r"Endpoint 'http://evil\.example/v1' is not known"):
            await rt.spawn("researcher", "x", endpoint="http://evil.example/v1")
    assert result.children == 0
    unknown, *endpoints, scripted = answers(model)
    assert unknown == "[ERROR] Unknown model 'gpt-9'; there are: scripted."
    for answer in endpoints:
        assert answer.startswith("[ERROR] Endpoint 'http://evil.example/v1' is not known; add it")
    assert scripted.startswith("[ERROR] Model 'scripted:/etc/passwd' cannot be chosen here")


async def test_a_known_endpoint_is_routed_to(
    tmp_path: Path, project: Path, settings: Settings, contracts: Contracts
) -> None:
    settings('endpoints = ["http://127.0.0.1:9/v1"]\n')
    # Nobody listens on port 9: what matters is where it went.
    environment = Environment(variables={"HOME": str(tmp_path)})
    name = "openai:qwen@http://127.0.0.1:7/v1"
    async with retinue.open(project, model=name, environment=environment) as rt:
        job = await rt.start("researcher", "x", endpoint="http://127.0.0.1:9/v1", max_retries=0)
        job.cancel()
        other = await rt.start("researcher", "y", model="tiny", max_retries=0)
        other.cancel()
        await rt.join("*")
    routes = [c.execution.model for c in (await contracts()).values()]
    assert routes == [
        name,
        "openai:qwen@http://127.0.0.1:9/v1",
        "openai:tiny@http://127.0.0.1:7/v1",
    ]


async def test_child_inherits_model_and_mode_but_not_the_conversation(
    opened: Opened, contracts: Contracts
) -> None:
    model = ScriptedModel(
        {
            ROOT: [call("spawn_agent", role="researcher", task="Dig"), say("ok")],
            "Dig": [say("A bone.")],
        },
        name="mine",
    )
    async with opened(model=model, mode="auto") as rt:
        await rt.run("A secret.")
    child = (await contracts())["a1"]
    assert child.execution.model == "mine"
    assert child.permissions.mode == "auto"
    talk = "".join(m.content for m in model.requests[1].messages)
    assert "secret" not in talk
