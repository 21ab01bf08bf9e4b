"""How far a plan has come, from its facts."""

from __future__ import annotations

import pytest

from retinue.domain.events import PlanAdopted, PlanStepFinished, PlanStepStarted
from retinue.domain.plan.outcome import StepState
from retinue.domain.plan.plan import REVIEW, OnFailure, Plan, PlanStep
from retinue.domain.plan.plan_state import DONE, REVIEWED, PlanState
from retinue.domain.result import Status


def step(name: str, *needs: str, on_failure: OnFailure = OnFailure.STOP) -> PlanStep:
    return PlanStep(name=name, role="r", task="t", depends_on=needs, on_failure=on_failure)


def adopted(*steps: PlanStep, because: str = "") -> PlanAdopted:
    return PlanAdopted(plan=Plan(goal="g", steps=steps), because=because, max_concurrent=2)


def ended(name: str, then: str = DONE, status: Status = Status.ERROR) -> PlanStepFinished:
    status = Status.COMPLETED if then == DONE else status
    return PlanStepFinished(step=name, status=status, reason="because", then=then)


def state(*facts: PlanAdopted | PlanStepStarted | PlanStepFinished) -> PlanState:
    found = PlanState()
    for fact in facts:
        found.apply(fact)
    return found


def start(name: str) -> PlanStepStarted:
    return PlanStepStarted(step=name)


def test_a_plan_that_succeeds() -> None:
    plan = state(adopted(step("a"), step("b", "a")), start("a"))
    assert [*plan.schedule.running] == ["a"]
    assert plan.state_of("a") is StepState.SKIPPED
    plan.apply(ended("a"))
    assert plan.state_of("a") is StepState.DONE
    assert plan.unfinished == ["b"]
    assert plan.schedule.start_next() == "b"


def test_a_live_plan_may_have_started_the_step_already() -> None:
    plan = state(adopted(step("a")))
    assert plan.schedule.start_next() == "a"
    plan.apply(start("a"))
    assert [*plan.schedule.running] == ["a"]


def test_steps_that_need_a_failed_one_are_lost() -> None:
    plan = state(adopted(step("a"), step("b", "a"), step("c")), start("a"))
    assert plan.lost_with("a", OnFailure.CONTINUE) == ["b"]
    assert plan.lost_with("a", OnFailure.RETRY) == []
    plan.apply(ended("a", OnFailure.CONTINUE))
    assert plan.reason_of("a") == "error: because"
    assert plan.reason_of("b") == "it needs a, which failed"
    assert [*plan.schedule.waiting] == ["c"]


def test_a_stopped_plan_says_so_of_the_steps_that_wait() -> None:
    plan = state(adopted(step("a"), step("b")), start("a"), ended("a", OnFailure.STOP))
    plan.end_round()
    assert plan.ended
    assert plan.reason_of("b") == "the plan was stopped before it"


def test_a_replan_replaces_what_is_unfinished() -> None:
    first = adopted(step("a"), step("b", on_failure=OnFailure.REPLAN), step("c", "b"))
    plan = state(first, start("a"), ended("a"), start("b"), ended("b", OnFailure.REPLAN))
    needed = plan.needs_replan
    plan.apply(adopted(step("d", "a"), because="step b failed"))
    assert (needed, plan.needs_replan) == (True, False)
    assert plan.replaced == {"b", "c"}
    assert [one.name for one in plan.outcome_steps] == ["a", "b", "d"]
    assert plan.reason_of("b") == "error: because; planned anew"
    assert plan.unfinished == ["d"]
    assert plan.number_of("d") == 3


def test_repairs_replace_nothing() -> None:
    plan = state(adopted(step("a")), start("a"), ended("a"), start(REVIEW))
    plan.apply(ended(REVIEW, "1 more step"))
    plan.apply(adopted(step("fix-1"), because=REVIEWED))
    assert plan.review_started
    assert plan.review is not None
    assert plan.is_repairing
    assert plan.replaced == set()


@pytest.mark.parametrize(
    ("on_failure", "status", "then"),
    [
        (OnFailure.STOP, Status.COMPLETED, DONE),
        (OnFailure.STOP, Status.ERROR, "stop"),
        (OnFailure.CONTINUE, Status.CANCELLED, "continue"),
        (OnFailure.RETRY, Status.ERROR, "retry"),
        (OnFailure.RETRY, Status.CANCELLED, "stop"),
        (OnFailure.REPLAN, Status.ERROR, "replan"),
    ],
)
def test_what_follows_from_the_end_of_a_step(
    on_failure: OnFailure, status: Status, then: str
) -> None:
    plan = state(adopted(step("a", on_failure=on_failure)), start("a"))
    assert plan.decide("a", status, stopped=False) == then
    if status is not Status.COMPLETED:
        assert plan.decide("a", status, stopped=True) == "stop"


def test_a_second_failure_ends_the_retries() -> None:
    plan = state(
        adopted(step("a", on_failure=OnFailure.RETRY)), start("a"), ended("a", OnFailure.RETRY)
    )
    assert plan.schedule.start_next() == "a"
    assert plan.decide("a", Status.ERROR, stopped=False) == "stop"


def test_a_retry_beside_a_replan_becomes_part_of_it() -> None:
    plan = state(
        adopted(step("a", on_failure=OnFailure.REPLAN), step("b", on_failure=OnFailure.RETRY)),
        start("a"),
        start("b"),
        ended("a", OnFailure.REPLAN),
    )
    assert plan.decide("b", Status.ERROR, stopped=False) == "replan"
