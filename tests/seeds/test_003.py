"""The walkthroughs of the seed "roles, fan-out, planning" (003): lifecycle, roles, use cases."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from retinue.config.roles import builtin_roles
from retinue.domain.contract import Contract
from retinue.domain.messages import Request
from retinue.domain.result import Status
from retinue.domain.scope import ANYWHERE, NOWHERE, contains
from retinue.errors import ProviderError
from retinue.models.scripted.model import ScriptedModel, Step, call, fail, hold, say
from retinue.runtime.runtime import Runtime

Opened = Callable[..., AbstractAsyncContextManager[Runtime]]
Contracts = Callable[[], Awaitable[dict[str, Contract]]]

READS = {"find_files", "list_dir", "read_file", "search_files"}
WRITES = {"edit_file", "write_file"}


def write(path: str, content: str) -> Step:
    return call("write_file", path=path, content=content)


# Sub-agent roles


@pytest.mark.parametrize(
    ("name", "budget", "writes", "runs", "spawns"),
    [
        ("researcher", 15, False, False, ()),
        ("planner", 10, False, False, ()),
        ("executor", 30, True, True, ("reviewer",)),
        ("reviewer", 15, False, True, ()),
        ("tester", 20, True, True, ("reviewer",)),
    ],
)
def test_role(name: str, budget: int, writes: bool, runs: bool, spawns: tuple[str, ...]) -> None:
    role = builtin_roles()[name]
    tools = set(role.tools or ())
    assert role.budget.max_tool_calls == budget
    assert tools >= READS
    assert (tools >= WRITES, bool(WRITES & tools)) == (writes, writes)
    assert ("run_command" in tools) is runs
    assert role.spawns == spawns
    assert name in role.instructions


def test_tester_writes_only_to_test_directories_and_reviewer_nothing() -> None:
    tester, reviewer = builtin_roles()["tester"], builtin_roles()["reviewer"]
    assert contains(tester.write_scope, "pkg/tests/test_a.py")
    assert not contains(tester.write_scope, "pkg/a.py")
    assert reviewer.write_scope == NOWHERE
    assert builtin_roles()["executor"].write_scope == ANYWHERE


# Sub-agent lifecycle: spawn, execution, completion, aggregation


async def test_lifecycle(opened: Opened, project: Path, contracts: Contracts) -> None:
    (project / "auth.py").write_text("def login(): ...\n")
    model = ScriptedModel([
        call("search_files", pattern="login"),
        call("read_file", path="auth.py"),
        say("Found 2 patterns:\n- basic auth in auth.py\n- no JWT"),
    ])  # fmt: skip
    async with opened(model=model) as rt:
        result = await rt.spawn(
            role="researcher",
            task="Research authentication implementation",
            budget=10,
            allowed_tools=["read_file", "search_files"],
        )
    contract = (await contracts())["a1"]
    assert contract.execution.max_tool_calls == 10
    assert contract.permissions.allowed_tools == ("read_file", "search_files")
    assert result.ok
    assert result.summary.startswith("Found 2 patterns")
    assert result.findings == ("basic auth in auth.py", "no JWT")
    assert result.usage.tool_calls == 2
    assert result.context_tokens > 0


async def test_scoped_working_directory(opened: Opened, project: Path) -> None:
    (project / "api").mkdir()
    (project / "api" / "a.py").write_text("x")
    model = ScriptedModel([call("list_dir", path="."), say("ok")])
    async with opened(model=model) as rt:
        await rt.spawn("researcher", "Look", directory="api")
    assert "a.py" in model.requests[1].messages[-1].content


# fan_out


async def test_fan_out_keeps_the_order_and_a_failure_sinks_no_sibling(opened: Opened) -> None:
    last_asked = asyncio.Event()

    def asked(request: Request) -> Step:
        last_asked.set()
        return say("three")

    # The first ends last.
    model = ScriptedModel({
        "One": [hold(last_asked, say("one"))],
        "Two": [fail(ProviderError("it broke"))] * 9,
        "Three": [asked],
    })  # fmt: skip
    tasks = [("researcher", "One"), ("researcher", "Two"), ("researcher", "Three")]
    async with opened(model=model) as rt:
        one, two, three = await rt.fan_out(tasks, max_concurrent=3)
    assert (one.response, three.response) == ("one", "three")
    assert (two.ok, two.status, two.error) == (False, Status.ERROR, "it broke")


@pytest.mark.parametrize("most", [1, 3])
async def test_fan_out_runs_at_most_max_concurrent(opened: Opened, most: int) -> None:
    running = busiest = 0
    all_started = asyncio.Event()

    class Gate:
        async def wait(self) -> None:
            nonlocal running, busiest
            running += 1
            busiest = max(busiest, running)
            if running == most:
                all_started.set()
            await all_started.wait()
            running -= 1

    model = ScriptedModel({"": [hold(Gate(), say("ok"))]})
    async with opened(model=model) as rt:
        await rt.fan_out([("researcher", f"{n}") for n in range(6)], max_concurrent=most)
    assert busiest == most


# Hierarchy


async def test_executor_spawns_a_reviewer(opened: Opened, contracts: Contracts) -> None:
    model = ScriptedModel({
        "You are an executor": [call("spawn_agent", task="Review it", role="reviewer"), say("ok")],
        "You are a reviewer": [say("Fine.")],
    })  # fmt: skip
    async with opened(model=model, mode="auto") as rt:
        await rt.spawn("executor", "Do it")
    found = await contracts()
    assert (found["a2"].parent.agent_id, found["a2"].execution.role) == ("a1", "reviewer")


# Use case 1: research then implement


async def test_research_then_implement(opened: Opened, project: Path) -> None:
    (project / "auth.py").write_text("basic\n")
    model = ScriptedModel({
        "Research current": [call("read_file", path="auth.py"), say("Basic auth, no JWT.")],
        "Plan JWT": [say("1. Add jwt_utils.py\n2. Use it in auth.py")],
        "Implement": [write("jwt_utils.py", "jwt\n"), write("auth.py", "jwt\n"), say("Done.")],
        "Review": [call("read_file", path="auth.py"), say("- add an expiration check")],
        "Add": [write("auth.py", "jwt with exp\n"), say("Added.")],
    })  # fmt: skip
    async with opened(model=model, mode="auto") as rt:
        research = await rt.spawn("researcher", "Research current authentication")
        plan = await rt.spawn("planner", "Plan JWT", context=research.summary)
        done = await rt.spawn("executor", "Implement JWT", context=plan.summary)
        review = await rt.spawn("reviewer", "Review JWT for security issues")
        fixed = await rt.spawn("executor", f"Add {review.findings[0]}")
    assert all(result.ok for result in (research, plan, done, review, fixed))
    assert {change.path for change in done.files_modified} == {"auth.py", "jwt_utils.py"}
    assert (project / "auth.py").read_text() == "jwt with exp\n"


# Use case 2: parallel research is `fan_out` above. Use case 3: test-driven development


async def test_test_driven_development(opened: Opened, project: Path) -> None:
    test = "from pricing import calculate_discount\nassert calculate_discount(100, 10) == 90\n"
    code = "def calculate_discount(price, percent):\n    return price * (100 - percent) / 100\n"
    (project / "tests").mkdir()
    model = ScriptedModel({
        "Write tests": [
            write("pricing.py", "not mine to write\n"),
            write("tests/test_pricing.py", test),
            say("Created tests/test_pricing.py."),
        ],
        "Implement": [write("pricing.py", code), say("Created pricing.py.")],
    })  # fmt: skip
    async with opened(model=model, mode="auto") as rt:
        tests = await rt.spawn("tester", "Write tests for calculate_discount(price, percent)")
        assert not (project / "pricing.py").exists()
        written = [change.path for change in tests.files_modified]
        built = await rt.spawn("executor", "Implement it", context_files=written)
    assert written == ["tests/test_pricing.py"]
    assert [change.path for change in built.files_modified] == ["pricing.py"]
    assert test in next(
        r.messages[1].content for r in model.requests if "Implement" in r.messages[1].content
    )


# Planning mode


async def test_plan_for_goal_and_execute_plan(opened: Opened) -> None:
    steps: list[dict[str, Any]] = [
        {"name": "research", "role": "researcher", "task": "How does auth work?"},
        {
            "name": "summarise",
            "role": "planner",
            "task": "Sum up",
            "depends_on": ["research"],
            "success_criteria": ["three lines"],
        },
    ]
    model = ScriptedModel({
        "How does": [say("With sessions.")],
        "Sum up": [say("Sessions; no JWT.")],
    })  # fmt: skip
    async with opened(model=model) as rt:
        outcome = await rt.execute({"goal": "Understand auth", "steps": steps})
    assert outcome.ok
    assert [step.state for step in outcome.steps] == ["done", "done"]
    assert "With sessions." in model.requests[-1].messages[1].content
    assert "Sessions; no JWT." in outcome.report


# Security considerations


async def test_contexts_do_not_leak_and_permissions_do_not_grow(
    opened: Opened, contracts: Contracts
) -> None:
    wanted = call(
        "spawn_agent", task="Take", role="executor", mode="dangerous", max_tool_calls=10_000
    )
    model = ScriptedModel({
        "at work in the user's project": [wanted, say("ok")],
        "Take": [call("list_dir", path="."), say("A secret of the child.\n" + "x" * 20_000)],
    })  # fmt: skip
    async with opened(model=model, mode="normal") as rt:
        await rt.run("A secret of the parent.")
    child = [r for r in model.requests if "Take" in r.messages[1].content]
    assert not any("secret of the parent" in m.content for r in child for m in r.messages)
    contract = (await contracts())["a1"]
    assert contract.permissions.mode == "normal"
    assert not WRITES & {*contract.permissions.allowed_tools}
    assert contract.execution.max_tool_calls == 100
    # What the parent gets is capped at 2,000 tokens.
    assert len(model.requests[-1].messages[-1].content) < 9_000
