"""A run whose root is a plan: its steps are given to children, and their ends decide what is next.

Everything that it decides is in the journal before it is acted on: the plan (`plan.adopted`), each
step that is begun, and how each ended and what follows from that.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import cached_property

import msgspec

from retinue.domain.account import UNLIMITED
from retinue.domain.drafting import AgentSpec
from retinue.domain.events import AgentCreated, Fact, PlanAdopted, PlanStepFinished, PlanStepStarted
from retinue.domain.framing import frame
from retinue.domain.messages import estimate_tokens
from retinue.domain.plan.outcome import PlanResult, StepOutcome, StepState, markdown, verdict
from retinue.domain.plan.plan import REVIEW, OnFailure, Plan, PlanStep, bounds_of
from retinue.domain.plan.schedule import Schedule, upstream
from retinue.domain.result import Result, Status
from retinue.runtime.core.step_runner import run_steps
from retinue.runtime.delegation.handover import evidence, handed_on
from retinue.runtime.planning.replan import Counsel
from retinue.runtime.run.dispatch import employ
from retinue.runtime.run.run import Run

DONE = "done"
REVIEWED = "the review"
CONTEXT_SHARE = 2  # Half of a child's window is the most that may be given along.


class PlannedRun:
    """Carries out one plan, from its first step to its report.

    `adopt` it, or `recall` what another process has done of it; then `carry_out` the rest.
    """

    def __init__(
        self,
        run: Run,
        *,
        spec_for: Callable[[Plan, PlanStep, int | None], Awaitable[AgentSpec]],
        counsel: Callable[[Run, Plan], Counsel],
        adopted: Callable[[Plan, int | None, int, str], Awaitable[PlanAdopted]],
    ) -> None:
        """`spec_for` makes the spec of a step's child, within a token limit for the whole plan.

        `counsel` is asked for further rounds of steps, and `adopted` tells what goes on record of
        one, for so many tokens, so many children at a time, and a reason.
        """
        self._run = run
        self._spec_for = spec_for
        self._make_counsel = counsel
        self._adopted = adopted
        self._rounds: list[PlanAdopted] = []
        self._steps: dict[str, PlanStep] = {}
        self._specs: dict[str, AgentSpec] = {}
        self._results: dict[str, list[Result]] = {}
        self._reasons: dict[str, str] = {}
        self._lost_to: dict[str, list[str]] = {}
        """For those that were given up, the steps that they need and that have failed."""
        self._replaced: set[str] = set()
        """Those whose place others have taken; none as long as nothing was planned anew."""
        self._numbers: dict[str, int] = {}
        self._halted_by: str | None = None
        """The step whose failure has the rest planned anew."""
        self._ended = False
        """Whether a failure has ended the plan."""
        self._left_open: list[str] = []
        self._review_began = False
        self._reviewed: PlanStepFinished | None = None
        self._schedule = Schedule({}, {})

    def adopt(self, adopted: PlanAdopted, specs: Mapping[str, AgentSpec]) -> None:
        """Let the steps of a plan be the next; they may need those of earlier ones."""
        self._specs.update(specs)
        self._run.root.record(adopted)
        self._follow_plan(adopted)

    def recall(self, facts: Iterable[Fact]) -> None:
        """Be where the journal says that the plan was left."""
        root = self._run.root
        root.steps = 0
        for fact in facts:
            match fact:
                case PlanAdopted():
                    self._follow_plan(fact)
                case AgentCreated():
                    root.steps += 1
                case PlanStepStarted(step=step):
                    if step == REVIEW:
                        self._review_began = True
                    else:
                        self._schedule.begin(step)
                        self._results.setdefault(step, [])
                case PlanStepFinished(step=step):
                    if step == REVIEW:
                        self._reviewed = fact
                    else:
                        self._follow(step, self._ended_as(fact), fact.then)

    def _ended_as(self, fact: PlanStepFinished) -> Result:
        step, tries = self._steps[fact.step], self._results[fact.step]
        child = self._run.employed(_errand(step.name, len(tries) + 1))
        if child is None:
            return self._run.refused(step.role, step.task, fact.reason, fact.status)
        assert child.result is not None, "who is done with is closed"
        return child.result

    async def carry_out(self) -> PlanResult:
        """Do all of it, or what is left. Only a cancellation or a broken store raises."""
        await self._work_off()
        if self._halted_by is not None and self._is_to_be_planned_anew:
            await self._replan(self._halted_by)
        review = None
        if self._is_repairing:
            review = await self._examined()
            _, self._left_open = await self._repairs(review)
        elif self._plan.review and not self._undone() and not self._is_stopped:
            review = await self._review()
        return self._outcome(review)

    @property
    def _plan(self) -> Plan:
        """The one that all began with."""
        return self._rounds[0].plan

    @cached_property
    def _counsel(self) -> Counsel:
        return self._make_counsel(self._run, self._plan)

    @property
    def _is_repairing(self) -> bool:
        return self._rounds[-1].because == REVIEWED

    @property
    def _is_to_be_planned_anew(self) -> bool:
        return self._halted_by is not None and not self._replaced and not self._ended

    @property
    def _is_stopped(self) -> bool:
        return self._run.root.stop_reason is not None

    def _counted(self) -> list[StepOutcome]:
        """What was planned anew is made good by what took its place."""
        return [outcome for outcome in self.outcomes if outcome.step.name not in self._replaced]

    def _undone(self) -> list[StepOutcome]:
        return [outcome for outcome in self._counted() if outcome.state is not StepState.DONE]

    # The steps

    def _follow_plan(self, adopted: PlanAdopted) -> None:
        if adopted.because and adopted.because != REVIEWED:
            for outcome in self._undone():
                self._replaced.add(outcome.step.name)
                if outcome.reason:
                    self._reasons[outcome.step.name] = f"{outcome.reason}; planned anew"
        self._give_up_rest()
        self._rounds.append(adopted)
        for step in adopted.plan.steps:
            self._numbers[step.name] = len(self._steps)
            self._steps[step.name] = step
        self._run.root.steps = max(self._run.root.steps, len(self._steps))
        expected = () if adopted.forecast is None else adopted.forecast.steps
        weights = {step.step: step.duration_s for step in expected}
        self._schedule = Schedule(adopted.plan.needs, weights, adopted.alone)

    def _give_up_rest(self) -> None:
        for name in self._schedule.waiting:
            self._reasons.setdefault(name, "the plan was stopped before it")

    async def _work_off(self) -> None:
        """Carry out the steps of the plan that was adopted last."""
        await run_steps(
            self._schedule,
            max_concurrent=self._rounds[-1].max_concurrent,
            begin=self._begin,
            work=self._work,
            settle=self._settle,
        )
        self._give_up_rest()

    async def _next_round(self, plan: Plan, because: str) -> None:
        """Adopt further steps, with what the budget has left, and carry them out."""
        left, most = self._run.root.account.remaining().tokens, self._rounds[-1].max_concurrent
        limit = None if left >= UNLIMITED // 2 else left
        adopted = await self._adopted(plan, limit, most, because)
        specs = {step.name: await self._bounded_spec(plan, step, limit) for step in plan.steps}
        self.adopt(adopted, specs)
        await self._work_off()

    async def _bounded_spec(self, plan: Plan, step: PlanStep, limit: int | None) -> AgentSpec:
        spec = await self._spec_for(plan, step, limit)
        if plan is self._plan:
            return spec
        # A model has written this step; the plan says where its role may write.
        bounds = bounds_of(step, self._plan)
        return msgspec.structs.replace(spec, scope=bounds or spec.scope)

    def _begin(self, name: str) -> None:
        tries = self._results.setdefault(name, [])
        because = f"{tries[-1].status}: {tries[-1].error}" if tries else ""
        self._run.root.record(PlanStepStarted(step=name, attempt=len(tries) + 1, because=because))

    async def _work(self, name: str) -> Result:
        step, attempt = self._steps[name], len(self._results[name]) + 1

        async def spec() -> AgentSpec:
            if name not in self._specs:  # It was made in another process.
                adopted = self._rounds[-1]
                self._specs[name] = await self._bounded_spec(adopted.plan, step, adopted.max_tokens)
            return self._with_context(step, self._specs[name])

        heard_untrusted = self._has_heard(step)
        return await employ(
            self._run, _errand(name, attempt), spec, heard_untrusted=heard_untrusted
        )

    def _has_heard(self, step: PlanStep) -> bool:
        """Whether a stranger's words may be among those that a step is given.

        The task of a further one was written by somebody who has heard of all before it.
        """
        needs = {name: other.depends_on for name, other in self._steps.items()}
        further = all(step.name != one.name for one in self._plan.steps)
        given = self._results if further else (step.name, *upstream(needs, step.name))
        heard = any(result.tainted for name in given for result in self._results[name])
        return heard or (further and self._counsel.has_heard)

    def _with_context(self, step: PlanStep, spec: AgentSpec) -> AgentSpec:
        """The order for a step, with what those before it have found."""
        plan, tries = self._plan, self._results[step.name]
        window = spec.limits.max_context_tokens or spec.role.budget.max_context_tokens
        room = window // CONTEXT_SHARE - estimate_tokens(spec.context)
        parts = [spec.context] if spec.context else []
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
            spec,
            context="\n\n".join((handed, *parts)),
            notes=(*spec.notes, *notes),
            name=step.name,
            title=step.shown,
            goal_summary=plan.summary.strip() or plan.goal,
            step_idx=self._numbers[step.name],
            # Another try is to find another answer.
            cache=spec.cache and not tries,
        )

    def _settle(self, name: str, result: Result) -> None:
        """Decide what follows from the end of a step, and write it down."""
        then = self._decided(self._steps[name], result, tries=len(self._results[name]) + 1)
        lost = self._follow(name, result, then)
        self._run.root.record(
            PlanStepFinished(
                step=name,
                status=result.status,
                sub_agent_id=result.agent_id,
                reason=result.error or "",
                then=then,
                lost=tuple(lost),
            )
        )

    def _decided(self, step: PlanStep, result: Result, *, tries: int) -> str:
        if result.ok:
            return DONE
        if self._is_stopped:
            return OnFailure.STOP.value
        match step.on_failure:
            case OnFailure.CONTINUE:
                return OnFailure.CONTINUE.value
            # What the user has stopped is not done by another.
            case _ if result.status is Status.CANCELLED:
                return OnFailure.STOP.value
            case OnFailure.RETRY if tries < step.tries and not self._schedule.stopped:
                return OnFailure.RETRY.value
            # In a plan that was stopped by another nothing is begun, not even this again.
            case OnFailure.RETRY if tries < step.tries and self._is_to_be_planned_anew:
                return OnFailure.REPLAN.value
            case OnFailure.REPLAN if not self._replaced:
                return OnFailure.REPLAN.value
        return OnFailure.STOP.value

    def _follow(self, name: str, result: Result, then: str) -> list[str]:
        """Do what was decided; answers the steps that can never be begun now."""
        schedule = self._schedule
        self._results[name].append(result)
        if then == DONE:
            schedule.done(name)
            return []
        if then == OnFailure.RETRY:
            schedule.again(name)
            return []
        if then == OnFailure.REPLAN:
            self._halted_by = self._halted_by or name
        self._ended |= then == OnFailure.STOP
        if then != OnFailure.CONTINUE:
            schedule.stop()
        self._reasons[name] = f"{result.status}: {result.error}"
        lost = schedule.failed(name)
        for other in lost:
            self._lost_to.setdefault(other, []).append(name)
        return lost

    # Further rounds

    async def _replan(self, failed: str) -> None:
        """Have the rest planned anew, once, and carry that out."""
        plan, why = await self._counsel.rest(self.outcomes, taken=self._steps)
        if plan is None:
            self._reasons[failed] += f"; the rest cannot be planned anew: {why}"
            return
        await self._next_round(plan, f"step {failed} failed")

    async def _review(self) -> Result:
        """Have a reviewer look at it; what they find becomes one more round of steps."""
        if not self._review_began:
            self._run.root.record(PlanStepStarted(step=REVIEW))
        review = await self._examined()
        repairs, left_open = await self._repairs(review)
        plan = Plan(goal=self._plan.goal, summary=self._plan.summary, steps=tuple(repairs))
        if self._reviewed is None:
            if repairs and (found := await self._counsel.wrong_with(plan, self._steps)):
                left_open.append(f"the findings make no round: {found[0]}")
                repairs = []
            self._reviewed = PlanStepFinished(
                step=REVIEW,
                status=review.status,
                sub_agent_id=review.agent_id,
                reason="; ".join(filter(None, (review.error, *left_open))),
                then=_more(len(repairs)) if repairs else DONE,
            )
            self._run.root.record(self._reviewed)
        self._left_open = left_open
        if self._reviewed.then != DONE:
            await self._next_round(plan, REVIEWED)
        return review

    async def _examined(self) -> Result:
        """What the reviewer says."""
        return await self._counsel.review(self.outcomes, self._reviewed)

    async def _repairs(self, review: Result) -> tuple[list[PlanStep], list[str]]:
        return await self._counsel.repairs(review, self._steps)

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
        reason = self._reasons.get(step.name, "")
        if failed := self._lost_to.get(step.name):
            in_order = sorted(failed, key=self._numbers.__getitem__)
            reason = f"it needs {' and '.join(in_order)}, which failed"
        return StepOutcome(step=step, state=state, results=results, reason=reason)

    def _outcome(self, review: Result | None) -> PlanResult:
        status, why = verdict(self._counted(), review)
        if self._is_stopped:
            status, why = Status.CANCELLED, self._run.root.stop_reason or ""
        result = PlanResult(
            run_id=self._run.id,
            plan=self._plan,
            status=status,
            error=why or None,
            steps=self.outcomes,
            left_open=tuple(self._left_open),
            total=self._run.total,
            review=review,
            forecast=self._rounds[0].forecast,
        )
        return msgspec.structs.replace(result, report=markdown(result))


def _errand(name: str, attempt: int) -> str:
    """What a try at a step is called in the record of the child that it has made."""
    return f"step {name} {attempt}"


def _more(count: int) -> str:
    return f"{count} more step{'' if count == 1 else 's'}"
