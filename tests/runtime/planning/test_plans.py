"""Plans that are carried out: order, hand-over, failure policies, review, budget, determinism."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

import retinue
from retinue.config.environment import Environment
from retinue.domain.budget import Budget
from retinue.domain.contract import decode_contract
from retinue.domain.events import (
    Event,
    PlanAdopted,
    PlanStepFinished,
    PlanStepStarted,
    RunFinished,
    WorktreeCreated,
)
from retinue.domain.plan.outcome import PlanResult, StepState
from retinue.domain.plan.plan import Plan, PlanStep
from retinue.domain.plan.plan_file import parse, read
from retinue.domain.plan.schedule import run_through
from retinue.domain.result import Status
from retinue.domain.run_state import fold
from retinue.domain.scope import overlap, scope
from retinue.errors import PlanError, ProviderError, UsageError
from retinue.models.scripted.model import ScriptedModel, Step, call, fail, hold, say
from retinue.project import open_journal
from retinue.runtime.history.audit import audit, read_all
from retinue.runtime.runtime import Runtime
from retinue.testing.clock import FakeClock

if TYPE_CHECKING:
    from tests.conftest import Repo

Opened = Callable[..., AbstractAsyncContextManager[Runtime]]


def step(name: str, *needs: str, role: str = "researcher", **more: Any) -> dict[str, Any]:
    return {"name": name, "role": role, "task": f"Do {name}.", "depends_on": list(needs), **more}


def plan(*steps: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"goal": "Get there", "steps": list(steps), **more}


def writes(path: str, text: str = "x\n") -> list[Step]:
    return [call("write_file", path=path, content=text), say(f"Wrote {path}.")]


def told(model: ScriptedModel, task: str) -> list[str]:
    """What the children were told who were given `task`."""
    openings = [r.messages[1].content for r in model.requests]
    return list(dict.fromkeys(text for text in openings if text.startswith(task)))


async def journal(project: Path, run_id: str) -> list[Event]:
    async with open_journal(project) as store:
        await audit(store, run_id)
        return list(await store.events(run_id))


def decisions(events: list[Event]) -> list[str]:
    kinds = (PlanAdopted, PlanStepStarted, PlanStepFinished, RunFinished)
    return [event.summary for event in events if isinstance(event.fact, kinds)]


async def test_reports_reach_dependent_steps(opened: Opened, project: Path) -> None:
    model = ScriptedModel(
        {"Do look.": [say("It is in auth.py.")], "Do tell.": [say("ok")], "Do else.": [say("ok")]}
    )
    async with opened(model=model) as rt:
        done = await rt.execute(
            plan(
                step("look"),
                step("tell", "look", title="Tell of it", success_criteria=["somebody knows"]),
                step("else"),
                summary="Find auth",
            )
        )
    assert done.ok
    (text,) = told(model, "Do tell.")
    assert re.search(r'<report-\w{8} from="look">\nIt is in auth\.py\.\n</report-', text)
    assert "This is step 'tell' of a plan: Find auth" in text
    assert "Done when:\n- somebody knows" in text
    assert "auth.py" not in told(model, "Do else.")[0]
    async with open_journal(project) as store:
        rows = await store.agents(done.run_id)
    contracts = {row.path: decode_contract(row.context_json) for row in rows}
    mine = contracts["root/tell.1"]
    assert (mine.parent.step_idx, mine.parent.goal_summary) == (1, "Find auth")
    assert (mine.step.title, mine.step.description) == ("Tell of it", "Do tell.")
    assert (project / ".retinue" / "step-1-result.md").read_text().startswith("# Tell of it\n")


async def test_reports_for_dependent_steps_are_capped(opened: Opened) -> None:
    model = ScriptedModel({"Do look.": [say("long\n" * 4_000)], "Do tell.": [say("ok")]})
    async with opened(model=model) as rt:
        done = await rt.execute(
            plan(step("look"), step("tell", "look", budget={"max_context_tokens": 2_000}))
        )
    assert done.ok
    (text,) = told(model, "Do tell.")
    assert len(text) < 8_000
    result = done["tell"].result
    assert result is not None
    assert any(note.startswith("the report of look was cut to ") for note in result.notes)


async def test_plan_is_a_run_of_its_own(opened: Opened, project: Path) -> None:
    model = ScriptedModel({"Do a.": [say("1")], "Do b.": [say("2")]})
    async with opened(model=model) as rt:
        done = await rt.execute(plan(step("a"), step("b", "a")))
    events = await journal(project, done.run_id)
    assert decisions(events) == [
        "plan of 2 steps: Get there",
        "step a started",
        "step a completed",
        "step b started",
        "step b completed",
        "run completed",
    ]
    adopted = next(e.fact for e in events if isinstance(e.fact, PlanAdopted))
    assert adopted.forecast == done.forecast is not None
    assert [s.name for s in adopted.plan.steps] == ["a", "b"]
    assert (project / ".retinue" / f"plan-{done.run_id}.md").read_text() == done.report


async def test_plan_may_be_a_python_value(opened: Opened) -> None:
    model = ScriptedModel({"Do a.": [say("1")]})
    value = Plan(goal="G", steps=(PlanStep(name="a", role="researcher", task="Do a."),))
    async with opened(model=model) as rt:
        assert await rt.check(value) == value
        assert (await rt.execute(value)).ok
        with pytest.raises(PlanError, match="step 'a': role: 'cook' is unknown"):
            await rt.execute(msgspec.structs.replace(value, steps=(_cooked(value.steps[0]),)))


def _cooked(step: PlanStep) -> PlanStep:
    return msgspec.structs.replace(step, role="cook")


async def test_plan_above_its_budget_is_refused_before_the_first_call(
    opened: Opened, project: Path
) -> None:
    model = ScriptedModel([])
    async with opened(model=model) as rt:
        with pytest.raises(PlanError, match=r"the steps may use 12,000 \(a 6,000, b 6,000\), and"):
            await rt.execute(
                plan(
                    step("a", budget={"max_tokens": 6_000}),
                    step("b", budget={"max_tokens": 6_000}),
                    budget={"max_tokens": 10_000},
                )
            )
    assert model.requests == []
    async with open_journal(project) as store:
        assert list(await store.runs()) == []


async def test_steps_keep_to_the_budget_of_the_plan(opened: Opened) -> None:
    greedy = [call("list_dir", path=".")] * 40
    model = ScriptedModel({f"Do {name}.": greedy for name in "abc"}, strict=False)
    async with opened(model=model) as rt:
        done = await rt.execute(
            plan(*(step(n, on_failure="continue") for n in "abc"), budget={"max_tokens": 20_000})
        )
    assert not done.ok
    assert 0 < done.total.tokens <= 20_000


async def test_max_concurrent_must_be_positive(opened: Opened) -> None:
    async with opened(model=ScriptedModel([])) as rt:
        with pytest.raises(UsageError, match="max_concurrent must be at least 1, not 0"):
            await rt.execute(plan(step("a")), max_concurrent=0)


# Failure policies


BROKEN = [fail(ProviderError("no such model"))]


async def test_stop_starts_no_more_steps(opened: Opened, project: Path) -> None:
    gate = asyncio.Event()
    model = ScriptedModel(
        {
            "Do bad.": BROKEN,
            "Do slow.": [hold(gate, say("kept"))],
        }
    )

    def watch(event: Event) -> None:
        if isinstance(event.fact, PlanStepFinished) and event.fact.step == "bad":
            gate.set()

    async with opened(model=model, on_event=watch) as rt:
        done = await rt.execute(
            plan(step("slow"), step("bad"), step("next"), step("later", "bad")), max_concurrent=2
        )
    assert decisions(await journal(project, done.run_id)) == [
        "plan of 4 steps: Get there",
        "step bad started",
        "step slow started",
        "step bad error (no such model); stop",
        "step slow completed",
        "run error: 3 of 4 steps were not done (failed: bad; not started: next, later)",
    ]
    assert [o.state for o in done.steps] == [
        StepState.DONE,
        StepState.FAILED,
        StepState.SKIPPED,
        StepState.SKIPPED,
    ]
    assert done["next"].reason == "the plan was stopped before it"
    assert done["later"].reason == "it needs bad, which failed"


async def test_continue_runs_independent_steps(opened: Opened, project: Path) -> None:
    model = ScriptedModel({"Do bad.": BROKEN, "Do next.": [say("ok")]})
    async with opened(model=model) as rt:
        done = await rt.execute(
            plan(step("bad", on_failure="continue"), step("later", "bad"), step("next")),
            max_concurrent=1,
        )
    assert decisions(await journal(project, done.run_id)) == [
        "plan of 3 steps: Get there",
        "step bad started",
        "step bad error (no such model); continue",
        "step next started",
        "step next completed",
        "run error: 2 of 3 steps were not done (failed: bad; not started: later)",
    ]


async def test_retry_gets_the_evidence_of_the_failure(opened: Opened, project: Path) -> None:
    def answer(request: Any) -> Step:
        if "An earlier try at this failed" in request.messages[1].content:
            return say('{"n": 1}')
        return fail(ProviderError("the first one breaks"))

    model = ScriptedModel({"Do bad.": [answer], "Do next.": [say("ok")]})
    async with opened(model=model) as rt:
        done = await rt.execute(plan(step("bad", on_failure="retry"), step("next", "bad")))
    assert done.ok
    assert len(done["bad"].results) == 2
    assert decisions(await journal(project, done.run_id))[1:5] == [
        "step bad started",
        "step bad error (the first one breaks); retry",
        "step bad started again after error: the first one breaks",
        "step bad completed",
    ]
    first, second = told(model, "Do bad.")
    assert "failed" not in first
    assert re.search(r'<failure-\w{8} from="bad">\nerror: the first one breaks\n', second)
    assert "(2 tries)" in done.report


async def test_second_failure_ends_a_retry(opened: Opened, project: Path) -> None:
    model = ScriptedModel({"Do bad.": [*BROKEN, *BROKEN]})
    async with opened(model=model) as rt:
        done = await rt.execute(plan(step("bad", on_failure="retry")))
    assert decisions(await journal(project, done.run_id))[-2:] == [
        "step bad error (no such model); stop",
        "run error: 1 of 1 steps were not done (failed: bad)",
    ]


def replanning(*steps: dict[str, Any]) -> Step:
    return say(msgspec.json.encode({"summary": "Another way", "steps": list(steps)}).decode())


async def test_replan_replaces_the_rest(opened: Opened, project: Path) -> None:
    model = ScriptedModel(
        {
            "You are a planner": [
                replanning(
                    {"name": "around", "role": "researcher", "task": "Do around."},
                    {
                        "name": "end",
                        "role": "researcher",
                        "task": "Do end.",
                        "depends_on": ["around", "good"],
                    },
                )
            ],
            "Do good.": [say("good news")],
            "Do bad.": BROKEN,
            "Do around.": [say("ok")],
            "Do end.": [say("ok")],
        }
    )
    async with opened(model=model) as rt:
        done = await rt.execute(
            plan(step("good"), step("bad", "good", on_failure="replan"), step("never", "bad"))
        )
    assert done.ok
    assert [(o.step.name, str(o.state)) for o in done.steps] == [
        ("good", "done"),
        ("bad", "failed"),
        ("around", "done"),
        ("end", "done"),
    ]
    assert "- Steps: 3 of 4 done; the rest was planned anew\n" in done.report
    assert "## bad: Do bad.\n\n- Failed: error: no such model; planned anew\n" in done.report
    assert "good news" in told(model, "Do end.")[0]
    (asked,) = told(model, "A step of the plan")
    assert "Done: good. Failed: bad. Not started: never." in asked
    assert "error: no such model" in asked
    assert decisions(await journal(project, done.run_id))[3:] == [
        "step bad started",
        "step bad error (no such model); replan",
        "plan of 2 steps after step bad failed: Get there",
        "step around started",
        "step around completed",
        "step end started",
        "step end completed",
        "run completed",
    ]


async def test_invalid_replan_ends_the_plan(opened: Opened) -> None:
    again = {"name": "bad", "role": "researcher", "task": "Do it."}
    model = ScriptedModel({"You are a planner": [replanning(again)], "Do bad.": BROKEN})
    async with opened(model=model) as rt:
        done = await rt.execute(plan(step("bad", on_failure="replan")))
    assert not done.ok
    assert done["bad"].reason == (
        "error: no such model; the rest cannot be planned anew: step 'bad': name: was used before;"
        " give it another"
    )
    _, second = told(model, "A step of the plan")
    assert "An earlier plan could not be run. Avoid this:" in second


async def test_failed_planner_ends_the_plan(opened: Opened) -> None:
    model = ScriptedModel({"You are a planner": BROKEN, "Do bad.": BROKEN})
    async with opened(model=model) as rt:
        done = await rt.execute(plan(step("bad", on_failure="replan")))
    assert done["bad"].reason.endswith("planned anew: planner: error: no such model")
    assert len(told(model, "A step of the plan")) == 1, "a planner that failed is paid for once"


# Planning


@pytest.mark.parametrize("confined", [True, False])
async def test_planner_is_told_of_checks_where_it_may_write_them(
    opened: Opened, confined: bool
) -> None:
    answer = replanning({"name": "look", "role": "researcher", "task": "Do look."})
    model = ScriptedModel({"You are a planner": [answer]})
    async with opened(model=model, mode="auto", shell=confined) as rt:
        if confined and (rt.sandbox is None or rt.sandbox.tier == "none"):
            pytest.skip("there is no sandbox here")
        await rt.plan("Get there")
    (asked,) = told(model, "Write a plan for this goal: Get there")
    assert ("- checks: shell commands that must succeed" in asked) is confined
    assert ('"checks"' in str(model.requests[0].messages)) is confined


async def test_planner_writes_a_plan_without_running_it(opened: Opened, project: Path) -> None:
    (project / "notes.txt").write_text("Mind the gap.\n")
    model = ScriptedModel(
        {
            "You are a planner": [
                replanning(
                    {"name": "look", "role": "researcher", "task": "Do look.", "writes": []},
                    {"name": "do", "role": "executor", "task": "Do it.", "writes": ["src/**"]},
                )
            ]
        }
    )
    async with opened(model=model, mode="auto") as rt:
        plan = await rt.plan("Get there", context_files=["notes.txt"])
    assert (plan.goal, plan.summary) == ("Get there", "Another way")
    assert [(s.name, s.writes) for s in plan.steps] == [("look", None), ("do", ("src/**",))]
    assert plan.review, "what writes is reviewed"
    (asked,) = told(model, "Write a plan for this goal: Get there")
    assert "Mind the gap." in asked
    assert "- executor: Makes changes" in asked
    assert not {"write_file", "edit_file", "run_command"} & {
        t.name for t in model.requests[0].tools
    }
    async with open_journal(project) as store:
        (run,) = await store.runs()
    assert (run.task, run.status, run.agents) == ("Plan: Get there", "completed", 2)


@pytest.mark.parametrize("mode", ["plan", "normal"])
async def test_plan_that_writes_can_be_planned_in_any_mode(
    opened: Opened, project: Path, mode: str
) -> None:
    do = {"name": "do", "role": "executor", "task": "Do it.", "writes": ["src/**"]}
    model = ScriptedModel({"You are a planner": [replanning(do)]})
    async with opened(model=model, mode=mode) as rt:
        plan = await rt.plan("Get there")
        assert len(model.requests) == 1
        with pytest.raises(PlanError) as caught:
            await rt.execute(plan)
    assert caught.value.problems == (
        f"step 'do': writes: in {mode} mode no child may write; use mode auto (--mode auto)",
    )
    assert len(model.requests) == 1
    kept = parse((project / ".retinue" / "plan.toml").read_text())
    assert read(kept) == (plan, [])


async def test_planner_is_told_how_many_steps_the_budget_allows(
    opened: Opened, project: Path
) -> None:
    a = {"name": "a", "role": "researcher", "task": "Do a."}
    model = ScriptedModel({"You are a planner": [replanning(a)]})
    async with opened(model=model, limits=Budget(max_tokens=14_000)) as rt:
        await rt.plan("Get there")
    assert "as many as the work needs, 2 at most." in model.requests[0].messages[1].content
    async with opened(model=ScriptedModel([]), limits=Budget(max_tokens=3_999)) as rt:
        with pytest.raises(PlanError, match="max_tokens 3,999 has no part for even one step: 4,00"):
            await rt.plan("Get there")
    async with open_journal(project) as store:
        assert len(await store.runs()) == 1


async def test_second_planner_is_told_the_problems(opened: Opened) -> None:
    def answer(request: Any) -> Step:
        mended = "An earlier plan could not be run" in request.messages[1].content
        needs = [] if mended else ["nobody"]
        return replanning({"name": "a", "role": "researcher", "task": "Do a.", "depends_on": needs})

    model = ScriptedModel({"You are a planner": [answer]})
    async with opened(model=model) as rt:
        assert (await rt.plan("Get there")).steps[0].name == "a"
    _, second = told(model, "Write a plan")
    assert "- step 'a': depends_on: 'nobody' is not a step; there are: a" in second


async def test_invalid_plan_is_an_error_with_the_draft(opened: Opened, project: Path) -> None:
    wrong = {"name": "a", "role": "researcher", "task": "Do a.", "depends_on": ["a"]}
    model = ScriptedModel({"You are a planner": [replanning(wrong)]})
    async with opened(model=model) as rt:
        with pytest.raises(PlanError) as caught:
            await rt.plan("Get there")
    assert caught.value.problems == ("step 'a': depends_on: names the step itself",)
    assert isinstance(caught.value.plan, Plan)
    kept = (project / ".retinue" / "plan.toml").read_text()
    assert kept.startswith("# step 'a': depends_on: names the step itself\n")
    async with open_journal(project) as store:
        (run,) = await store.runs()
    assert run.status == "error"


async def test_failed_planner_is_an_error(opened: Opened) -> None:
    async with opened(model=ScriptedModel({"You are a planner": BROKEN})) as rt:
        with pytest.raises(PlanError, match="The planner failed: error: no such model"):
            await rt.plan("Get there")
        with pytest.raises(UsageError, match=r"nowhere\.txt"):
            await rt.plan("Get there", context_files=["nowhere.txt"])


async def test_writing_a_plan_counts_towards_its_limits(opened: Opened, project: Path) -> None:
    written = say(msgspec.json.encode({"summary": "x", "steps": [step("a")]}).decode())
    model = ScriptedModel(
        {"You are a planner": [written], "Do a.": [say("1"), say("1")]}, strict=False
    )
    async with opened(model=model, limits={"max_tokens": 60_000}) as rt:
        done = await rt.execute(await rt.plan("Get there"))
        again = await rt.execute(plan(step("a"), goal="Another"))
    async with open_journal(project) as store:
        (writing,) = [row for row in await store.runs() if row.kind == "planning"]
        agents = fold(await read_all(store, writing.id)).agents.values()
        used = sum(agent.spent.tokens for agent in agents)
        limits = [
            decode_contract((await store.agents(run_id))[0].context_json).execution.max_tokens
            for run_id in (done.run_id, again.run_id)
        ]
    assert used > 0
    assert limits == [60_000 - used, 60_000]


# The review


def reviewing(*findings: dict[str, Any]) -> Step:
    return say(msgspec.json.encode({"summary": "Seen.", "findings": list(findings)}).decode())


async def test_findings_become_one_more_round_of_steps(
    opened: Opened, project: Path, repo: Repo
) -> None:
    repo.init().commit({"a.txt": "a\n"})
    finding = {"title": "No end", "task": "Fix the end.", "files": ["src/x.py"]}
    model = ScriptedModel(
        {
            "You are a reviewer": [reviewing(finding, {"task": "Else.", "files": ["a.txt"]})],
            "Do write.": writes("src/x.py", "one\n"),
            "Fix the end.": writes("src/x.py", "one\ntwo\n"),
        }
    )
    async with opened(model=model, mode="auto") as rt:
        done = await rt.execute(
            plan(step("write", role="executor", writes=["src/**"]), review=True)
        )
    assert done.ok
    assert (project / "src" / "x.py").read_text() == "one\ntwo\n"
    assert [o.step.name for o in done.steps] == ["write", "fix-1"]
    assert decisions(await journal(project, done.run_id))[3:] == [
        "step review started",
        "step review completed (finding 2 is about files that no step owns); 1 more step",
        "plan of 1 step after the review: Get there",
        "step fix-1 started",
        "step fix-1 completed",
        "run completed",
    ]
    assert "## Review\n\n> Seen.\n\n- Fix the end.\n- Else.\n" in done.report


async def test_review_without_findings_ends_the_plan(opened: Opened, project: Path) -> None:
    model = ScriptedModel({"You are a reviewer": [reviewing()], "Do a.": [say("1")]})
    async with opened(model=model) as rt:
        done = await rt.execute(plan(step("a"), review=True))
    assert done.ok
    assert decisions(await journal(project, done.run_id))[-3:] == [
        "step review started",
        "step review completed",
        "run completed",
    ]


async def test_review_in_prose_does_not_fail_the_plan(opened: Opened, project: Path) -> None:
    prose = say("All is well, I think.")
    model = ScriptedModel({"You are a reviewer": [prose, prose], "Do a.": [say("1")]})
    async with opened(model=model) as rt:
        done = await rt.execute(plan(step("a"), review=True))
    assert (done.status, done.error, done.left_open) == ("completed", None, ())
    assert decisions(await journal(project, done.run_id))[-3:] == [
        "step review started",
        "step review completed (in prose, without findings as data)",
        "run completed",
    ]
    assert "- Review: in prose, without findings as data\n" in done.report
    assert "> All is well, I think." in done.report


async def test_failed_plan_is_not_reviewed(opened: Opened) -> None:
    model = ScriptedModel({"Do bad.": BROKEN})
    async with opened(model=model) as rt:
        done = await rt.execute(plan(step("bad"), review=True))
    assert done.review is None


# Writing


async def test_failed_check_is_evidence_for_the_retry(
    tmp_path: Path, project: Path, repo: Repo
) -> None:
    repo.init().commit({"a.txt": "a\n"})

    def write(request: Any) -> Step:
        better = "An earlier try" in request.messages[1].content
        return call("write_file", path="src/x.py", content="good\n" if better else "bad\n")

    model = ScriptedModel({"Do write.": [write, say("Wrote it.")]})
    environment = Environment(variables={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"})
    async with retinue.open(
        project, model=model, mode="auto", environment=environment, unsafe_no_sandbox=True
    ) as rt:
        done = await rt.execute(
            plan(
                step(
                    "write",
                    role="executor",
                    writes=["src/**"],
                    checks=["cat src/x.py && grep good src/x.py"],
                    on_failure="retry",
                )
            )
        )
    assert done.ok, done.error
    assert (project / "src" / "x.py").read_text() == "good\n"
    _, second = told(model, "Do write.")
    assert "failed (exit code 1)\nbad\nWhat it said last:\nWrote it." in second
    assert "- Check: cat src/x.py && grep good src/x.py: passed" in done.report


# As parallel as may be


class VirtualTime:
    """Lets steps take as long as they should, on a clock that jumps from one end to the next.

    Time passes when all steps that the journal has as begun are waiting: then nothing else can
    happen before one of them ends.
    """

    def __init__(self, clock: FakeClock, took_s: dict[str, float]) -> None:
        self._clock = clock
        self._took_s = took_s
        self._under_way = 0
        self._waiting: dict[str, tuple[float, asyncio.Event]] = {}

    def listen(self, event: Event) -> None:
        self._under_way += event.type == "plan.step_started"
        if event.type == "plan.step_finished":
            self._under_way -= 1
            # Those that are begun now are on record before anybody else's turn comes.
            asyncio.get_running_loop().call_soon(self._pass)

    def gate(self, name: str) -> Any:
        return _Gate(self, name)

    async def wait(self, name: str) -> None:
        ended = asyncio.Event()
        self._waiting[name] = (self._clock.monotonic() + self._took_s[name], ended)
        self._pass()
        await ended.wait()

    def _pass(self) -> None:
        if self._waiting and len(self._waiting) == self._under_way:
            name = min(self._waiting, key=lambda name: self._waiting[name][0])
            until, ended = self._waiting.pop(name)
            self._clock.advance(until - self._clock.monotonic())
            ended.set()


class _Gate:
    def __init__(self, time: VirtualTime, name: str) -> None:
        self._time = time
        self._name = name

    async def wait(self) -> None:
        await self._time.wait(self._name)


def diamond(numbers: random.Random) -> dict[str, tuple[str, ...]]:
    """30 steps: a source, four layers of seven that lean on the one before, and a sink."""
    needs: dict[str, tuple[str, ...]] = {"s0": ()}
    above = ["s0"]
    for layer in range(4):
        names = [f"s{1 + 7 * layer + n}" for n in range(7)]
        needs |= {name: tuple(sorted(set(numbers.choices(above, k=2)))) for name in names}
        above = names
    needs["s29"] = tuple(above)
    return needs


@pytest.mark.parametrize("slots", [3, pytest.param(5, marks=pytest.mark.slow)])
async def test_thirty_steps_take_as_long_as_their_critical_path(
    tmp_path: Path, repo: Repo, slots: int
) -> None:
    repo.init().commit({"a.txt": "a\n"})
    numbers = random.Random(slots)
    needs = diamond(numbers)
    took_s = {name: float(numbers.randint(2, 60)) for name in needs}
    clock = FakeClock()
    time = VirtualTime(clock, took_s)
    # The last layer and the sink write; the sink owns what each of the others does.
    owners = {f"s{n}": [f"part{n}/**"] for n in range(22, 29)} | {"s29": ["**"]}
    script: dict[str, list[Step]] = {}
    for name in needs:
        begins = [call("write_file", path=f"part{name[1:]}/x.txt", content="x\n")]
        script[f"Do {name}."] = [
            *(begins if name in owners else []),
            hold(time.gate(name), say("ok")),
        ]
    steps = [
        step(
            name,
            *on,
            role="executor" if name in owners else "researcher",
            # Roughly right, as people's guesses are.
            expect_s=took_s[name] * numbers.uniform(0.8, 1.25),
            **({"writes": owners[name]} if name in owners else {}),
        )
        for name, on in needs.items()
    ]
    environment = Environment(variables={"HOME": str(tmp_path / "home")})
    async with retinue.open(
        repo.root,
        model=ScriptedModel(script),
        mode="auto",
        environment=environment,
        shell=False,
        clock=clock,
        listeners=retinue.Listeners(on_event=time.listen),
    ) as rt:
        done = await rt.execute(plan(*steps), max_concurrent=slots)
    assert done.ok, done.error
    events = await journal(repo.root, done.run_id)
    times = spans(events)
    best = min(
        max(end for _, end in run_through(needs, order, took_s, slots=slots).values())
        for order in [took_s, *({name: numbers.random() for name in needs} for _ in range(100))]
    )
    makespan = max(end for _, end in times.values()) - min(begin for begin, _ in times.values())
    assert makespan <= 1.1 * best
    assert most_at_once(times) <= slots
    together = [
        (a, b)
        for a in owners
        for b in owners
        if a < b and times[a][0] < times[b][1] and times[b][0] < times[a][1]
    ]
    assert together, "none of the owners ran beside another: nothing was tested"
    assert not any(overlap(scope(*owners[a]), scope(*owners[b])) for a, b in together)
    assert sum(isinstance(event.fact, WorktreeCreated) for event in events) == len(owners)


async def test_without_git_waiting_writers_hold_no_slot(opened: Opened, project: Path) -> None:
    """Two writers and a reader, two at a time: the reader goes while one of them writes."""
    reading = asyncio.Event()

    def hear(event: Event) -> None:
        if event.type == "plan.step_finished" and "step look " in event.summary:
            reading.set()

    model = ScriptedModel(
        {
            "Do one.": [hold(reading, writes("one.txt")[0]), say("1")],
            "Do two.": writes("two.txt"),
            "Do look.": [say("seen")],
        }
    )
    async with opened(model=model, mode="auto", on_event=hear) as rt:
        done = await rt.execute(
            plan(
                step("one", role="executor", writes=["one.txt"]),
                step("two", role="executor", writes=["two.txt"]),
                step("look"),
            ),
            max_concurrent=2,
        )
    assert done.ok, done.error
    events = await journal(project, done.run_id)
    assert decisions(events)[1:5] == [
        "step one started",
        "step look started",
        "step look completed",
        "step one completed",
    ]
    (adopted,) = [e.fact for e in events if isinstance(e.fact, PlanAdopted)]
    assert adopted.exclusive == ("one", "two")


def spans(events: list[Event]) -> dict[str, tuple[float, float]]:
    """From when to when each step was under way, as the journal has it."""
    began, found = {}, {}
    for event in events:
        match event.fact:
            case PlanStepStarted(step=name):
                began[name] = event.time
            case PlanStepFinished(step=name):
                found[name] = (began[name], event.time)
    return found


def most_at_once(times: dict[str, tuple[float, float]]) -> int:
    return max(
        sum(begin <= start < end for begin, end in times.values()) for start, _ in times.values()
    )


# Stopping


class Never:
    """A gate that does not open. `reached` is set when an agent waits at it."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()

    async def wait(self) -> None:
        self.reached.set()
        await asyncio.Event().wait()


async def test_stopped_plan_is_cancelled(opened: Opened, project: Path) -> None:
    never = Never()
    model = ScriptedModel({"Do a.": [hold(never, say("never"))]})
    async with opened(model=model) as rt:
        task = asyncio.create_task(rt.execute(plan(step("a"), step("b", "a"))))
        await never.reached.wait()
        rt.cancel("a0")
        done: PlanResult = await task
    assert done.status is Status.CANCELLED
    assert decisions(await journal(project, done.run_id))[-2:] == [
        "step a cancelled (stopped by the user); stop",
        "run cancelled: stopped by the user",
    ]


@pytest.mark.parametrize(
    ("policy", "then", "other"),
    [("continue", "continue", "done"), ("retry", "stop", "skipped"), ("replan", "stop", "skipped")],
)
async def test_stopped_step_is_not_retried(
    opened: Opened, project: Path, policy: str, then: str, other: str
) -> None:
    never = Never()
    script: dict[str, list[Step]] = {
        "Do a.": [hold(never, say("never"))],
        "Do b.": [say("ok")],
    }
    async with opened(model=ScriptedModel(script, strict=False)) as rt:
        steps = plan(step("a", on_failure=policy), step("b"))
        task = asyncio.create_task(rt.execute(steps, max_concurrent=1))
        await never.reached.wait()
        rt.cancel("a1")
        done: PlanResult = await task
    told = decisions(await journal(project, done.run_id))
    assert f"step a cancelled (stopped by the user); {then}" in told
    assert (done["a"].state, str(done["b"].state)) == (StepState.FAILED, other)


async def test_cancelled_program_closes_every_agent(opened: Opened, project: Path) -> None:
    never = Never()
    model = ScriptedModel({"Do a.": [hold(never, say("never"))]})
    async with opened(model=model) as rt:
        task = asyncio.create_task(rt.execute(plan(step("a"))))
        await never.reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    async with open_journal(project) as store:
        (run,) = await store.runs()
        assert run.status == "cancelled"
        assert {row.state for row in await store.agents(run.id)} == {"closed"}
