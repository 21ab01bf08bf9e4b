"""`Plans`: writes, checks, forecasts and runs plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from retinue.domain.account import MICROUSD_PER_USD, Resources
from retinue.domain.agent_spec import AgentSpec
from retinue.domain.approval import Verdict
from retinue.domain.budget import Budget
from retinue.domain.contract import WorkspaceKind
from retinue.domain.events import PlanAdopted
from retinue.domain.grant import Mode
from retinue.domain.messages import estimate_tokens
from retinue.domain.plan.forecast import Forecast
from retinue.domain.plan.outcome import PlanResult, RunResult
from retinue.domain.plan.plan import (
    MIN_STEP_TOKENS,
    Plan,
    PlanStep,
    Problem,
    StepBudget,
    refuse,
    shares,
)
from retinue.domain.plan.plan_check import PlanContext, problems, writers
from retinue.domain.plan.plan_file import read, to_toml
from retinue.domain.plan.plan_state import PlanState
from retinue.domain.result import Status
from retinue.errors import PlanError, UsageError
from retinue.runtime.delegation.attachments import attach_all, handover_context
from retinue.runtime.delegation.forecasts import forecast_of
from retinue.runtime.delegation.task import Task, as_task, check_not_empty
from retinue.runtime.delegation.task_resolver import TaskResolver
from retinue.runtime.history.recovery import RecoveredRun
from retinue.runtime.planning.plan_run import PlanRun
from retinue.runtime.planning.planner import (
    PLANNER,
    most_steps,
    plan_schema,
    plan_task,
    problems_text,
    read_plan,
)
from retinue.runtime.planning.replan import PLANNERS, Inquiry, Replanner
from retinue.runtime.run.run import PLAN, PLANNING, Run
from retinue.runtime.run.runs import Runs
from retinue.runtime.services import Services

RUN_COMMAND = "run_command"
TASK_PREFIX = "Plan: "
"""Begins the task of a run that writes a plan."""
LATEST = ".retinue/plan.toml"
"""File with the last plan of a planner. It stays even if the plan is not run: it is paid for."""


class Plans:
    """Writes plans for goals, checks and forecasts plans, and runs them."""

    def __init__(self, services: Services, runs: Runs, task_resolver: TaskResolver) -> None:
        self._policy = services.policy
        self._services = services
        self._runs = runs
        self._task_resolver = task_resolver
        self._left: dict[str, Resources] = {}
        """By goal: what writing its plan has left of the limits."""

    async def write(self, goal: str, *, context: str, files: Sequence[str]) -> Plan:
        """Have a planner, which can only read, write a plan for `goal`. The plan is not run.

        Raises PlanError, with the plan as its `plan`, if the plan could not be run in any mode.
        """
        if not goal.strip():
            raise PlanError("The goal is empty; say what the plan is for.")
        if not most_steps(await self._context(Plan(goal=goal, steps=()))):
            raise PlanError(
                f"max_tokens {self._policy.budget.max_tokens:,} has no part for even one step:"
                f" {MIN_STEP_TOKENS:,} are the least."
            )
        planner = self._services.roles[PLANNER]
        given = await attach_all(
            self._services.file_tree.workspace(self._policy.directory),
            context=context,
            files=files,
            max_tokens=planner.budget.context_tokens // 2,
            served=await self._services.models.served(planner.model or self._policy.model),
        )
        run = self._runs.begin(PLANNING, f"{TASK_PREFIX}{goal}", attached=given)
        return await self._write(run, goal)

    async def _write(self, run: Run, goal: str) -> Plan:
        async def work() -> tuple[tuple[Plan, list[Problem]], Status, str]:
            first, second = PLANNERS
            plan, found = await self._ask_planner(run, goal, first, "")
            if found:
                earlier_problems = problems_text(found)
                plan, found = await self._ask_planner(run, goal, second, earlier_problems)
            self._services.storage.reports.keep(LATEST, to_toml(plan, comments=map(str, found)))
            why = "the plan cannot be run" if found else ""
            return (plan, found), Status.ERROR if found else Status.COMPLETED, why

        plan, found = await self._runs.run_to_end(run, work())
        self._left[plan.goal] = run.root.account.remaining()
        refuse(found, plan=plan)
        return plan

    async def resume_writing(self, run: Run, found: RecoveredRun) -> RunResult:
        """Finish writing a plan that another process has begun. The response is its text."""
        plan = await self._write(run, found.started.task.removeprefix(TASK_PREFIX))
        return msgspec.structs.replace(run.outcome, response=to_toml(plan))

    async def check(self, plan: Plan | Mapping[str, Any]) -> Plan:
        """`plan` as it would be run. PlanError names everything that is wrong with it.

        `plan` may be data, as read from a TOML or JSON file. Nothing is run.
        """
        data = msgspec.to_builtins(plan) if isinstance(plan, Plan) else plan
        checked, found = read(data)
        found += problems(checked, await self._context(checked))
        for step in checked.steps:
            if step.context_files and (why := await self._wrong_with_files(step)):
                found.append(Problem(step.name, "context_files", why))
        refuse(found, plan=checked)
        return checked

    async def forecast(
        self, work: Plan | Sequence[Task | tuple[str, str]], *, most: int
    ) -> Forecast:
        """The tokens, money and time that a plan, or the tasks of a fan-out, will likely use.

        The forecast is based on what earlier agents of the same roles have used in this project.
        """
        if isinstance(work, Plan):
            return await self._forecast(work, most, await self._exclusive(work))
        return await self._forecast(_as_plan(work), most, ())

    async def _forecast(self, plan: Plan, most: int, exclusive: Sequence[str]) -> Forecast:
        limit = self._budget_of(plan).max_tokens
        return await forecast_of(
            plan,
            self._services,
            limits=shares(plan, self._services.roles, limit),
            limit=limit,
            slots=most,
            exclusive=exclusive,
        )

    async def _exclusive(self, plan: Plan) -> tuple[str, ...]:
        """The steps that run one at a time, since they write in the same files."""
        writing = writers(plan, await self._context(plan))
        shared = WorkspaceKind.SHARED in writing.values()
        if writing and (shared or await self._services.file_tree.why_no_copies()):
            return tuple(writing)
        return ()

    async def execute(self, plan: Plan | Mapping[str, Any], *, most: int) -> PlanResult:
        """Run `plan` as a run of its own, with `most` children at a time.

        Raises PlanError, before anything is done, if the plan cannot be run.
        """
        plan = await self.check(plan)
        # All of them first, so that a wrong step is reported before any work begins.
        budget = self._budget_of(plan)
        specs = {s.name: await self._step_spec(plan, s, budget.max_tokens) for s in plan.steps}
        adopted = await self._adopted(plan, budget.max_tokens, most)
        # Nothing is awaited from here to the adoption: a run without a plan could not be resumed.
        run = self._runs.begin(PLAN, plan.goal, budget=budget)
        plan_run = self._plan_run(run)
        plan_run.adopt(adopted, specs)
        return await self._finish(run, plan_run)

    async def resume(self, run: Run, found: RecoveredRun) -> RunResult:
        """Run what is left of a plan that another process has begun."""
        result = await self._finish(run, self._plan_run(run, found.state.plan))
        return msgspec.structs.replace(
            run.outcome,
            response=result.report,
            results=tuple(o.result for o in result.steps if o.result is not None),
            plan=result,
        )

    async def _adopted(
        self, plan: Plan, limit: int | None, most: int, because: str = ""
    ) -> PlanAdopted:
        """The fact that puts a plan on record, with all that decides when its steps start."""
        exclusive = await self._exclusive(plan)
        return PlanAdopted(
            plan=plan,
            because=because,
            forecast=await self._forecast(plan, most, exclusive),
            max_tokens=limit,
            max_concurrent=most,
            exclusive=exclusive,
        )

    def _plan_run(self, run: Run, state: PlanState | None = None) -> PlanRun:
        return PlanRun(
            run,
            state,
            make_spec=self._step_spec,
            make_replanner=partial(Replanner, make_spec=self._inquiry_spec, context=self._context),
            make_adopted=self._adopted,
        )

    async def _finish(self, run: Run, plan_run: PlanRun) -> PlanResult:
        async def work() -> tuple[PlanResult, Status, str]:
            result = await plan_run.finish()
            self._services.storage.reports.keep(f".retinue/plan-{run.id}.md", result.report)
            return result, result.status, result.error or ""

        return await self._runs.run_to_end(run, work())

    async def _wrong_with_files(self, step: PlanStep) -> str:
        """Why the context files of a step cannot be read, or ""."""
        if step.role not in self._services.roles:
            return ""
        task = Task(
            role=step.role,
            task=step.name,
            context_files=step.context_files,
            max_context_tokens=step.budget.max_context_tokens,
        )
        try:
            await self._task_resolver.resolve(task)
        except UsageError as error:
            return str(error).rstrip(".")
        return ""

    def _budget_of(self, plan: Plan) -> Budget:
        """The limits of a plan: its own, and at most those of the runtime.

        The tokens that were used to write the plan count too: the user gave one limit for both.
        """
        whole, mine, left = self._policy.budget, plan.budget, self._left.get(plan.goal)
        if left is not None:
            whole = _reduced(whole, left)
        tokens = [n for n in (whole.max_tokens, mine.max_tokens) if n is not None]
        money = [n for n in (whole.max_cost_usd, mine.max_cost_usd) if n is not None]
        return msgspec.structs.replace(
            whole,
            max_tokens=min(tokens, default=None),
            max_cost_usd=min(money, default=None),
        )

    async def _context(
        self, plan: Plan, run: Run | None = None, *, mode: Mode | None = None
    ) -> PlanContext:
        """The rights and limits for checking a plan: of a new run, or of what is left of `run`."""
        policy, services = self._policy, self._services
        mode = mode or policy.mode
        effects = services.tools.effects
        budget = policy.budget if run is None else run.root.contract.execution.budget
        authority = policy.authority(
            "", plan.goal, effects, tuple(services.roles), mode=mode, budget=budget
        )
        if run is not None:
            authority = msgspec.structs.replace(authority, remaining=run.root.account.remaining())

        def wrong_with_model(name: str) -> str:
            try:
                services.models.get(services.models.resolve(name, None) or name)
            except UsageError as error:
                return str(error)
            return ""

        def unpriced(name: str) -> str:
            try:
                routed = services.models.resolve(name, None) or name
            except UsageError:
                routed = name
            return "" if services.models.price(routed) is not None else name

        checked = any(step.checks for step in plan.steps) or bool(policy.checks)
        # A planner may write checks if commands are allowed, and confined.
        confined = services.sandbox is not None and services.sandbox.tier != "none"
        may_write_checks = confined and mode.autonomous
        return PlanContext(
            roles=services.roles,
            authority=authority,
            effects=effects,
            approvals=policy.approvals,
            checks_possible=not checked or await services.check_sandbox() is not None,
            wrong_with_model=wrong_with_model,
            wrong_with_command=self._wrong_with_command if may_write_checks else None,
            unpriced=unpriced,
        )

    def _wrong_with_command(self, command: str) -> str:
        """Why a check that a planner has written may not run, or "". A child's commands are judged
        by the same rules.
        """
        verdict, _ = self._policy.rules.judge(RUN_COMMAND, command, is_command=True, asked=False)
        if verdict is Verdict.DENY:
            return "is forbidden by the user's rules"
        if verdict is Verdict.ASK and self._policy.mode is not Mode.DANGEROUS:
            return "needs a person's yes, and a check is run without one"
        return ""

    async def _inquiry_spec(self, inquiry: Inquiry) -> AgentSpec:
        spec = await self._task_resolver.resolve(
            Task(role=inquiry.role, task=inquiry.task, output=inquiry.schema, cache=False)
        )
        room = spec.role.budget.context_tokens // 2 - estimate_tokens(inquiry.context)
        handed, notes = handover_context(inquiry.purpose, inquiry.reports, max_tokens=max(0, room))
        context = "\n\n".join(filter(None, (inquiry.context, handed)))
        return msgspec.structs.replace(
            spec, context=context, images=inquiry.images, notes=(*spec.notes, *notes)
        )

    async def _ask_planner(
        self, run: Run, goal: str, origin_key: str, earlier_problems: str
    ) -> tuple[Plan, list[Problem]]:
        """The plan that a planner writes for a goal, and what is wrong with it.

        In a mode in which no child may write, the plan may write all the same: the user may want
        to read it first and run it in another mode.
        """
        mode = self._policy.mode if self._policy.mode.autonomous else Mode.AUTO
        context = await self._context(Plan(goal=goal, steps=()), mode=mode)
        inquiry = Inquiry(
            role=PLANNER,
            task=plan_task(goal, context),
            schema=plan_schema(context),
            purpose=earlier_problems or f"The plan is for: {goal}",
            context=run.root.contract.step.context,
            images=run.root.state.images,
        )
        answer = await run.spawn_once(lambda: self._inquiry_spec(inquiry), origin_key)
        if not answer.ok:
            raise PlanError(f"The planner failed: {answer.status}: {answer.error}")
        plan, found = read_plan(goal, answer.unwrap(), context)
        return plan, [*found, *problems(plan, await self._context(plan, mode=mode))]

    async def _step_spec(self, plan: Plan, step: PlanStep, limit: int | None) -> AgentSpec:
        limits = step.budget.given() | {
            "max_tokens": shares(plan, self._services.roles, limit)[step.name]
        }
        return await self._task_resolver.resolve(
            Task(
                role=step.role,
                task=step.task,
                write=step.writes,
                success_criteria=step.success_criteria,
                checks=step.checks,
                context_files=step.context_files,
                model=step.model,
                **limits,
            )
        )


def _reduced(budget: Budget, left: Resources) -> Budget:
    """`budget` with no more tokens and money than `left`. PlanError if nothing is left."""
    shared = {
        "max_tokens": left.tokens,
        "max_billed_tokens": left.billed_tokens,
        "max_cost_usd": left.cost_microusd / MICROUSD_PER_USD,
    }
    changed = {name: value for name, value in shared.items() if getattr(budget, name) is not None}
    for name, value in changed.items():
        if value <= 0:
            raise PlanError(
                f"Writing the plan has used all of {name} {getattr(budget, name):,}; allow more."
            )
    return msgspec.structs.replace(budget, **changed)


def _as_plan(tasks: Sequence[Task | tuple[str, str]]) -> Plan:
    """Tasks that do not depend on each other, as a plan."""
    wanted = [as_task(task) for task in tasks]
    for task in wanted:
        check_not_empty(task.task)
    return Plan(
        goal="fan-out",
        steps=tuple(
            PlanStep(
                name=str(number),
                role=task.role,
                task=task.task,
                model=task.model,
                budget=StepBudget(max_tokens=task.max_tokens),
            )
            for number, task in enumerate(wanted)
        ),
    )
