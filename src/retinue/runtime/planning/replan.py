"""Those who are asked about a plan while it is carried out: planners of the rest, and a reviewer.

What they say becomes steps that no person has looked at, so that these have no more rights than the
plan has given.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

import msgspec

from retinue.domain.drafting import AgentSpec
from retinue.domain.events import PlanStepFinished
from retinue.domain.plan.outcome import StepOutcome, StepState
from retinue.domain.plan.plan import REVIEW, REVIEWER, Plan, PlanStep, Problem, joint, owned
from retinue.domain.plan.plan_check import PlanContext as PlanMeans
from retinue.domain.plan.plan_check import problems, wider
from retinue.domain.plan.plan_file import to_toml
from retinue.domain.result import Result
from retinue.runtime.planning.planner import (
    PLANNER,
    REVIEW_SCHEMA,
    findings,
    plan_schema,
    planned,
    replan_reports,
    replan_task,
    review_task,
    wrong_with,
)
from retinue.runtime.run.dispatch import employ
from retinue.runtime.run.run import Run

PLANNERS = (f"{PLANNER} 1", f"{PLANNER} 2")


class Desired(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of a child besides the steps of the plan, and what it is given to know."""

    role: str
    task: str
    schema: Mapping[str, object]
    purpose: str
    reports: Mapping[str, str] = {}
    context: str = ""


Ask = Callable[[Desired], Awaitable[AgentSpec]]
TellMeans = Callable[[Plan, Run], Awaitable[PlanMeans]]


class Counsel:
    """Asks on behalf of one plan, in its run."""

    def __init__(self, run: Run, plan: Plan, *, ask: Ask, means: TellMeans) -> None:
        self._run = run
        self._plan = plan
        self._ask = ask
        self._tell_means = means
        self._heard = False

    @property
    def has_heard(self) -> bool:
        """Whether a stranger's words may be among those that anybody has said here."""
        known = [self._run.employed(origin_key) for origin_key in (REVIEW, *PLANNERS)]
        return self._heard or any(child is not None and child.tainted for child in known)

    async def _said(
        self, origin_key: str, desired: Desired, outcomes: Sequence[StepOutcome]
    ) -> Result:
        given = any(result.tainted for outcome in outcomes for result in outcome.results)
        result = await employ(
            self._run, origin_key, lambda: self._ask(desired), heard_untrusted=given
        )
        self._heard |= result.tainted
        return result

    async def _means(self) -> PlanMeans:
        return await self._tell_means(self._plan, self._run)

    # The rest of a plan that came to a halt

    async def rest(
        self, outcomes: Sequence[StepOutcome], *, taken: Collection[str]
    ) -> tuple[Plan | None, str]:
        """The steps that lead on from here, or None and why there are none.

        If they cannot be carried out, another planner is told why, once.
        """
        told, why = "", ""
        for origin_key in PLANNERS:
            answer = await self._planned(outcomes, origin_key, told)
            if not answer.ok:
                # Who came to nothing has had its retries; another one would fare no better.
                return None, f"{PLANNER}: {answer.status}: {answer.error}"
            plan, found = await self._read(answer, outcomes, taken)
            if not found:
                return plan, ""
            told, why = wrong_with(found), str(found[0])
        return None, why

    async def _planned(self, outcomes: Sequence[StepOutcome], origin_key: str, told: str) -> Result:
        means = await self._means()
        desired = Desired(
            role=PLANNER,
            task=replan_task(self._plan, outcomes, means),
            schema=plan_schema(means),
            purpose=told or to_toml(self._plan),
            reports=replan_reports(outcomes),
        )
        return await self._said(origin_key, desired, outcomes)

    async def _read(
        self, answer: Result, outcomes: Sequence[StepOutcome], taken: Collection[str]
    ) -> tuple[Plan, list[Problem]]:
        """What a planner makes of the rest, and what is wrong with that."""
        means = await self._means()
        plan, found = planned(self._plan.goal, answer.data, means)
        plan = msgspec.structs.replace(
            plan, summary=plan.summary or self._plan.summary, review=False
        )
        done = {o.step.name for o in outcomes if o.state is StepState.DONE}
        found += wider(plan, self._plan, means)
        return plan, [*found, *await self.wrong_with(plan, taken, done)]

    async def wrong_with(
        self, plan: Plan, taken: Collection[str], done: Collection[str] = ()
    ) -> list[Problem]:
        """What is wrong with further steps; they may need those that are done."""
        found = [
            Problem(step.name, "name", "was used before; give it another")
            for step in plan.steps
            if step.name in taken
        ]
        steps = tuple(
            msgspec.structs.replace(
                step, depends_on=tuple(need for need in step.depends_on if need not in done)
            )
            for step in plan.steps
        )
        alone = msgspec.structs.replace(plan, steps=steps)
        return [*found, *problems(alone, await self._means())]

    # The review

    async def review(
        self, outcomes: Sequence[StepOutcome], known: PlanStepFinished | None
    ) -> Result:
        """What the reviewer says; `known` is what is on record of that."""
        desired = Desired(
            role=REVIEWER,
            task=review_task(self._plan, outcomes),
            schema=REVIEW_SCHEMA,
            purpose=self._plan.summary.strip() or self._plan.goal,
            reports={o.step.name: o.result.summary for o in outcomes if o.result is not None},
        )
        if known is not None and not known.sub_agent_id:
            return self._run.refused(REVIEWER, desired.task, known.reason, known.status)
        return await self._said(REVIEW, desired, outcomes)

    async def repairs(
        self, review: Result, steps: Mapping[str, PlanStep]
    ) -> tuple[list[PlanStep], list[str]]:
        """The findings as further steps; and what became none.

        A finding goes to the role that owns its files, which may write what it might before.
        """
        roles = (await self._means()).roles
        free = (name for n in itertools.count(1) if (name := f"fix-{n}") not in steps)
        made: list[PlanStep] = []
        left_open: list[str] = []
        for number, finding in enumerate(findings(review), start=1):
            owners = {path: owned(steps.values(), path, roles) for path in finding["files"]}
            if not owners or not all(owners.values()):
                left_open.append(f"finding {number} is about files that no step owns")
                continue
            for role in dict.fromkeys(group[0].role for group in owners.values()):
                files = [path for path, group in owners.items() if group[0].role == role]
                own = [step for path in files for step in owners[path] if step.role == role]
                checks = dict.fromkeys(check for step in own for check in step.checks)
                made.append(
                    PlanStep(
                        name=next(free),
                        role=role,
                        task=f"{finding['task']}\nFiles: {', '.join(files)}",
                        title=finding.get("title", ""),
                        writes=joint(own),
                        checks=tuple(checks),
                        # One after the other: two findings may well be about the same file.
                        depends_on=(made[-1].name,) if made else (),
                    )
                )
        return made, left_open
