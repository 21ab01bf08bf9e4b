"""`PlanState`: how far a plan has come, from the facts that its run has recorded.

A plan at work and the fold of its journal apply the same facts, so a resumed plan is where the
first process left it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import assert_never

from retinue.domain.events import PlanAdopted, PlanFact, PlanStepFinished, PlanStepStarted
from retinue.domain.plan.outcome import StepState
from retinue.domain.plan.plan import REVIEW, OnFailure, Plan, PlanStep
from retinue.domain.plan.schedule import Schedule
from retinue.domain.result import Status

DONE = "done"
"""`PlanStepFinished.then` of a step that succeeded; of others it is a value of `OnFailure`."""
REVIEWED = "the review"
"""`PlanAdopted.because` of the steps that repair what the review has found."""


@dataclass(slots=True)
class PlanState:
    """The steps of a plan and what became of them. It changes only by `apply`."""

    rounds: list[PlanAdopted] = field(default_factory=list)
    """The plan, and further rounds of steps: a replan, or repairs after the review."""
    steps: dict[str, PlanStep] = field(default_factory=dict)
    """The steps of all rounds, by name, in order."""
    attempts: dict[str, list[PlanStepFinished]] = field(default_factory=dict)
    """The ended attempts of each step that was started."""
    replaced: set[str] = field(default_factory=set)
    """Unfinished steps whose place the steps of a replan have taken."""
    review_started: bool = False
    review: PlanStepFinished | None = None
    schedule: Schedule = field(default_factory=lambda: Schedule({}, {}))
    """The steps of the last round."""
    replan_after: str | None = None
    """The failed step that calls for a replan."""
    ended: bool = False
    """Whether a failed step has ended the plan."""
    _reasons: dict[str, str] = field(default_factory=dict)
    _failed_needs: dict[str, list[str]] = field(default_factory=dict)
    """For steps that cannot be started any more, the failed steps that they need."""

    @property
    def plan(self) -> Plan:
        """The plan of the first round."""
        return self.rounds[0].plan

    @property
    def needs_replan(self) -> bool:
        return self.replan_after is not None and not self.replaced and not self.ended

    @property
    def is_repairing(self) -> bool:
        """Whether the last round repairs what the review has found."""
        return self.rounds[-1].because == REVIEWED

    @property
    def outcome_steps(self) -> list[PlanStep]:
        """The steps to report on: all but those that were replaced before they were tried."""
        return [
            step
            for name, step in self.steps.items()
            if name not in self.replaced or self.attempts.get(name)
        ]

    @property
    def unfinished(self) -> list[str]:
        """The steps that are not done, and were not replaced."""
        return [
            name
            for name in self.steps
            if name not in self.replaced and self.state_of(name) is not StepState.DONE
        ]

    def number_of(self, name: str) -> int:
        """The place of a step among the steps of all rounds, from 0."""
        return list(self.steps).index(name)

    def state_of(self, name: str) -> StepState:
        attempts = self.attempts.get(name)
        if not attempts:
            return StepState.SKIPPED
        succeeded = attempts[-1].status is Status.COMPLETED
        return StepState.DONE if succeeded else StepState.FAILED

    def reason_of(self, name: str) -> str:
        """Why a step is not done; "" if it is."""
        if failed := self._failed_needs.get(name):
            in_order = sorted(failed, key=self.number_of)
            return f"it needs {' and '.join(in_order)}, which failed"
        return self._reasons.get(name, "")

    def decide(self, name: str, status: Status, *, stopped: bool) -> str:
        """The consequence of the end of an attempt at a step: `PlanStepFinished.then`.

        `stopped` is whether the whole run was stopped.
        """
        if status is Status.COMPLETED:
            return DONE
        if stopped:
            return OnFailure.STOP.value
        step, attempts = self.steps[name], len(self.attempts[name]) + 1
        match step.on_failure:
            case OnFailure.CONTINUE:
                return OnFailure.CONTINUE.value
            # A step that the user has stopped is not given to another child.
            case _ if status is Status.CANCELLED:
                return OnFailure.STOP.value
            case OnFailure.RETRY if attempts < step.tries and not self.schedule.stopped:
                return OnFailure.RETRY.value
            # A plan that waits for a replan starts nothing, not even a retry.
            case OnFailure.RETRY if attempts < step.tries and self.needs_replan:
                return OnFailure.REPLAN.value
            case OnFailure.REPLAN if not self.replaced:
                return OnFailure.REPLAN.value
        return OnFailure.STOP.value

    def lost_with(self, name: str, then: str) -> list[str]:
        """The steps that can never start if `then` follows from the end of a step."""
        return [] if then in (DONE, OnFailure.RETRY) else self.schedule.dependents(name)

    def apply(self, fact: PlanFact) -> None:
        match fact:
            case PlanAdopted():
                self._adopt(fact)
            case PlanStepStarted(step=step):
                if step == REVIEW:
                    self.review_started = True
                else:
                    self.schedule.start(step)
                    self.attempts.setdefault(step, [])
            case PlanStepFinished(step=step):
                if step == REVIEW:
                    self.review = fact
                else:
                    self._finish(fact)
            case _:
                assert_never(fact)

    def end_round(self) -> None:
        """Note why the steps that were not started in the last round never will be."""
        for name in self.schedule.waiting:
            self._reasons.setdefault(name, "the plan was stopped before it")

    def _adopt(self, fact: PlanAdopted) -> None:
        self.end_round()
        if fact.because and fact.because != REVIEWED:
            for name in self.unfinished:
                self.replaced.add(name)
                if reason := self.reason_of(name):
                    self._reasons[name] = f"{reason}; planned anew"
        self.rounds.append(fact)
        self.steps.update((step.name, step) for step in fact.plan.steps)
        expected = () if fact.forecast is None else fact.forecast.steps
        weights = {step.step: step.duration_s for step in expected}
        self.schedule = Schedule(fact.plan.needs, weights, fact.exclusive)

    def _finish(self, fact: PlanStepFinished) -> None:
        name, then = fact.step, fact.then
        self.attempts[name].append(fact)
        if then == DONE:
            self.schedule.finish(name)
        elif then == OnFailure.RETRY:
            self.schedule.retry(name)
        else:
            if then == OnFailure.REPLAN:
                self.replan_after = self.replan_after or name
            self.ended |= then == OnFailure.STOP
            if then != OnFailure.CONTINUE:
                self.schedule.stopped = True
            self._reasons[name] = f"{fact.status}: {fact.reason}"
            for lost in self.schedule.fail(name):
                self._failed_needs.setdefault(lost, []).append(name)

    def replan_failed(self, why: str) -> None:
        """Note why there is no replan."""
        assert self.replan_after is not None, "a failed step called for it"
        self._reasons[self.replan_after] += f"; the rest cannot be planned anew: {why}"
