"""Plans in which several things go wrong: policies that meet, evidence that must not get lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from retinue.domain.events import Event, PlanStepFinished
from retinue.domain.plan.outcome import StepState
from retinue.domain.result import Status
from retinue.errors import PlanError, ProviderError
from retinue.models.scripted.model import ScriptedModel, call, fail, hold, say
from retinue.runtime.runtime import Runtime
from tests.runtime.planning.test_plans import (
    BROKEN,
    decisions,
    journal,
    plan,
    replanning,
    reviewing,
    step,
    writes,
)

if TYPE_CHECKING:
    from tests.conftest import Repo

Opened = Callable[..., AbstractAsyncContextManager[Runtime]]


class After:
    """Opens its gate when a step is over."""

    def __init__(self, name: str) -> None:
        self.gate = asyncio.Event()
        self._name = name

    def __call__(self, event: Event) -> None:
        if isinstance(event.fact, PlanStepFinished) and event.fact.step == self._name:
            self.gate.set()


async def test_stopped_plan_retries_nothing(opened: Opened, project: Path) -> None:
    after = After("bad")
    model = ScriptedModel(
        {
            "Do bad.": BROKEN,
            "Do slow.": [hold(after.gate, fail(ProviderError("slow broke")))],
        }
    )
    async with opened(model=model, on_event=after) as rt:
        done = await rt.execute(
            plan(step("slow", on_failure="retry"), step("bad"), step("end", "slow")),
            max_concurrent=2,
        )
    assert decisions(await journal(project, done.run_id))[3:5] == [
        "step bad error (no such model); stop",
        "step slow error (slow broke); stop",
    ]
    assert done["slow"].state is StepState.FAILED
    assert done["slow"].reason == "error: slow broke"
    assert done["end"].reason == "it needs slow, which failed"


@pytest.mark.parametrize(("first", "second"), [("stop", "replan"), ("replan", "stop")])
async def test_stop_wins_over_replan(opened: Opened, first: str, second: str) -> None:
    after = After("one")
    model = ScriptedModel(
        {"Do one.": BROKEN, "Do two.": [hold(after.gate, fail(ProviderError("two broke")))]}
    )
    async with opened(model=model, on_event=after) as rt:
        done = await rt.execute(
            plan(step("one", on_failure=first), step("two", on_failure=second)), max_concurrent=2
        )
    assert not done.ok
    assert not any("planner" in r.messages[0].content for r in model.requests)


@pytest.mark.parametrize("first", ["one", "two"])
async def test_order_of_failures_makes_no_difference(
    opened: Opened, project: Path, first: str
) -> None:
    after = After(first)
    slow = hold(after.gate, BROKEN[0])
    model = ScriptedModel(
        {f"Do {name}.": BROKEN if name == first else [slow] for name in ("one", "two")}
    )
    async with opened(model=model, on_event=after) as rt:
        done = await rt.execute(
            plan(
                step("one", on_failure="continue"),
                step("two", on_failure="continue"),
                step("end", "two", "one"),
            ),
            max_concurrent=2,
        )
    assert done["end"].reason == "it needs one and two, which failed"
    ends = [e.fact for e in await journal(project, done.run_id)]
    assert [end.lost for end in ends if isinstance(end, PlanStepFinished)] == [("end",), ("end",)]


@pytest.mark.parametrize("second", ["retry", "replan"])
async def test_step_that_fails_during_a_replan_is_replanned_too(
    opened: Opened, project: Path, second: str
) -> None:
    after = After("one")
    model = ScriptedModel(
        {
            "You are a planner": [
                replanning({"name": "around", "role": "researcher", "task": "Do around."})
            ],
            "Do one.": BROKEN,
            "Do two.": [hold(after.gate, fail(ProviderError("two broke")))],
            "Do around.": [say("ok")],
        }
    )
    async with opened(model=model, on_event=after) as rt:
        done = await rt.execute(
            plan(step("one", on_failure="replan"), step("two", on_failure=second)),
            max_concurrent=2,
        )
    assert done.ok, done.error
    assert [
        text for text in decisions(await journal(project, done.run_id)) if "replan" in text
    ] == [
        "step one error (no such model); replan",
        "step two error (two broke); replan",
    ]


async def test_failed_replan_stops_the_plan(opened: Opened, project: Path) -> None:
    again = {"name": "around", "role": "researcher", "task": "Do around.", "on_failure": "replan"}
    model = ScriptedModel(
        {"You are a planner": [replanning(again)], "Do bad.": BROKEN, "Do around.": BROKEN}
    )
    async with opened(model=model) as rt:
        done = await rt.execute(plan(step("bad", on_failure="replan")))
    assert decisions(await journal(project, done.run_id))[-2:] == [
        "step around error (no such model); stop",
        "run error: 1 of 1 steps were not done (failed: around)",
    ]


@pytest.mark.parametrize(("policy", "children"), [("retry", 2), ("replan", 3)])
async def test_retry_and_replan_keep_to_the_budget(
    opened: Opened, project: Path, policy: str, children: int
) -> None:
    greedy = [call("list_dir", path=".")] * 60
    around = {"name": "around", "role": "researcher", "task": "Do around."}
    model = ScriptedModel(
        {"You are a planner": [replanning(around)], "Do a.": greedy, "Do around.": greedy},
        strict=False,
    )
    async with opened(model=model) as rt:
        done = await rt.execute(
            plan(step("a", on_failure=policy), review=True, budget={"max_tokens": 30_000})
        )
    assert done.status is Status.BUDGET_EXCEEDED
    assert 0 < done.total.tokens <= 30_000
    events = await journal(project, done.run_id)
    assert sum(event.type == "agent.subagent_created" for event in events) == children + 1


async def test_replanned_steps_are_reviewed(opened: Opened) -> None:
    model = ScriptedModel(
        {
            "You are a planner": [
                replanning({"name": "around", "role": "researcher", "task": "Do around."})
            ],
            "You are a reviewer": [reviewing()],
            "Do bad.": BROKEN,
            "Do around.": [say("ok")],
        }
    )
    async with opened(model=model) as rt:
        done = await rt.execute(plan(step("bad", on_failure="replan"), review=True))
    assert done.ok
    assert done.review is not None


async def test_repair_step_gets_a_free_name(opened: Opened, project: Path, repo: Repo) -> None:
    repo.init().commit({"a.txt": "a\n"})
    finding = {"task": "Fix the end.", "files": ["src/x.py"]}
    model = ScriptedModel(
        {
            "You are a reviewer": [reviewing(finding)],
            "Do fix-1.": writes("src/x.py", "one\n"),
            "Fix the end.": writes("src/x.py", "one\ntwo\n"),
        }
    )
    async with opened(model=model, mode="auto") as rt:
        done = await rt.execute(
            plan(step("fix-1", role="executor", writes=["src/**"]), review=True)
        )
    assert done.ok, done.error
    assert [o.step.name for o in done.steps] == ["fix-1", "fix-2"]
    assert (project / "src" / "x.py").read_text() == "one\ntwo\n"


async def test_report_names_findings_that_no_step_repairs(opened: Opened) -> None:
    model = ScriptedModel(
        {
            "You are a reviewer": [reviewing({"task": "Else.", "files": ["a.txt"]})],
            "Do a.": [say("1")],
        }
    )
    async with opened(model=model) as rt:
        done = await rt.execute(plan(step("a"), review=True))
    assert done.ok
    assert "Left open: finding 1 is about files that no step owns" in done.report


async def test_failed_review_is_reported(opened: Opened) -> None:
    model = ScriptedModel({"You are a reviewer": BROKEN, "Do a.": [say("1")]})
    async with opened(model=model) as rt:
        done = await rt.execute(plan(step("a"), review=True))
    assert done.review is not None
    assert done.review.status is Status.ERROR
    assert "## Review\n\nerror: no such model\n" in done.report
    assert (done.status, done.error) == (
        Status.ERROR,
        "all steps are done, and their review failed: no such model",
    )
    assert "- Steps: 1 of 1 done\n- Review: failed\n" in done.report
    assert "What is left" not in done.report
    shows = f"- The review: `retinue show {done.run_id} {done.review.agent_id}` shows what"
    assert shows in done.report


async def test_review_that_exceeds_its_budget_is_reported(opened: Opened) -> None:
    look = call("list_dir", path=".").using(14_900, 5)
    model = ScriptedModel(
        {"You are a reviewer": [look, reviewing()], "Do a.": [say("1")]}, strict=False
    )
    async with opened(model=model) as rt:
        done = await rt.execute(plan(step("a"), review=True, budget={"max_tokens": 16_000}))
    assert done.status is Status.BUDGET_EXCEEDED
    assert done["a"].state is StepState.DONE


async def test_review_that_never_started_is_reported(opened: Opened) -> None:
    async with opened(model=ScriptedModel({"Do a.": BROKEN})) as rt:
        done = await rt.execute(plan(step("a"), review=True))
    assert "- Steps: 0 of 1 done\n- Review: not started\n" in done.report


async def test_missing_context_file_is_reported_with_its_step(opened: Opened) -> None:
    async with opened(model=ScriptedModel([])) as rt:
        with pytest.raises(PlanError) as caught:
            await rt.check(plan(step("a", context_files=["nowhere.txt"]), step("b", task="")))
    assert any(
        line.endswith("not everything can be attached: nowhere.txt: No file 'nowhere.txt'")
        for line in caught.value.problems
    ), caught.value.problems
    assert len(caught.value.problems) == 2
