"""One way to write contracts: a program's order and a model's call come to the same."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec
import pytest

from retinue.domain.contract import Contract
from retinue.domain.events import AgentCreated, Event
from retinue.models.scripted.model import ScriptedModel, call, say
from retinue.runtime.runtime import Runtime
from retinue.testing.clock import FakeClock

Opened = Callable[..., AbstractAsyncContextManager[Runtime]]
Contracts = Callable[[], Awaitable[dict[str, Contract]]]
Settings = Callable[[str], None]

ROOT = "at work in the user's project"


@pytest.mark.parametrize("mode", ["normal", "auto", "dangerous"])
@pytest.mark.parametrize(
    ("role", "terms"),
    [
        ("researcher", {}),
        ("executor", {}),
        ("executor", {"mode": "plan"}),
        ("executor", {"mode": "auto", "max_tool_calls": 500}),
        ("tester", {"scope": ["tests"], "max_turns": 3}),
        ("reviewer", {"tools": ["read_file", "write_file"]}),
        ("planner", {"max_tokens": 9_000, "timeout_s": 30}),
        ("poet", {"context": "Of roses.", "system_prompt": "In hexameters."}),
        ("poet", {"output": {"type": "string"}}),
    ],
)
async def test_program_and_model_requests_draft_the_same_contract(
    opened: Opened,
    settings: Settings,
    contracts: Contracts,
    clock: FakeClock,
    mode: str,
    role: str,
    terms: dict[str, Any],
) -> None:
    settings('[profiles.poet]\nsystem_prompt = "You are a poet."\ntools = ["read_file"]\n')
    created: list[AgentCreated] = []

    def listen(event: Event) -> None:
        if isinstance(event.fact, AgentCreated) and event.agent_id == "a1":
            created.append(event.fact)

    answer = {"": [say('"ok"')]}
    async with opened(model=ScriptedModel(answer), mode=mode, on_event=listen) as rt:
        await rt.spawn(role, "Do it.", **terms)
    by_program = (await contracts())["a1"]
    clock.advance(1)
    if "output" in terms:
        terms = {"output_schema": terms["output"]}
    spawn = call("spawn_agent", task="Do it.", role=role, **terms)
    model = ScriptedModel({ROOT: [spawn, say("ok")], **answer})
    async with opened(model=model, mode=mode, on_event=listen) as rt:
        run = await rt.run("Go.")
    by_model = (await contracts())["a1"]
    assert by_model.parent.run_id == run.id
    same = msgspec.structs.replace(by_model, parent=by_program.parent)
    assert same == by_program
    assert created[0].notes == created[1].notes
