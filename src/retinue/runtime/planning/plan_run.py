"""`PlanRun`: runs the steps of a plan, each by a child of the run's root.

Every decision is in the journal before it is acted on: the plan (`plan.adopted`), the start of each
step, and how each step ended and what follows from that. `PlanState` is built from these facts,
here as well as when the plan is resumed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import cached_property

import msgspec

from retinue.domain.account import UNLIMITED
from retinue.domain.agent_spec import AgentSpec, StepLabel
from retinue.domain.events import PlanAdopted, PlanFact, PlanStepFinished, PlanStepStarted
from retinue.domain.framing import frame
from retinue.domain.messages import estimate_tokens
from retinue.domain.plan.outcome import PlanResult, StepOutcome, markdown, plan_status
from retinue.domain.plan.plan import REVIEW, Plan, PlanStep, bounds_of
from retinue.domain.plan.plan_state import DONE, REVIEWED, PlanState
from retinue.domain.plan.schedule import upstream
from retinue.domain.plural import plural
from retinue.domain.result import Result, Status
from retinue.errors import RunSuspended, UsageError
from retinue.runtime.core.task_group import TaskGroup
from retinue.runtime.delegation.attachments import failure_report, handover_context
from retinue.runtime.planning.replan import Replanner
from retinue.runtime.run.run import Run

CONTEXT_SHARE = 2
"""At most one part in this many of a child's window is filled with the reports of other steps."""


class PlanRun:
    """Runs one plan, from its first step to its report.

    `adopt` a plan first, or give the `state` in which another process has left it.
    """

    def __init__(
        self,
        run: Run,
        state: PlanState | None = None,
        *,
        make_spec: Callable[[Plan, PlanStep, int | None], Awaitable[AgentSpec]],
        make_replanner: Callable[[Run, Plan], Replanner],
        make_adopted: Callable[[Plan, int | None, int, str], Awaitable[PlanAdopted]],
    ) -> None:
        """`make_spec` gets a plan, one of its steps, and the tokens for all steps together.

        `make_adopted` gets further steps, their tokens, how many children may run at a time, and
        why there are further steps.
        """
        self._run = run
        self._make_spec = make_spec
        self._make_replanner = make_replanner
        self._make_adopted = make_adopted
        self._state = PlanState() if state is None else state
        self._specs: dict[str, AgentSpec] = {}
        self._results: dict[str, list[Result]] = {
            name: [self._recorded_result(fact) for fact in attempts]
            for name, attempts in self._state.attempts.items()
        }
        self._left_open: list[str] = []

    def adopt(self, adopted: PlanAdopted, specs: Mapping[str, AgentSpec]) -> None:
        """Make the steps of a plan the next ones; they may need steps of earlier rounds."""
        self._specs.update(specs)
        self._record(adopted)

    async def finish(self) -> PlanResult:
        """Run all steps that are left.

        Raises RunSuspended, with the results so far, if a model endpoint is gone. Otherwise only a
        cancellation or a broken store raises.
        """
        try:
            return await self._finish()
        except RunSuspended as error:
            done = [o.result for o in self.outcomes if o.result is not None]
            raise RunSuspended(str(error), run_id=error.run_id, results=done) from None

    async def _finish(self) -> PlanResult:
        state = self._state
        await self._run_round()
        if state.needs_replan:
            await self._replan()
        review = None
        if state.is_repairing:
            review = await self._replanner.review(self.outcomes, state.review)
            _, self._left_open = await self._replanner.repairs(review, state.steps)
        elif state.plan.review and not state.unfinished and not self._is_stopped:
            review = await self._review()
        return self._result(review)

    @cached_property
    def _replanner(self) -> Replanner:
        return self._make_replanner(self._run, self._state.plan)

    @property
    def _is_stopped(self) -> bool:
        return self._run.root.stop_reason is not None

    def _record(self, fact: PlanFact) -> None:
        self._run.root.record(fact)
        self._state.apply(fact)

    def _recorded_result(self, fact: PlanStepFinished) -> Result:
        """The result of an attempt that has ended in another process."""
        step = self._state.steps[fact.step]
        child = self._run.registry.restored.get(fact.sub_agent_id)
        if child is None:
            return self._run.failed_result(step.role, step.task, fact.reason, fact.status)
        assert child.result is not None, "the child of an ended attempt is closed"
        return child.result

    # The steps

    async def _run_round(self) -> None:
        """Run the steps of the last round, as many at a time as dependencies and limit allow."""
        schedule, max_concurrent = self._state.schedule, self._state.rounds[-1].max_concurrent
        ended: asyncio.Queue[tuple[str, Result | RunSuspended]] = asyncio.Queue()
        suspended: list[RunSuspended] = []

        async def run(name: str) -> None:
            try:
                ended.put_nowait((name, await self._run_step(name)))
            except RunSuspended as error:
                ended.put_nowait((name, error))

        async with TaskGroup() as tasks:
            for name in schedule.running:  # Steps that another process has started come first.
                tasks.create_task(run(name))
            while True:
                while len(schedule.running) < max_concurrent:
                    ready = schedule.start_next()
                    if ready is None:
                        break
                    self._start_step(ready)
                    tasks.create_task(run(ready))
                # A suspended step keeps its place, and the steps that need it do not start.
                if len(schedule.running) == len(suspended):
                    break
                # Nothing is awaited between the end of a step and the next start, so the journal
                # shows each decision at the moment it was made.
                name, result = await ended.get()
                if isinstance(result, RunSuspended):
                    suspended.append(result)
                else:
                    self._finish_step(name, result)
        if suspended:
            raise suspended[0]
        self._state.end_round()

    async def _run_further_round(self, plan: Plan, because: str) -> None:
        """Adopt further steps, with what is left of the budget, and run them."""
        left_tokens = self._run.root.account.remaining().tokens
        limit = None if left_tokens >= UNLIMITED // 2 else left_tokens
        max_concurrent = self._state.rounds[-1].max_concurrent
        adopted = await self._make_adopted(plan, limit, max_concurrent, because)
        specs = {step.name: await self._spec(plan, step, limit) for step in plan.steps}
        self.adopt(adopted, specs)
        await self._run_round()

    async def _spec(self, plan: Plan, step: PlanStep, limit: int | None) -> AgentSpec:
        spec = await self._make_spec(plan, step, limit)
        if plan is self._state.plan:
            return spec
        # A model has written this step; the first plan says where its role may write.
        bounds = bounds_of(step, self._state.plan)
        if not bounds:
            return spec
        permissions = msgspec.structs.replace(spec.permissions, scope=bounds)
        return msgspec.structs.replace(spec, permissions=permissions)

    def _start_step(self, name: str) -> None:
        attempts = self._state.attempts.get(name, ())
        because = f"{attempts[-1].status}: {attempts[-1].reason}" if attempts else ""
        self._record(PlanStepStarted(step=name, attempt=len(attempts) + 1, because=because))

    async def _run_step(self, name: str) -> Result:
        step, attempt = self._state.steps[name], len(self._state.attempts[name]) + 1

        async def spec() -> AgentSpec:
            if name not in self._specs:  # Another process has adopted the plan.
                adopted = self._state.rounds[-1]
                self._specs[name] = await self._spec(adopted.plan, step, adopted.max_tokens)
            return self._with_context(step, self._specs[name])

        key, read_untrusted = _origin_key(name, attempt), self._has_untrusted_context(step)
        if step.candidates == 1:
            return await self._run.spawn_once(spec, key, read_untrusted=read_untrusted)

        async def candidate(_: int) -> AgentSpec:
            return await spec()

        most = self._state.rounds[-1].max_concurrent
        try:
            race = await self._run.race(
                key, step.candidates, candidate, max_concurrent=most, read_untrusted=read_untrusted
            )
        except UsageError as error:
            return self._run.failed_result(step.role, step.task, str(error), Status.REJECTED)
        if race.winner is None:
            return self._run.failed_result(step.role, step.task, race.error or "", race.status)
        return race.winner

    def _has_untrusted_context(self, step: PlanStep) -> bool:
        """Whether untrusted text may be in the task or the context of a step.

        The author of a further step has read the reports of all steps before it.
        """
        needs = {name: other.depends_on for name, other in self._state.steps.items()}
        is_further = all(step.name != one.name for one in self._state.plan.steps)
        sources = self._results if is_further else (step.name, *upstream(needs, step.name))
        tainted = any(result.tainted for name in sources for result in self._results.get(name, ()))
        return tainted or (is_further and self._replanner.is_tainted)

    def _with_context(self, step: PlanStep, spec: AgentSpec) -> AgentSpec:
        """The spec for a step, with the reports of the steps that it needs."""
        plan, tries = self._state.plan, self._results.get(step.name)
        window = spec.limits.max_context_tokens or spec.role.budget.context_tokens
        room = window // CONTEXT_SHARE - estimate_tokens(spec.context)
        parts = [spec.context] if spec.context else []
        if tries:
            failure = frame(failure_report(tries[-1]), kind="failure", source=step.name)
            parts.append(f"An earlier try at this failed. Do better:\n{failure}")
            room -= estimate_tokens(failure)
        reports = {name: self._results[name][-1].summary for name in step.depends_on}
        handed, notes = handover_context(
            f"This is step {step.name!r} of a plan: {plan.summary.strip() or plan.goal}",
            reports,
            max_tokens=max(room, 0),
        )
        return msgspec.structs.replace(
            spec,
            context="\n\n".join((handed, *parts)),
            notes=(*spec.notes, *notes),
            step=StepLabel(
                name=step.name,
                title=step.shown,
                goal_summary=plan.summary.strip() or plan.goal,
                number=self._state.number_of(step.name),
            ),
            # Another try should find another answer.
            cache=spec.cache and not tries,
        )

    def _finish_step(self, name: str, result: Result) -> None:
        """Decide what follows from the end of a step, and record it."""
        then = self._state.decide(name, result.status, stopped=self._is_stopped)
        self._results.setdefault(name, []).append(result)
        self._record(
            PlanStepFinished(
                step=name,
                status=result.status,
                sub_agent_id=result.agent_id,
                reason=result.error or "",
                then=then,
                lost=tuple(self._state.lost_with(name, then)),
            )
        )

    # Further rounds

    async def _replan(self) -> None:
        """Have the rest planned anew, once, and run that."""
        plan, why = await self._replanner.plan_rest(self.outcomes, taken=self._state.steps)
        if plan is None:
            self._state.replan_failed(why)
        else:
            await self._run_further_round(plan, f"step {self._state.replan_after} failed")

    async def _review(self) -> Result:
        """Have a child review the work; its findings become one more round of steps."""
        state = self._state
        if not state.review_started:
            self._record(PlanStepStarted(step=REVIEW))
        review = await self._replanner.review(self.outcomes, state.review)
        repairs, left_open = await self._replanner.repairs(review, state.steps)
        plan = Plan(goal=state.plan.goal, summary=state.plan.summary, steps=tuple(repairs))
        if state.review is None:
            if repairs and (found := await self._replanner.problems_with(plan, state.steps)):
                left_open.append(f"the findings make no round: {found[0]}")
                repairs = []
            count = len(repairs)
            problem = "in prose, without findings as data" if review.is_prose else review.error
            self._record(
                PlanStepFinished(
                    step=REVIEW,
                    status=Status.COMPLETED if review.is_prose else review.status,
                    sub_agent_id=review.agent_id,
                    reason="; ".join(filter(None, (problem, *left_open))),
                    then=plural(count, "more step") if count else DONE,
                )
            )
        assert state.review is not None, "it is on record"
        self._left_open = left_open
        if state.review.then != DONE:
            await self._run_further_round(plan, REVIEWED)
        return review

    # The end

    @property
    def outcomes(self) -> tuple[StepOutcome, ...]:
        """The outcome of each step so far, in the order of the plan."""
        return tuple(
            StepOutcome(
                step=step,
                state=self._state.state_of(step.name),
                results=tuple(self._results.get(step.name, ())),
                reason=self._state.reason_of(step.name),
            )
            for step in self._state.outcome_steps
        )

    def _result(self, review: Result | None) -> PlanResult:
        state, outcomes = self._state, self.outcomes
        # The steps of a replan make up for those that they have replaced.
        counted = [outcome for outcome in outcomes if outcome.step.name not in state.replaced]
        status, why = plan_status(counted, review)
        if self._is_stopped:
            status, why = Status.CANCELLED, self._run.root.stop_reason or ""
        result = PlanResult(
            run_id=self._run.id,
            plan=state.plan,
            status=status,
            error=why or None,
            steps=outcomes,
            left_open=tuple(self._left_open),
            total=self._run.registry.total,
            review=review,
            forecast=state.rounds[0].forecast,
        )
        return msgspec.structs.replace(result, report=markdown(result))


def _origin_key(step: str, attempt: int) -> str:
    """The key by which a resumed plan finds the child of an attempt. It is on record."""
    return f"step {step} {attempt}"
