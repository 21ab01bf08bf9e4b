"""The 34 test cases of the seed "the agent loop as a tool" (000), under their own names.

Its names for things are ours as `retinue.domain.foreign_names` says. Where its numbers differ from
ours, `docs/decisions/0031-where-the-designs-differ.md` says why.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from retinue.domain.budget import Budget, Limits
from retinue.domain.contract import Contract
from retinue.domain.events import CircuitBreakerTripped, Event
from retinue.domain.grant import Mode
from retinue.domain.messages import Request, ToolMessage
from retinue.domain.result import Status
from retinue.errors import ContractError, ProviderError
from retinue.models.scripted.model import ScriptedModel, Step, call, fail, hold, say
from retinue.runtime.runtime import Runtime
from retinue.testing.clock import FakeClock

Opened = Callable[..., AbstractAsyncContextManager[Runtime]]
Contracts = Callable[[], Awaitable[dict[str, Contract]]]
Settings = Callable[[str], None]

ROOT = "at work in the user's project"


def led(*steps: Step, **children: list[Step]) -> ScriptedModel:
    """A root that takes `steps`, and children by a word of their task."""
    return ScriptedModel({ROOT: [*steps, say("Synthesis.")], **children}, strict=False)


def spawn(task: str, **arguments: Any) -> Step:
    return call("spawn_agent", **{"task": task, "role": "researcher"} | arguments)


def endless() -> ScriptedModel:
    """A model that never stops calling a tool."""
    return ScriptedModel([call("list_dir", path=".")] * 20, strict=False)


def answers(model: ScriptedModel) -> list[str]:
    """The tool results that the root got."""
    last = [r for r in model.requests if ROOT in r.messages[0].content][-1]
    return [m.content for m in last.messages if isinstance(m, ToolMessage)]


def tools(request: Request) -> set[str]:
    return {tool.name for tool in request.tools}


# Task 1: SubAgent Budget


def test_returns_defaults_when_no_overrides_provided() -> None:
    budget = Limits().applied_to(Budget())
    assert (budget.max_tool_calls, budget.max_tokens, budget.timeout_s) == (15, 65_536, 300)


def test_merges_partial_overrides_with_defaults() -> None:
    budget = Limits(max_tool_calls=5).applied_to(Budget())
    assert (budget.max_tool_calls, budget.max_tokens) == (5, 65_536)


async def test_clamps_budget_to_parent_limits(opened: Opened, contracts: Contracts) -> None:
    async with opened(model=ScriptedModel([say("ok")])) as rt:
        result = await rt.spawn("researcher", "x", max_tool_calls=200)
    assert (await contracts())["a1"].execution.max_tool_calls == 100
    assert result.notes == ("max_tool_calls 200 became 100: the parent has no more",)


def test_rejects_zero_or_negative_budgets() -> None:
    with pytest.raises(ContractError, match="max_tool_calls must be positive"):
        Limits(max_tool_calls=0).applied_to(Budget())


def test_rejects_timeout_below_5_seconds() -> None:
    with pytest.raises(ContractError, match="timeout_s must be at least 5 seconds"):
        Limits(timeout_s=1).applied_to(Budget())


# Task 2: SubAgent Context

NESTING = '[profiles.boss]\nsystem_prompt = "Boss."\nspawns = ["boss"]\n'


async def depths(opened: Opened, settings: Settings, text: str) -> tuple[list[int], list[str]]:
    """How deep a chain of children gets, and what its last child is told."""
    settings(text + NESTING)
    deeper = call("spawn_agent", task="Deeper", profile="boss")
    model = ScriptedModel({ROOT: [deeper, say("Up.")], "": [deeper, say("Up.")]})
    seen: list[Event] = []
    async with opened(model=model, on_event=seen.append) as rt:
        result = await rt.run("Dig.")
    told = [m.content for r in model.requests for m in r.messages if "[DENIED]" in m.content]
    async with opened(model=model) as rt:
        created = [e async for e in rt.events(result.run_id) if e.type == "agent.subagent_created"]
    return [event.fact.depth for event in created], told  # type: ignore[union-attr]


async def test_creates_context_with_depth_1_for_first_child(
    opened: Opened, contracts: Contracts
) -> None:
    async with opened(model=led(spawn("Look"), Look=[say("ok")])) as rt:
        result = await rt.run("Go.")
        created = [e async for e in rt.events(result.run_id) if e.type == "agent.subagent_created"]
    assert [event.fact.depth for event in created] == [0, 1]  # type: ignore[union-attr]
    child = (await contracts())["a1"]
    assert (child.parent.run_id, child.parent.agent_id) == (result.run_id, "a0")


async def test_increments_depth_for_nested_children(opened: Opened, settings: Settings) -> None:
    found, _ = await depths(opened, settings, "")
    assert found == [0, 1, 2]


async def test_rejects_spawn_when_max_depth_exceeded(opened: Opened, settings: Settings) -> None:
    found, told = await depths(opened, settings, "max_depth = 1\n")
    assert found == [0, 1], "nothing is spawned"
    assert told[0].startswith("[DENIED] Maximum sub-agent depth (1) exceeded: you are at depth 1.")


# Task 3: SubAgent System Prompt


async def prompt(opened: Opened, task: str = "Do it", **options: Any) -> str:
    model = ScriptedModel([say("ok")])
    async with opened(model=model) as rt:
        await rt.spawn("researcher", task, **options)
    return "\n".join(message.content for message in model.requests[0].messages)


async def test_includes_task_description_in_system_prompt(opened: Opened, project: Path) -> None:
    text = await prompt(opened, "Search for auth patterns")
    assert "Search for auth patterns" in text
    assert str(project) in text


async def test_includes_budget_constraints_in_prompt(opened: Opened) -> None:
    assert "10 tool calls" in await prompt(opened, max_tool_calls=10)


async def test_instructs_sub_agent_to_be_concise(opened: Opened) -> None:
    text = await prompt(opened)
    assert "concise" in text
    assert "summary" in text


async def test_does_not_include_the_context_of_the_parent(opened: Opened) -> None:
    model = led(spawn("Look"), Look=[say("ok")])
    async with opened(model=model) as rt:
        await rt.run("A secret of the parent.")
    child = model.requests[1]
    assert not any("secret" in message.content for message in child.messages)


# Task 4: SubAgent Permissions


async def drafted(opened: Opened, contracts: Contracts, of: str, **options: Any) -> Contract:
    async def ask(*_: object) -> str:
        raise AssertionError("a child never asks")

    async with opened(model=ScriptedModel([say("ok")]), mode=of, ask=ask) as rt:
        await rt.spawn("executor", "x", **options)
    return (await contracts())["a1"]


async def test_denies_ask_user_for_children(opened: Opened, contracts: Contracts) -> None:
    granted = (await drafted(opened, contracts, "dangerous")).permissions
    assert "ask_user" not in (*granted.allowed_tools, *granted.ask_tools)


async def test_inherits_parent_mode_when_inherit_mode_is_true(
    opened: Opened, contracts: Contracts
) -> None:
    assert (await drafted(opened, contracts, "auto")).permissions.mode is Mode.AUTO


async def test_does_not_inherit_parent_mode_when_inherit_mode_is_false(
    opened: Opened, contracts: Contracts, settings: Settings
) -> None:
    settings("[sub_agents]\ninherit_mode = false\n")
    assert (await drafted(opened, contracts, "auto")).permissions.mode is Mode.NORMAL


async def test_overrides_mode_when_task_specifies_one(opened: Opened, contracts: Contracts) -> None:
    contract = await drafted(opened, contracts, "auto", mode="plan")
    assert contract.permissions.mode is Mode.PLAN
    assert not {"write_file", "edit_file"} & {*contract.permissions.allowed_tools}


async def test_disables_auto_commit_for_children(opened: Opened, repo: Any) -> None:
    repo.init().commit({"a.txt": "a\n"})
    before = repo.git_dir()
    write = call("write_file", path="b.txt", content="b\n")
    async with opened(model=ScriptedModel([write, say("ok")]), mode="auto") as rt:
        result = await rt.spawn("executor", "Write b.txt")
    assert result.ok
    assert (repo.root / "b.txt").read_text() == "b\n"
    assert repo.git_dir() == before, "no commit, and no checkpoint in the user's repository"


async def test_applies_child_circuit_breaker_from_budget(
    opened: Opened, settings: Settings
) -> None:
    settings("warn_at_calls = 1\npause_at_calls = 2\n")
    seen: list[Event] = []
    async with opened(model=endless(), on_event=seen.append) as rt:
        result = await rt.spawn("researcher", "x", max_tool_calls=10)
    assert (result.status, result.usage.tool_calls) == (Status.BUDGET_EXCEEDED, 10)
    # A child neither warns nor pauses: there is nobody to ask.
    assert not [event for event in seen if isinstance(event.fact, CircuitBreakerTripped)]


# Task 5: spawnSubAgent


async def test_runs_child_agent_loop_to_completion_and_returns_result(
    opened: Opened, clock: FakeClock
) -> None:
    def take_a_second(request: Request) -> Step:
        clock.advance(1)
        return say("Found 3 auth-related files in src/core/")

    model = ScriptedModel([call("search_files", pattern="auth"), take_a_second])
    async with opened(model=model) as rt:
        result = await rt.spawn("researcher", "Find auth patterns")
    assert result.status is Status.COMPLETED
    assert "Found 3 auth-related files" in result.response
    assert result.usage.tool_calls == 1
    assert result.calls_by_tool == {"search_files": 1}
    assert result.usage.duration_s == 1.0


async def test_returns_budget_exceeded_when_tool_call_limit_hit(opened: Opened) -> None:
    async with opened(model=endless()) as rt:
        result = await rt.spawn("researcher", "Infinite loop test", max_tool_calls=3)
    assert (result.status, result.usage.tool_calls) == (Status.BUDGET_EXCEEDED, 3)


async def test_returns_timeout_when_execution_exceeds_timeout(
    opened: Opened, clock: FakeClock
) -> None:
    asked, never = asyncio.Event(), asyncio.Event()

    def hang(request: Request) -> Step:
        asked.set()
        return hold(never, say("too late"))

    async with opened(model=ScriptedModel([call("list_dir", path="."), hang])) as rt:
        job = await rt.start("researcher", "Slow task", timeout_s=5, max_retries=0)
        await asked.wait()
        clock.advance(5)
        result = await job.result()
    assert result.status is Status.TIMEOUT
    assert result.usage.tool_calls == 1, "what was done before is kept"


async def test_returns_error_when_child_throws(opened: Opened) -> None:
    refused = fail(ProviderError("connection refused"))
    async with opened(model=ScriptedModel([refused])) as rt:
        result = await rt.spawn("researcher", "Error test", max_retries=0)
    assert result.status is Status.ERROR
    assert "connection refused" in str(result.error)


async def test_tracks_files_read_and_modified_by_child(opened: Opened, project: Path) -> None:
    (project / "auth.ts").write_text("a\n")
    model = ScriptedModel([
        call("read_file", path="auth.ts"),
        call("edit_file", path="auth.ts", old_text="a", new_text="b"),
        say("Done"),
    ])  # fmt: skip
    async with opened(model=model, mode="auto") as rt:
        result = await rt.spawn("executor", "Edit auth", max_tool_calls=10)
    assert result.files_read == ("auth.ts",)
    assert [change.path for change in result.files_modified] == ["auth.ts"]


async def test_respects_tool_whitelist_when_provided(opened: Opened) -> None:
    model = ScriptedModel([call("run_command", command="rm -rf /"), say("Denied")])
    async with opened(model=model, mode="auto", shell=True, unsafe_no_sandbox=True) as rt:
        result = await rt.spawn("executor", "x", allowed_tools=["read_file", "search_files"])
    assert (result.status, result.usage.tool_calls) == (Status.COMPLETED, 1)
    assert result.receipts == (), "it did not run"
    assert model.requests[1].messages[-1].content.startswith("[DENIED]")


# Task 6: spawn_agent tool executor


async def test_parses_task_from_args_and_calls_spawn_sub_agent(opened: Opened) -> None:
    look = call("list_dir", path=".")
    model = led(
        spawn("Find the auth bug", max_tool_calls=10),
        Find=[look, look, look, say("Found the bug")],
    )
    async with opened(model=model) as rt:
        await rt.run("Go.")
    (answer,) = answers(model)
    assert answer.startswith("[completed] a1 researcher: 4 turns, 3 tool calls, ")
    assert "0.0s" in answer.splitlines()[0]
    assert "\nFound the bug\n" in answer


async def test_formats_error_result_clearly(opened: Opened) -> None:
    model = led(spawn("Failing task"), Failing=[fail(ProviderError("Connection refused"))] * 9)
    async with opened(model=model) as rt:
        await rt.run("Go.")
    assert answers(model)[0].startswith("[ERROR] error: Connection refused\n")


# Task 7: delegate_task orchestrator


def plan(*subtasks: dict[str, Any]) -> Step:
    each = [{"role": "researcher"} | subtask for subtask in subtasks]
    return call("delegate_task", plan="Understand the auth system", subtasks=each)


async def test_executes_subtasks_sequentially(opened: Opened) -> None:
    model = led(
        plan({"task": "Locate all files"}, {"task": "Summarize it"}),
        Locate=[say("Found 5 files")],
        Summarize=[say("Auth uses JWT")],
    )
    async with opened(model=model) as rt:
        result = await rt.run("Go.")
    assert result.children == 2
    (report,) = answers(model)
    assert 0 < report.index("Found 5 files") < report.index("Auth uses JWT")


async def test_injects_previous_subtask_results_into_next_subtask_context(opened: Opened) -> None:
    model = led(
        plan({"task": "List files"}, {"task": "Analyze files", "depends_on": 0}),
        List=[say("File list: a.ts, b.ts")],
        Analyze=[say("Analyzed")],
    )
    async with opened(model=model) as rt:
        await rt.run("Go.")
    second = next(r for r in model.requests if "Analyze files" in r.messages[1].content)
    assert "File list: a.ts, b.ts" in second.messages[1].content


async def test_stops_on_subtask_error(opened: Opened) -> None:
    model = led(
        plan({"task": "Failing step"}, {"task": "Next step"}),
        Failing=[fail(ProviderError("no"))] * 9,
        Next=[say("Should not reach")],
    )
    async with opened(model=model) as rt:
        result = await rt.run("Go.")
    assert result.children == 1
    assert "error" in answers(model)[0]


async def test_limits_total_subtasks_to_5(opened: Opened) -> None:
    model = led(plan(*[{"task": "Do something"}] * 8))
    async with opened(model=model) as rt:
        result = await rt.run("Go.")
    assert result.children == 0
    assert answers(model)[0].startswith("[ERROR] Maximum 5 subtasks")


# Task 8: agentLoop


async def test_produces_same_result_as_before_for_single_turn_task(opened: Opened) -> None:
    async with opened(model=ScriptedModel([say("Hello!")])) as rt:
        result = await rt.run("Say hello")
    assert (result.response, result.usage.turns, result.usage.tool_calls) == ("Hello!", 1, 0)


async def test_supports_sub_agent_context_in_options(opened: Opened) -> None:
    async with opened(model=endless()) as rt:
        result = await rt.spawn("researcher", "Child task", max_tool_calls=5, max_tokens=50_000)
    assert result.usage.tool_calls <= 5


# Task 9: Tool Registry with Sub-Agent Tools


@pytest.mark.parametrize(
    ("mode", "text", "there"),
    [
        pytest.param("normal", "", True, id="includes spawn_agent in normal mode"),
        pytest.param("plan", "", False, id="excludes spawn_agent in plan mode"),
        pytest.param("normal", "delegation = false", False, id="excludes tools when disabled"),
    ],
)
async def test_delegation_tools(
    opened: Opened, settings: Settings, mode: str, text: str, there: bool
) -> None:
    settings(text)
    model = ScriptedModel([say("ok")])
    async with opened(model=model, mode=mode) as rt:
        await rt.run("Go.")
    names = {"spawn_agent", "delegate_task"}
    assert (names <= tools(model.requests[0])) is there
    assert bool(names & tools(model.requests[0])) is there
