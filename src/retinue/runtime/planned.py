"""A run whose root is a plan: its steps are given to children, and their ends decide what is next.

Everything that it decides is in the journal before it is acted on: the plan (`plan.adopted`), each
step that is begun, and how each ended and what follows from that.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec

from retinue.domain.budget import UNLIMITED
from retinue.domain.drafting import Order
from retinue.domain.events import PlanAdopted, StepFinished, StepStarted
from retinue.domain.forecast import Forecast
from retinue.domain.framing import frame
from retinue.domain.messages import estimate_tokens
from retinue.domain.outcome import PlanResult, StepOutcome, StepState, markdown, verdict
from retinue.domain.plan import (
    REVIEW,
    OnFailure,
    Plan,
    PlanStep,
    Problem,
    owned,
    problems,
    to_toml,
)
from retinue.domain.plan import Means as PlanMeans
from retinue.domain.result import Result, Status
from retinue.domain.schedule import Schedule
from retinue.errors import UsageError
from retinue.runtime.engine import carry_out
from retinue.runtime.handover import evidence, handed_on
from retinue.runtime.planning import (
    PLANNER,
    REVIEW_SCHEMA,
    REVIEWER,
    findings,
    plan_schema,
    planned,
    replan_reports,
    replan_task,
    review_task,
    wrong_with,
)
from retinue.runtime.round import Round
from retinue.runtime.run import Run

CONTEXT_SHARE = 2  # Half of a child's window is the most that may be given along.
FIXER = "executor"


class Desired(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of a child besides the steps of the plan, and what it is given to know."""

    role: str
    task: str
    schema: Mapping[str, object]
    purpose: str
    reports: Mapping[str, str] = {}
    context: str = ""


class PlannedRun:
    """Carries out one plan, from its first step to its report."""

    def __init__(
        self,
        run: Run,
        plan: Plan,
        *,
        order: Callable[[Plan, PlanStep, int | None], Awaitable[Order]],
        ask: Callable[[Desired], Awaitable[Order]],
        means: Callable[[], Awaitable[PlanMeans]],
        at_once: int,
        forecast: Callable[[Plan], Awaitable[Forecast]],
    ) -> None:
        """`order` makes orders of steps, within so many tokens for all of them; `ask` makes them of
        what else is asked for.

        `means` tells what a further round of steps could be carried out with.
        """
        self._run = run
        self._plan = plan
        self._order = order
        self._ask = ask
        self._means = means
        self._at_once = at_once
        self._forecast = forecast
        self._expected: Forecast | None = None
        self._steps: dict[str, PlanStep] = {}
        self._orders: dict[str, Order] = {}
        self._results: dict[str, list[Result]] = {}
        self._reasons: dict[str, str] = {}
        self._replaced: set[str] = set()
        self._numbers: dict[str, int] = {}
        self._halted_by: str | None = None
        self._schedule = Schedule({}, {})

    async def carry_out(self, orders: Mapping[str, Order]) -> PlanResult:
        """Do all of it. Only a cancellation or a broken store raises."""
        await self._round(self._plan, orders, "")
        if self._halted_by is not None:
            await self._replan(self._halted_by)
        review = None
        if self._plan.review and not self._undone() and not self._is_stopped:
            review = await self._review()
        return self._outcome(review)

    @property
    def _is_stopped(self) -> bool:
        return self._run.root.stop_reason is not None

    def _undone(self) -> list[StepOutcome]:
        return [outcome for outcome in self.outcomes if outcome.state is not StepState.DONE]

    # The steps

    async def _round(self, plan: Plan, orders: Mapping[str, Order], because: str) -> None:
        """Carry out the steps of `plan`, which may need steps of earlier rounds."""
        for step in plan.steps:
            self._numbers[step.name] = len(self._steps)
            self._steps[step.name] = step
        self._orders.update(orders)
        self._run.root.steps = max(self._run.root.steps, len(self._steps))
        expected = await self._forecast(plan)
        self._expected = self._expected or expected
        self._run.root.record(PlanAdopted(plan=plan, because=because, forecast=expected))
        weights = {step.step: step.duration_s for step in expected.steps}
        self._schedule = Schedule(plan.needs, weights)
        await carry_out(
            self._schedule,
            at_once=self._at_once,
            begin=self._begin,
            work=self._work,
            settle=self._settle,
        )
        for name in self._schedule.waiting:
            self._reasons.setdefault(name, "the plan was stopped before it")

    def _begin(self, name: str) -> None:
        tries = self._results.setdefault(name, [])
        because = f"{tries[-1].status}: {tries[-1].error}" if tries else ""
        self._run.root.record(StepStarted(step=name, attempt=len(tries) + 1, because=because))

    async def _work(self, name: str) -> Result:
        step = self._steps[name]
        return await self._employ(self._with_context(step, self._orders[name]), line=name)

    def _with_context(self, step: PlanStep, order: Order) -> Order:
        """The order for a step, with what those before it have found."""
        plan, tries = self._plan, self._results[step.name]
        window = order.max_context_tokens or order.role.budget.max_context_tokens
        room = window // CONTEXT_SHARE - estimate_tokens(order.context)
        parts = [order.context] if order.context else []
        if tries:
            failure = frame(evidence(tries[-1]), kind="failure", source=step.name)
            parts.append(f"An earlier try at this failed. Do better:\n{failure}")
            room -= estimate_tokens(failure)
        reports = {name: self._results[name][-1].summary for name in step.depends_on}
        handed, notes = handed_on(
            f"This is step {step.name!r} of a plan: {plan.summary.strip() or plan.goal}",
            reports,
            max_tokens=max(room, 0),
        )
        return msgspec.structs.replace(
            order,
            context="\n\n".join((handed, *parts)),
            notes=(*order.notes, *notes),
            name=step.name,
            title=step.shown,
            goal_summary=plan.summary.strip() or plan.goal,
            step_idx=self._numbers[step.name],
            # Another try is to find another answer.
            cache=order.cache and not tries,
        )

    async def _employ(self, order: Order, *, line: str) -> Result:
        run = self._run
        if run.root.stop_reason is not None:
            return run.refused(order, run.root.stop_reason, Status.CANCELLED)
        try:
            child = await run.create(order, run.root, Round(line=line))
        except UsageError as error:
            spent_up = run.root.account.unspent().tokens == 0
            status = Status.BUDGET_EXCEEDED if spent_up else Status.REJECTED
            return run.refused(order, str(error), status)
        return await run.see_through(child)

    def _settle(self, name: str, result: Result) -> None:
        """Decide what follows from the end of a step."""
        step, schedule, tries = self._steps[name], self._schedule, self._results[name]
        tries.append(result)
        lost: list[str] = []
        then = "done"
        if result.ok:
            schedule.done(name)
        elif self._is_stopped or result.status is Status.CANCELLED:
            then = OnFailure.STOP
        elif step.on_failure is OnFailure.RETRY and len(tries) < step.tries:
            then = OnFailure.RETRY
            schedule.again(name)
        elif step.on_failure is OnFailure.REPLAN and self._halted_by is None:
            then, self._halted_by = OnFailure.REPLAN, name
        elif step.on_failure is OnFailure.CONTINUE:
            then = OnFailure.CONTINUE
        else:
            then = OnFailure.STOP
        if then in (OnFailure.STOP, OnFailure.REPLAN):
            schedule.stop()
        if then not in ("done", OnFailure.RETRY):
            self._reasons[name] = f"{result.status}: {result.error}"
            lost = schedule.failed(name)
            for other in lost:
                self._reasons[other] = f"it needs {name}, which failed"
        self._run.root.record(
            StepFinished(
                step=name,
                status=result.status,
                sub_agent_id=result.agent_id,
                reason=result.error or "",
                then=str(then),
                lost=tuple(lost),
            )
        )

    # Further rounds

    async def _replan(self, failed: str) -> None:
        """Have the rest planned anew, once, and carry that out."""
        before = self.outcomes
        undone = [outcome.step.name for outcome in self._undone()]
        done = {o.step.name for o in before if o.state is StepState.DONE}
        plan, found = await self._planned_anew(before, done, "")
        if found:
            plan, found = await self._planned_anew(before, done, wrong_with(found))
        if found:
            self._reasons[failed] += f"; the rest cannot be planned anew: {found[0]}"
            return
        self._replaced.update(undone)
        await self._round(plan, await self._ordered(plan), f"step {failed} failed")

    async def _planned_anew(
        self, before: Sequence[StepOutcome], done: set[str], told: str
    ) -> tuple[Plan, list[Problem]]:
        """What a planner makes of the rest, and what is wrong with that."""
        roles = (await self._means()).roles
        desired = Desired(
            role=PLANNER,
            task=replan_task(self._plan, before, roles.values()),
            schema=plan_schema(roles),
            purpose=told or to_toml(self._plan),
            reports=replan_reports(before),
        )
        answer = await self._employ(await self._ask(desired), line=PLANNER)
        if not answer.ok:
            return self._plan, [Problem("", PLANNER, f"{answer.status}: {answer.error}")]
        plan, found = planned(self._plan.goal, answer.data)
        plan = msgspec.structs.replace(
            plan, summary=plan.summary or self._plan.summary, review=False
        )
        return plan, [*found, *await self._wrong_with_round(plan, done)]

    async def _wrong_with_round(self, plan: Plan, done: set[str]) -> list[Problem]:
        """What is wrong with further steps; they may need those that are done."""
        found = [
            Problem(step.name, "name", "was used before; give it another")
            for step in plan.steps
            if step.name in self._steps
        ]
        alone = msgspec.structs.replace(
            plan,
            steps=tuple(
                msgspec.structs.replace(
                    step, depends_on=tuple(need for need in step.depends_on if need not in done)
                )
                for step in plan.steps
            ),
        )
        return [*found, *problems(alone, await self._means())]

    async def _ordered(self, plan: Plan) -> dict[str, Order]:
        left = self._run.root.account.unspent().tokens
        limit = None if left >= UNLIMITED // 2 else left
        return {step.name: await self._order(plan, step, limit) for step in plan.steps}

    async def _review(self) -> Result:
        """Have a reviewer look at it; what they find becomes one more round of steps."""
        run = self._run
        run.root.record(StepStarted(step=REVIEW))
        desired = Desired(
            role=REVIEWER,
            task=review_task(self._plan, self.outcomes),
            schema=REVIEW_SCHEMA,
            purpose=self._plan.summary.strip() or self._plan.goal,
            reports={o.step.name: o.result.summary for o in self.outcomes if o.result is not None},
        )
        review = await self._employ(await self._ask(desired), line=REVIEW)
        repairs, left_out = self._repairs(review)
        plan = Plan(goal=self._plan.goal, summary=self._plan.summary, steps=tuple(repairs))
        if repairs and (found := await self._wrong_with_round(plan, set())):
            left_out.append(f"the findings make no round: {found[0]}")
            repairs = []
        run.root.record(
            StepFinished(
                step=REVIEW,
                status=review.status,
                sub_agent_id=review.agent_id,
                reason="; ".join(filter(None, (review.error, *left_out))),
                then=f"{len(repairs)} more steps" if repairs else "done",
            )
        )
        if repairs:
            await self._round(plan, await self._ordered(plan), "the review")
        return review

    def _repairs(self, review: Result) -> tuple[list[PlanStep], list[str]]:
        """The findings as steps, in the plan's own bounds; and what became none."""
        steps: list[PlanStep] = []
        left_out: list[str] = []
        for number, finding in enumerate(findings(review), start=1):
            files = tuple(finding["files"])
            owners = [owned(self._plan, path) for path in files]
            if not files or not all(owners):
                left_out.append(f"finding {number} is about files that no step owns")
                continue
            checks = [check for group in owners for step in group for check in step.checks]
            steps.append(
                PlanStep(
                    name=f"fix-{number}",
                    role=FIXER,
                    task=finding["task"],
                    title=finding.get("title", ""),
                    writes=files,
                    checks=tuple(dict.fromkeys(checks)),
                    # One after the other: two findings may well be about the same file.
                    depends_on=(steps[-1].name,) if steps else (),
                )
            )
        return steps, left_out

    # The end

    @property
    def outcomes(self) -> tuple[StepOutcome, ...]:
        """What became of each step so far, in the order of the plan."""
        return tuple(
            self._outcome_of(step)
            for step in self._steps.values()
            if step.name not in self._replaced or self._results.get(step.name)
        )

    def _outcome_of(self, step: PlanStep) -> StepOutcome:
        results = tuple(self._results.get(step.name, ()))
        state = StepState.SKIPPED
        if results:
            state = StepState.DONE if results[-1].ok else StepState.FAILED
        return StepOutcome(
            step=step, state=state, results=results, reason=self._reasons.get(step.name, "")
        )

    def _outcome(self, review: Result | None) -> PlanResult:
        outcomes = self.outcomes
        # What was planned anew is made good by what took its place.
        counted = [o for o in outcomes if o.step.name not in self._replaced]
        status, why = verdict(counted)
        if self._is_stopped:
            status, why = Status.CANCELLED, self._run.root.stop_reason or ""
        result = PlanResult(
            run_id=self._run.id,
            plan=self._plan,
            status=status,
            error=why or None,
            steps=outcomes,
            total=self._run.total,
            review=review,
            forecast=self._expected,
        )
        return msgspec.structs.replace(result, report=markdown(result))
