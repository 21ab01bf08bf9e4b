"""`Replanner`: has children plan the rest of a running plan anew, and review its result.

Their answers become steps that no person has read, so these steps have at most the rights that the
plan has given.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

import msgspec

from retinue.domain.agent_spec import AgentSpec
from retinue.domain.events import PlanStepFinished
from retinue.domain.images import Image
from retinue.domain.plan.outcome import StepOutcome, StepState
from retinue.domain.plan.plan import REVIEW, REVIEWER, Plan, PlanStep, Problem, joint_writes, owned
from retinue.domain.plan.plan_check import PlanContext, problems, wider
from retinue.domain.plan.plan_file import to_toml
from retinue.domain.result import Result
from retinue.runtime.planning.planner import (
    PLANNER,
    REVIEW_SCHEMA,
    findings,
    plan_schema,
    problems_text,
    read_plan,
    replan_reports,
    replan_task,
    review_task,
)
from retinue.runtime.run.run import Run

PLANNERS = (f"{PLANNER} 1", f"{PLANNER} 2")
"""Origin keys of the first planner, and of a second one if the first plan cannot be run."""


class Inquiry(msgspec.Struct, frozen=True, kw_only=True):
    """A task of the planning itself, beside the steps of the plan."""

    role: str
    task: str
    schema: Mapping[str, object]
    purpose: str
    reports: Mapping[str, str] = {}
    """Reports for the child to read, by their source."""
    context: str = ""
    images: tuple[Image, ...] = ()


MakeSpec = Callable[[Inquiry], Awaitable[AgentSpec]]
GetContext = Callable[[Plan, Run], Awaitable[PlanContext]]


class Replanner:
    """The planners and the reviewer of one plan, which are children of its run."""

    def __init__(self, run: Run, plan: Plan, *, make_spec: MakeSpec, context: GetContext) -> None:
        self._run = run
        self._plan = plan
        self._make_spec = make_spec
        self._get_context = context
        self._is_tainted = False

    @property
    def is_tainted(self) -> bool:
        """Whether untrusted text may be in any answer so far."""
        known = map(self._run.registry.restored_child, (REVIEW, *PLANNERS))
        return self._is_tainted or any(child is not None and child.state.tainted for child in known)

    async def _ask(
        self, origin_key: str, inquiry: Inquiry, outcomes: Sequence[StepOutcome]
    ) -> Result:
        tainted = any(result.tainted for outcome in outcomes for result in outcome.results)
        result = await self._run.spawn_once(
            lambda: self._make_spec(inquiry), origin_key, read_untrusted=tainted
        )
        self._is_tainted |= result.tainted
        return result

    async def _context(self) -> PlanContext:
        return await self._get_context(self._plan, self._run)

    # The rest of a plan in which a step has failed

    async def plan_rest(
        self, outcomes: Sequence[StepOutcome], *, taken: Collection[str]
    ) -> tuple[Plan | None, str]:
        """The steps that lead to the goal from here, or None and why there are none.

        If they cannot be run, a second planner is told why.
        """
        earlier_problems, why = "", ""
        for origin_key in PLANNERS:
            answer = await self._ask_planner(outcomes, origin_key, earlier_problems)
            if not answer.ok:
                # A child that failed has had its retries; another one would do no better.
                return None, f"{PLANNER}: {answer.status}: {answer.error}"
            plan, found = await self._read_rest(answer, outcomes, taken)
            if not found:
                return plan, ""
            earlier_problems, why = problems_text(found), str(found[0])
        return None, why

    async def _ask_planner(
        self, outcomes: Sequence[StepOutcome], origin_key: str, earlier_problems: str
    ) -> Result:
        context = await self._context()
        inquiry = Inquiry(
            role=PLANNER,
            task=replan_task(self._plan, outcomes, context),
            schema=plan_schema(context),
            purpose=earlier_problems or to_toml(self._plan),
            reports=replan_reports(outcomes),
        )
        return await self._ask(origin_key, inquiry, outcomes)

    async def _read_rest(
        self, answer: Result, outcomes: Sequence[StepOutcome], taken: Collection[str]
    ) -> tuple[Plan, list[Problem]]:
        """The plan in a planner's answer, and its problems."""
        context = await self._context()
        plan, found = read_plan(self._plan.goal, answer.unwrap(), context)
        plan = msgspec.structs.replace(
            plan, summary=plan.summary or self._plan.summary, review=False
        )
        done = {o.step.name for o in outcomes if o.state is StepState.DONE}
        found += wider(plan, self._plan, context)
        return plan, [*found, *await self.problems_with(plan, taken, done)]

    async def problems_with(
        self, plan: Plan, taken: Collection[str], done: Collection[str] = ()
    ) -> list[Problem]:
        """Problems of further steps, which may need steps that are done."""
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
        on_its_own = msgspec.structs.replace(plan, steps=steps)
        return [*found, *problems(on_its_own, await self._context())]

    # The review

    async def review(
        self, outcomes: Sequence[StepOutcome], recorded: PlanStepFinished | None
    ) -> Result:
        """The result of the reviewer. `recorded` is set if the review has ended before."""
        inquiry = Inquiry(
            role=REVIEWER,
            task=review_task(self._plan, outcomes),
            schema=REVIEW_SCHEMA,
            purpose=self._plan.summary.strip() or self._plan.goal,
            reports={o.step.name: o.result.summary for o in outcomes if o.result is not None},
        )
        if recorded is not None and not recorded.sub_agent_id:
            return self._run.failed_result(REVIEWER, inquiry.task, recorded.reason, recorded.status)
        return await self._ask(REVIEW, inquiry, outcomes)

    async def repairs(
        self, review: Result, steps: Mapping[str, PlanStep]
    ) -> tuple[list[PlanStep], list[str]]:
        """Steps that repair what a review has found; and why other findings become no step.

        A finding goes to the role that owns its files, with the write scope that the role had.
        """
        roles = (await self._context()).roles
        free_names = (name for n in itertools.count(1) if (name := f"fix-{n}") not in steps)
        repairs: list[PlanStep] = []
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
                repairs.append(
                    PlanStep(
                        name=next(free_names),
                        role=role,
                        task=f"{finding['task']}\nFiles: {', '.join(files)}",
                        title=finding.get("title", ""),
                        writes=joint_writes(own),
                        checks=tuple(checks),
                        # One after the other: two findings may well be about the same file.
                        depends_on=(repairs[-1].name,) if repairs else (),
                    )
                )
        return repairs, left_open
