"""The 12 test cases of the seed "spawn now, await later" (001), under their own names.

`spawn` is `spawn_agent` with `background`, `SpawnAwaitTool` is `spawn_await`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from retinue.domain.contract import Contract
from retinue.domain.messages import Request, ToolMessage
from retinue.errors import ProviderError
from retinue.models.scripted.model import (
    ScriptedModel,
    ScriptedReply,
    Step,
    call,
    calls,
    fail,
    hold,
    say,
)
from retinue.runtime.runtime import Runtime

Opened = Callable[..., AbstractAsyncContextManager[Runtime]]
Contracts = Callable[[], Awaitable[dict[str, Contract]]]
Settings = Callable[[str], None]

ROOT = "Go."
PROFILES = """
[profiles.researcher2]
description = "Research specialist."
system_prompt = "Focus on academic sources."
system_prompt_file = "RESEARCHER.md"
bootstrap_files = ["SOUL.md", "AGENTS.md"]
tools = ["search_files", "read_file"]

[profiles.coder]
system_prompt = "You are a coding specialist. Write clean, tested code."
tools = ["read_file", "write_file", "list_dir"]
"""


def spawn(task: str, **arguments: Any) -> ScriptedReply:
    return call("spawn_agent", **{"task": task, "background": True} | arguments)


def wait(job_ids: str) -> Step:
    return call("spawn_await", job_ids=job_ids)


def led(*steps: Step, **children: list[Step]) -> ScriptedModel:
    return ScriptedModel({ROOT: [*steps, say("Done.")], **children}, strict=False)


def answers(model: ScriptedModel) -> list[str]:
    """The tool results that the root got."""
    last = [r for r in model.requests if r.messages[1].content.startswith(ROOT)][-1]
    return [m.content for m in last.messages if isinstance(m, ToolMessage)]


def child(model: ScriptedModel, task: str) -> Request:
    return next(r for r in model.requests if r.messages[1].content.startswith(task))


def parameters(request: Request) -> dict[str, dict[str, Any]]:
    spec = next(tool for tool in request.tools if tool.name == "spawn_agent")
    found: dict[str, dict[str, Any]] = msgspec.json.decode(bytes(spec.parameters))["properties"]
    return found


async def test_spawn_returns_job_id_immediately(opened: Opened) -> None:
    parent_went_on = asyncio.Event()

    def go_on(request: Request) -> Step:
        parent_went_on.set()
        return wait("a1")

    # The child cannot end before the parent has taken another turn.
    model = led(spawn("Dig"), go_on, Dig=[hold(parent_went_on, say("A bone."))])
    async with opened(model=model) as rt:
        await rt.run(ROOT)
    first, second = answers(model)
    assert first.startswith("a1 started in the background")
    assert second.startswith("[a1: OK]\nA bone.")


async def test_spawn_await_star_waits_for_all(opened: Opened) -> None:
    model = led(calls(spawn("One"), spawn("Two")), wait("*"), One=[say("1")], Two=[say("2")])
    async with opened(model=model) as rt:
        await rt.run(ROOT)
    assert answers(model)[-1] == "[a1: OK]\n1\n\n[a2: OK]\n2"


async def test_spawn_await_ids_waits_for_subset(opened: Opened) -> None:
    second_awaited = asyncio.Event()

    def one_done(request: Request) -> Step:
        second_awaited.set()
        return wait("a2,unknown_id")

    model = led(
        calls(spawn("One"), spawn("Two")),
        wait("a1"),
        one_done,
        One=[say("1")],
        Two=[hold(second_awaited, say("2"))],
    )
    async with opened(model=model) as rt:
        await rt.run(ROOT)
    assert answers(model)[2:] == ["[a1: OK]\n1", "[a2: OK]\n2\n\n[unknown_id: NOT FOUND]"]


async def test_sub_agent_error_is_embedded(opened: Opened) -> None:
    model = led(spawn("Fall"), wait("*"), Fall=[fail(ProviderError("it broke"))] * 9)
    async with opened(model=model) as rt:
        await rt.run(ROOT)
    assert answers(model)[-1] == "[a1: ERROR]\nerror: it broke"


async def test_spawn_with_valid_profile_has_its_system_prompt_and_tools(
    opened: Opened, settings: Settings, project: Path
) -> None:
    for name in ("SOUL.md", "AGENTS.md", "RESEARCHER.md"):
        (project / name).write_text(f"This is {name}.\n")
    settings(PROFILES)
    model = led(spawn("Study", profile="researcher2"), wait("*"), Study=[say("ok")])
    async with opened(model=model) as rt:
        await rt.run(ROOT)
    asked = child(model, "Study")
    assert asked.messages[0].content.startswith(
        "This is SOUL.md.\n\nThis is AGENTS.md.\n\nThis is RESEARCHER.md.\n\nFocus on academic"
    )
    assert [tool.name for tool in asked.tools] == ["read_file", "search_files"]


async def test_spawn_without_profile_inherits_parent_system_prompt_and_tools(
    opened: Opened, project: Path, contracts: Contracts
) -> None:
    (project / "AGENTS.md").write_text("Use tabs.")
    model = led(spawn("Work"), wait("*"), Work=[say("ok")])
    async with opened(model=model, mode="auto") as rt:
        await rt.run(ROOT)
    root, asked = model.requests[0], child(model, "Work")
    found = await contracts()
    assert found["a1"].execution.instructions == found["a0"].execution.instructions
    own = {tool.name for tool in root.tools}
    delegation = {name for name in own if name.startswith(("spawn_", "agent_", "delegate_"))}
    assert {tool.name for tool in asked.tools} == own - delegation
    assert "write_file" in own


async def test_spawn_with_unknown_profile_is_an_error(opened: Opened, settings: Settings) -> None:
    settings(PROFILES)
    model = led(spawn("x", profile="resercher"))
    async with opened(model=model) as rt:
        result = await rt.run(ROOT)
    assert result.children == 0
    assert answers(model)[0].startswith("[ERROR] Unknown profile 'resercher'; you may spawn: coder")


@pytest.mark.parametrize("task", ["", "  "])
async def test_spawn_with_empty_task_is_an_error(opened: Opened, task: str) -> None:
    model = led(spawn(task))
    async with opened(model=model) as rt:
        result = await rt.run(ROOT)
    assert (result.children, answers(model)[0][:7]) == (0, "[ERROR]")


async def test_sub_agents_have_no_spawn_tools(opened: Opened, settings: Settings) -> None:
    settings(PROFILES)
    # Not even where the call names them.
    named = spawn("Two", tools="read_file,spawn_agent,spawn_await")
    model = led(
        calls(spawn("One"), named, spawn("Three", profile="coder")),
        wait("*"),
        One=[say("1")],
        Two=[say("2")],
        Three=[say("3")],
    )
    async with opened(model=model, mode="auto") as rt:
        await rt.run(ROOT)
    for task in ("One", "Two", "Three"):
        names = {tool.name for tool in child(model, task).tools}
        assert names, task
        assert not names & {"spawn_agent", "spawn_await", "delegate_task"}


async def test_spawn_has_an_enum_for_known_profiles(opened: Opened, settings: Settings) -> None:
    settings(PROFILES)
    model = led()
    async with opened(model=model) as rt:
        await rt.run(ROOT)
    assert parameters(model.requests[0])["profile"]["enum"] == ["coder", "researcher2"]


async def test_profiles_are_in_the_system_prompt(opened: Opened, settings: Settings) -> None:
    settings(PROFILES)
    model = led()
    async with opened(model=model) as rt:
        await rt.run(ROOT)
    assert (
        "<available_spawn_profiles>\n"
        '  <profile name="coder">The profile coder. Tools: read_file, write_file, list_dir.'
        "</profile>\n"
        '  <profile name="researcher2">Research specialist. Tools: search_files, read_file.'
        "</profile>\n"
        "</available_spawn_profiles>"
    ) in model.requests[0].messages[0].content


async def test_no_profile_injection_when_no_profiles_are_configured(opened: Opened) -> None:
    model = led()
    async with opened(model=model) as rt:
        await rt.run(ROOT)
    assert "profile" not in model.requests[0].messages[0].content
    assert "profile" not in parameters(model.requests[0])
