"""Sampling settings: from settings, roles and calls, through contracts, into requests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

import pytest

import retinue
from retinue.domain.contract import Contract
from retinue.domain.sampling import NO_SAMPLING, Sampling
from retinue.errors import ContractError
from retinue.models.scripted.model import ScriptedModel, call, say
from retinue.runtime.runtime import Runtime
from retinue.testing.server import ModelServer, failing

Opened = Callable[..., AbstractAsyncContextManager[Runtime]]
Contracts = Callable[[], Awaitable[dict[str, Contract]]]
Settings = Callable[[str], None]

SETTINGS = """
[sampling]
temperature = 0.7
seed = 1

[roles.reviewer.sampling]
temperature = 0.1
"""


async def test_call_then_role_then_parent(opened: Opened, settings: Settings) -> None:
    settings(SETTINGS)
    model = ScriptedModel({"": [say("ok")]})
    other = ScriptedModel({"": [say("ok")]})
    async with opened(model=model, models={"other": other}) as rt:
        await rt.spawn("researcher", "a")
        await rt.spawn("reviewer", "b")
        await rt.spawn("reviewer", "c", sampling={"temperature": 0.5, "max_output_tokens": 16})
        await rt.spawn("reviewer", "d", model="other")
    assert [request.sampling for request in model.requests] == [
        Sampling(temperature=0.7, seed=1),
        Sampling(temperature=0.1, seed=1),
        Sampling(temperature=0.5, seed=1, max_output_tokens=16),
    ]
    assert model.requests[2].max_output_tokens == 16
    # The settings of one model may be wrong for another.
    assert other.requests[0].sampling == Sampling(temperature=0.1)


async def test_spawn_agent(opened: Opened, contracts: Contracts) -> None:
    short = call("spawn_agent", role="researcher", task="t", max_output_tokens=16, temperature=0)
    wrong = call("spawn_agent", role="researcher", task="t", max_output_tokens=15)
    model = ScriptedModel({"user's project": [short, wrong, say("done")], "": [say("ok")]})
    async with opened(model=model) as rt:
        await rt.run("go")
    sampling = Sampling(temperature=0, max_output_tokens=16)
    assert model.requests[1].sampling == sampling
    answer = model.requests[-1].messages[-1].content
    assert answer == "[ERROR] max_output_tokens must be at least 16, not 15."
    found = await contracts()
    assert (found["a1"].execution.sampling, len(found)) == (sampling, 2)
    # Contracts without settings have the bytes that they had before there were any.
    assert b"sampling" not in found["a0"].encode().canonical


async def test_wrong_settings_are_refused_before_any_work(opened: Opened) -> None:
    model = ScriptedModel([])
    async with opened(model=model) as rt:
        with pytest.raises(ContractError, match="top_p must be between 0 and 1"):
            await rt.fan_out([
                ("researcher", "a"),
                retinue.Task("researcher", "b", sampling=Sampling(top_p=2)),
            ])  # fmt: skip
    assert model.requests == []


async def test_refused_temperature_is_left_out(opened: Opened, settings: Settings) -> None:
    settings("[sampling]\ntemperature = 0.2\nextra_body = { min_p = 0.1 }\n")
    refusal = failing(400, "Unsupported value: 'temperature' does not support 0.2")
    async with (
        ModelServer([refusal, say("one"), say("two")]) as server,
        opened(model=f"openai:m@{server.base_url}") as rt,
    ):
        first = await rt.spawn("researcher", "a")
        second = await rt.spawn("researcher", "b")
    assert (first.response, second.response) == ("one", "two")
    bodies = [received.json for received in server.requests]
    assert [body.get("temperature") for body in bodies] == [0.2, None, None]
    assert [body["min_p"] for body in bodies] == [0.1] * 3


def test_nothing_is_set_by_default() -> None:
    assert retinue.Task("researcher", "x").sampling == NO_SAMPLING
