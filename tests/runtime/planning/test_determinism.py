"""The same plan with the same scripted model twice: the same journal up to times and ids."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import retinue
from retinue.config.environment import Environment
from retinue.domain.events import (
    AgentClosed,
    AgentCreated,
    Event,
    PlanStepFinished,
    PlanStepStarted,
)
from retinue.domain.plan.outcome import PlanResult
from retinue.errors import ProviderError
from retinue.models.scripted.model import ScriptedModel, Step, call, calls, fail, hold, say
from retinue.project import open_journal
from retinue.runtime.history.audit import audit
from retinue.testing.clock import FakeClock
from tests.canonical_journal import CanonicalFact, canonical_journal

if TYPE_CHECKING:
    from tests.conftest import Repo


class Dawdling:
    """Lets others go first, some times, by chance."""

    def __init__(self, numbers: random.Random) -> None:
        self._numbers = numbers

    async def wait(self) -> None:
        for _ in range(self._numbers.choice([0, 0, 1, 20])):
            await asyncio.sleep(self._numbers.choice([0, 0.0005]))


def step(name: str, *needs: str, role: str = "researcher", **more: Any) -> dict[str, Any]:
    return {"name": name, "role": role, "task": f"Do {name}.", "depends_on": list(needs), **more}


def plan(*steps: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"goal": "Get there", "steps": list(steps), **more}


def better_at_second(request: Any) -> Step:
    tried = "An earlier try" in request.messages[1].content
    return say("fine") if tried else fail(ProviderError("not yet"))


async def carried_out(
    repo: Repo, script: Mapping[str, list[Step]], steps: Any, *, slots: int, seed: int = 0
) -> tuple[PlanResult, list[Event], dict[str, str]]:
    """Everybody dawdles, each seed in another way."""
    numbers = random.Random(seed)
    dawdling = {
        task: [hold(Dawdling(numbers), one) for one in replies] for task, replies in script.items()
    }
    repo.init().commit({"a.txt": "a\n"})
    async with retinue.open(
        repo.root,
        model=ScriptedModel(dawdling, strict=False),
        mode="auto",
        environment=Environment(variables={"HOME": str(repo.home)}),
        shell=False,
        clock=FakeClock(),
    ) as rt:
        done = await rt.execute(steps, max_concurrent=slots)
    async with open_journal(repo.root) as store:
        await audit(store, done.run_id)
        return done, list(await store.events(done.run_id)), repo.files()


PLAN = plan(
    step("look"),
    step("left", "look", role="executor", writes=["left/**"]),
    step("right", "look", role="executor", writes=["right/**"]),
    step("both", "left", "right", role="executor", writes=["left/**", "both.txt"]),
    step("last", "both", on_failure="retry"),
)
SCRIPT: dict[str, list[Step]] = {
    "Do look.": [calls(call("list_dir", path="."), call("read_file", path="a.txt")), say("seen")],
    "Do left.": [call("write_file", path="left/a.txt", content="1\n"), say("1")],
    "Do right.": [
        call("spawn_agent", task="Advise.", role="reviewer"),
        call("write_file", path="right/a.txt", content="2\n"),
        say("2"),
    ],
    "Advise.": [say("Write a 2.")],
    "Do both.": [
        call("read_file", path="right/a.txt"),
        call("write_file", path="both.txt", content="3\n"),
        call("write_file", path="left/a.txt", content="1\n3\n"),
        say("joined"),
    ],
    "Do last.": [better_at_second],
}


@pytest.mark.parametrize("slots", [1, 3])
async def test_same_plan_twice_gives_the_same_journal_and_tree(
    repos: Callable[[], Repo], slots: int
) -> None:
    first, one, tree = await carried_out(repos(), SCRIPT, PLAN, slots=slots, seed=1)
    second, other, same_tree = await carried_out(repos(), SCRIPT, PLAN, slots=slots, seed=2)
    assert first.ok, first.error
    assert canonical_journal(one) == canonical_journal(other)
    if slots == 1:  # Then there is only one order.
        assert [(e.agent_id, e.type) for e in one] == [(e.agent_id, e.type) for e in other]
    assert tree == same_tree
    assert tree["left/a.txt"].endswith("1\n3\n")
    assert first.report.replace(first.run_id, "") == second.report.replace(second.run_id, "")


Made = tuple[dict[str, Any], dict[str, list[Step]]]


@st.composite
def plans(draw: st.DrawFn) -> Made:
    """A plan, and a script for it; what fails in it has the rest go on, or is tried again."""
    count = draw(st.integers(2, 6))
    steps: list[dict[str, Any]] = []
    script: dict[str, list[Step]] = {}
    for number in range(count):
        name = f"s{number}"
        needs = [f"s{n}" for n in range(number) if draw(st.booleans())]
        kind = draw(st.sampled_from(["read", "write", "spawn", "retry", "fail"]))
        writes = kind in ("write", "spawn")
        role: dict[str, Any] = {"role": "executor", "writes": [f"{name}/**"]} if writes else {}
        failure = {"retry": "retry", "fail": "continue"}.get(kind, "stop")
        steps.append(step(name, *needs, on_failure=failure, **role))
        seen = [call("find_files", pattern=f"{need}/*") for need in needs]
        own = call("write_file", path=f"{name}/x.txt", content=name)
        helper = call("spawn_agent", task=f"Help {name}.", role="reviewer")
        said: dict[str, list[Step]] = {
            "read": [say(f"{name} is done")],
            "write": [own, say(f"{name} is done")],
            "spawn": [calls(helper, helper), own, say(f"{name} is done")],
            "retry": [better_at_second],
            "fail": [fail(ProviderError("never"))],
        }
        script[f"Do {name}."] = [*([calls(*seen)] if seen else []), *said[kind]]
        if kind == "spawn":
            script[f"Help {name}."] = [call("read_file", path="a.txt"), say("helped")]
    return plan(*steps), script


async def same_twice(repos: Callable[[], Repo], made: Made, slots: int, seed: int) -> None:
    planned, script = made
    steps = {one["name"]: one["depends_on"] for one in planned["steps"]}
    found: list[tuple[list[CanonicalFact], Any, Any]] = []
    for turn in range(2):
        done, events, tree = await carried_out(
            repos(), script, planned, slots=slots, seed=seed + turn
        )
        found.append((canonical_journal(events), tree, [(o.state, o.reason) for o in done.steps]))
        assert_in_order(events, steps)
        assert len(found[-1][0]) == len(events)
    assert found[0] == found[1]


def assert_in_order(events: list[Event], needs: Mapping[str, list[str]]) -> None:
    """Each step begins after all that it needs, its child after it, and it ends after its child."""
    over: set[str] = set()
    begun: set[str] = set()
    closed: set[str] = set()
    for event in events:
        match event.fact:
            case PlanStepStarted(step=name):
                assert over >= set(needs[name])
                begun.add(name)
            case AgentCreated(path=path, depth=1):
                assert path.removeprefix("root/").partition(".")[0] in begun
            case AgentClosed():
                closed.add(event.agent_id)
            case PlanStepFinished(step=name, sub_agent_id=child):
                assert child in closed
                over.add(name)


@settings(max_examples=4, suppress_health_check=list(HealthCheck))
@given(plans(), st.integers(2, 4), st.integers(0, 10**6))
def test_any_plan_is_deterministic_with_concurrent_steps(
    repos: Callable[[], Repo], made: Made, slots: int, seed: int
) -> None:
    asyncio.run(same_twice(repos, made, slots, seed))


@pytest.mark.slow
@settings(max_examples=30, suppress_health_check=list(HealthCheck))
@given(plans(), st.integers(2, 4), st.integers(0, 10**6))
def test_many_plans_are_deterministic_with_concurrent_steps(
    repos: Callable[[], Repo], made: Made, slots: int, seed: int
) -> None:
    asyncio.run(same_twice(repos, made, slots, seed))
