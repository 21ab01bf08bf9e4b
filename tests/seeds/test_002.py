"""The rules of the seed "contract, lifecycle, audit" (002), section by section."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from retinue.domain.contract import Contract
from retinue.domain.events import AgentClosed, Event
from retinue.domain.lifecycle import State, move
from retinue.domain.messages import Request
from retinue.domain.result import Result, Status
from retinue.errors import IllegalTransition, PlanError
from retinue.models.scripted.model import ScriptedModel, Step, call, calls, say
from retinue.runtime.runtime import Runtime

Opened = Callable[..., AbstractAsyncContextManager[Runtime]]
Contracts = Callable[[], Awaitable[dict[str, Contract]]]
Settings = Callable[[str], None]

ROOT = "at work in the user's project"


def write(path: str, content: str) -> Step:
    return call("write_file", path=path, content=content)


async def events_of(rt: Runtime, run_id: str, agent: str) -> list[Event]:
    return [event async for event in rt.events(run_id) if event.agent_id == agent]


def required(events: list[Event]) -> list[str]:
    """The events of a child that the seed names, in their order."""
    names = ("agent.subagent_", "agent.worktree_merged")
    return [event.type for event in events if event.type.startswith(names)]


async def test_2_delegation_contract(opened: Opened, contracts: Contracts) -> None:
    async with opened(model=ScriptedModel([say("ok")])) as rt:
        await rt.spawn("researcher", "Find it.\nAll.", success_criteria=["a list"], timeout_s=90)
    contract = (await contracts())["a1"]
    found: dict[str, Any] = msgspec.json.decode(contract.encode().canonical)
    required = {
        "parent": {"run_id", "step_idx", "task_prompt", "goal_summary"},
        "step": {"title", "description", "success_criteria"},
        "permissions": {"allowed_tools", "can_spawn_children", "max_delegation_depth"},
        "execution": {"attempt_timeout_ms", "max_retries", "close_on_completion"},
        "outputs": {"report_format", "report_path_pattern"},
    }
    assert {part: names & found[part].keys() for part, names in required.items()} == required
    assert all(found["parent"][name] not in ("", None) for name in required["parent"])
    assert found["step"]["title"] == "Find it."
    assert found["execution"]["attempt_timeout_ms"] == 90_000
    assert found["permissions"]["can_spawn_children"] is False
    with pytest.raises(AttributeError):
        contract.parent.run_id = "other"  # type: ignore[misc]


async def test_2_contract_is_persisted_before_anything_runs(opened: Opened) -> None:
    async with opened(model=ScriptedModel([say("ok")])) as rt:
        result = await rt.spawn("researcher", "x")
        found = await events_of(rt, result.run_id, "a1")
    assert [event.type for event in found][:2] == [
        "agent.subagent_created",
        "agent.subagent_started",
    ]


async def test_2_child_uses_allowed_tools_only(opened: Opened) -> None:
    model = ScriptedModel([call("list_dir", path="."), say("ok")])
    async with opened(model=model) as rt:
        await rt.spawn("researcher", "x", tools=["read_file"])
    assert "[DENIED] You have no tool 'list_dir'" in model.requests[1].messages[-1].content


async def test_2_child_delegation_is_disabled_by_default_and_audited(opened: Opened) -> None:
    model = ScriptedModel([call("spawn_agent", task="deeper", role="reviewer"), say("ok")])
    async with opened(model=model) as rt:
        result = await rt.spawn("researcher", "x")
        found = await events_of(rt, result.run_id, "a1")
    assert "tool.denied" in [event.type for event in found]


ORDER = [State.CREATED, State.RUNNING, State.WAITING_FOR_MERGE]


@pytest.mark.parametrize("last", [State.COMPLETED, State.FAILED])
def test_3_lifecycle(last: State) -> None:
    states = [*ORDER, last, State.CLOSED]
    for before, after in pairwise(states):
        assert move(before, after) is after
    for before in State:
        with pytest.raises(IllegalTransition):
            move(before, State.CREATED)
        with pytest.raises(IllegalTransition):
            move(State.CLOSED, before)


async def test_4_parent_closes_every_child(opened: Opened) -> None:
    model = ScriptedModel({"One": [say("ok")], "Two": [call("list_dir")] * 9})
    async with opened(model=model) as rt:
        one = await rt.spawn("researcher", "One")
        two = await rt.spawn("researcher", "Two", max_tool_calls=1)
        closings = [(await events_of(rt, one.run_id, id))[-1].fact for id in ("a1", "a2")]
    assert all(isinstance(fact, AgentClosed) for fact in closings)
    assert [(c.sub_agent_id, c.step_idx, c.final_status) for c in closings] == [  # type: ignore[union-attr]
        ("a1", 0, "completed"),
        ("a2", 1, "failed"),
    ]
    assert all(fact.close_reason for fact in closings)  # type: ignore[union-attr]
    assert two.status is Status.BUDGET_EXCEEDED


async def conflict(opened: Opened, repo: Any) -> tuple[list[Result], list[list[str]]]:
    """A child whose work is merged, and one whose file the user changes meanwhile."""
    repo.init().commit({"a.txt": "a\n"})

    def user_edits(request: Request) -> Step:
        repo.write("a.txt", "by the user\n")
        return say("ok")

    model = ScriptedModel({
        "Paint": [write("b.txt", "b\n"), say("ok")],
        "Carve": [write("a.txt", "by the child\n"), user_edits],
    })  # fmt: skip
    async with opened(model=model, mode="auto") as rt:
        results = await rt.fan_out([("executor", "Paint"), ("executor", "Carve")])
        events = [required(await events_of(rt, results[0].run_id, id)) for id in ("a1", "a2")]
    return results, events


async def test_5_finishing_is_not_completing(opened: Opened, repo: Any) -> None:
    results, events = await conflict(opened, repo)
    assert [result.status for result in results] == [Status.COMPLETED, Status.CONFLICT]
    # The second child has done its work, and its integration failed: no soft warning.
    assert "agent.subagent_waiting_for_merge" in events[1]
    assert "agent.subagent_failed" in events[1]
    assert (repo.root / "a.txt").read_text() == "by the user\n"


async def test_6_events_of_a_child_are_in_the_required_order(opened: Opened, repo: Any) -> None:
    _, (merged, failed) = await conflict(opened, repo)
    begin = ["agent.subagent_created", "agent.subagent_started", "agent.subagent_attempt"]
    assert merged == [
        *begin,
        "agent.subagent_waiting_for_merge",
        "agent.worktree_merged",
        "agent.subagent_completed",
        "agent.subagent_closed",
    ]
    # With the work of its siblings it may have been merged before it could not be applied.
    assert [name for name in failed if name != "agent.worktree_merged"] == [
        *begin,
        "agent.subagent_waiting_for_merge",
        "agent.subagent_failed",
        "agent.subagent_closed",
    ]


async def test_6_every_event_has_a_summary_of_one_line(opened: Opened) -> None:
    async with opened(model=ScriptedModel([call("list_dir", path="."), say("ok")])) as rt:
        result = await rt.spawn("researcher", "x")
        found = [event async for event in rt.events(result.run_id)]
    assert all(event.summary and "\n" not in event.summary for event in found)
    assert [event.seq for event in found] == [*range(found[0].seq, found[0].seq + len(found))]


async def test_7_parallel_only_without_overlap(opened: Opened) -> None:
    steps = [
        {"name": name, "role": "executor", "task": name, "writes": [path]}
        for name, path in (("one", "src/a/**"), ("two", "src/**"))
    ]
    async with opened(model=ScriptedModel([]), mode="auto") as rt:
        with pytest.raises(PlanError, match="shares paths with step 'one', which may run at"):
            await rt.check({"goal": "g", "steps": steps})


async def test_8_report_per_step(opened: Opened, project: Path) -> None:
    async with opened(model=ScriptedModel([say("Found it.")])) as rt:
        await rt.spawn("researcher", "Find it")
    assert "Found it." in (project / ".retinue" / "step-0-result.md").read_text()


async def test_only_the_parent_changes_the_outcome_of_the_run(opened: Opened) -> None:
    spawn = call("spawn_agent", task="Break", role="researcher", max_tool_calls=1)
    model = ScriptedModel({
        ROOT: [spawn, say("I cope.")],
        "Break": [calls(call("list_dir"), call("list_dir")), say("half")],
    })  # fmt: skip
    seen: list[Event] = []
    async with opened(model=model, on_event=seen.append) as rt:
        await rt.run("Go.")
    outcomes = [event for event in seen if event.type == "run.finished"]
    assert [event.agent_id for event in outcomes] == ["a0"]
    assert seen[-1] is outcomes[0], "after every child is closed"
