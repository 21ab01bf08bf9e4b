"""Plans: having them written, checking them, telling what they will take, carrying them out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from retinue.domain.approval import Verdict
from retinue.domain.budget import Budget
from retinue.domain.contract import WorkspaceKind
from retinue.domain.drafting import AgentSpec, Authority, root_grant
from retinue.domain.events import PlanAdopted
from retinue.domain.grant import Mode
from retinue.domain.lifecycle import State
from retinue.domain.messages import estimate_tokens
from retinue.domain.plan.forecast import Forecast, forecast
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
from retinue.domain.plan.plan_check import PlanContext as PlanMeans
from retinue.domain.plan.plan_check import problems, writers
from retinue.domain.plan.plan_file import read, to_toml
from retinue.domain.result import Status
from retinue.domain.role import pick
from retinue.errors import PlanError, UsageError
from retinue.runtime.delegation.attachments import enclose
from retinue.runtime.delegation.handover import handed_on
from retinue.runtime.delegation.task import Task, asked, check_task
from retinue.runtime.delegation.task_resolver import TaskResolver
from retinue.runtime.history.recovery import RecoveredRun
from retinue.runtime.planning.plan_run import PlannedRun
from retinue.runtime.planning.planner import (
    PLANNER,
    most_steps,
    plan_schema,
    plan_task,
    planned,
    wrong_with,
)
from retinue.runtime.planning.replan import PLANNERS, Counsel, Desired
from retinue.runtime.run.run import Run
from retinue.runtime.run.runs import PLAN, PLANNING, Runs
from retinue.runtime.services import Services

RUN_COMMAND = "run_command"
ABOUT = "Plan: "  # what the task of a run begins with that is to write one
LATEST = ".retinue/plan.toml"
"""Where the plan is that was written last: it is paid for, whatever becomes of it."""


class Plans:
    """Makes runs of plans, and plans of goals."""

    def __init__(self, around: Services, runs: Runs, task_resolver: TaskResolver) -> None:
        self._policy = around.policy
        self._around = around
        self._runs = runs
        self._task_resolver = task_resolver

    async def write(self, goal: str, *, context: str, files: Sequence[str]) -> Plan:
        """Have a planner, who only reads, write a plan for `goal`. Nothing of it is done.

        Raises PlanError if what it wrote cannot be carried out; `draft` of that is the plan. In
        which mode that would be is for those to say who carry it out.
        """
        if not goal.strip():
            raise PlanError("The goal is empty; say what the plan is for.")
        if not most_steps(await self._means(Plan(goal=goal, steps=()))):
            raise PlanError(
                f"max_tokens {self._policy.budget.max_tokens:,} has no part for even one step:"
                f" {MIN_STEP_TOKENS:,} are the least."
            )
        given, left_out = await enclose(
            self._around.file_tree.workspace(self._policy.directory),
            context=context,
            files=files,
            max_tokens=self._around.roles[PLANNER].budget.max_context_tokens // 2,
        )
        if left_out and files:
            raise UsageError("; ".join(left_out) + ".")
        run = self._runs.begin(PLANNING, f"{ABOUT}{goal}", context=given)
        run.preside()
        return await self._written(run, goal)

    async def _written(self, run: Run, goal: str) -> Plan:
        async def work() -> tuple[tuple[Plan, list[Problem]], Status, str]:
            first, second = PLANNERS
            plan, found = await self._planned(run, goal, first, "")
            if found:
                plan, found = await self._planned(run, goal, second, wrong_with(found))
            self._around.storage.reports.keep(LATEST, to_toml(plan, comments=map(str, found)))
            why = "the plan cannot be run" if found else ""
            return (plan, found), Status.ERROR if found else Status.COMPLETED, why

        plan, found = await self._runs.ended(run, work())
        refuse(found, draft=plan)
        return plan

    async def write_on(self, run: Run, found: RecoveredRun) -> RunResult:
        """Have a plan written that another process has asked for; the answer is its text."""
        if found.state.agents[run.root.id].state is State.CREATED:
            run.preside()
        run.reseat(run.root, found.state.resume_points[run.root.id])
        plan = await self._written(run, found.started.task.removeprefix(ABOUT))
        return msgspec.structs.replace(run.outcome, response=to_toml(plan))

    async def check(self, plan: Plan | Mapping[str, Any]) -> Plan:
        """`plan` as it would be carried out. PlanError tells of everything that is wrong with it.

        It may be data, such as a TOML or JSON file holds. Nothing is done.
        """
        data = msgspec.to_builtins(plan) if isinstance(plan, Plan) else plan
        read_plan, found = read(data)
        found += problems(read_plan, await self._means(read_plan))
        for step in read_plan.steps:
            if step.context_files and (why := await self._wrong_with_files(step)):
                found.append(Problem(step.name, "context_files", why))
        refuse(found, draft=read_plan)
        return read_plan

    async def forecast(
        self, work: Plan | Sequence[Task | tuple[str, str]], *, most: int
    ) -> Forecast:
        """What a plan, or the tasks of a fan-out, will likely use: tokens, money and time.

        It is taken from what earlier agents of the same roles have used in this project.
        """
        if isinstance(work, Plan):
            return await self._forecast(work, most, await self._alone(work))
        return await self._forecast(_as_plan(work), most, ())

    async def _forecast(self, plan: Plan, most: int, alone: Sequence[str]) -> Forecast:
        around = self._around
        names = dict.fromkeys(step.role for step in plan.work)
        limit = self._budget_of(plan).max_tokens
        roles = {name: pick(around.roles, name) for name in names}
        return forecast(
            plan,
            roles=roles,
            history={name: await around.storage.store.history(name) for name in names},
            limits=shares(plan, around.roles, limit),
            limit=limit,
            price=lambda step: around.models.price(
                around.models.resolve(step.model, None)
                or roles[step.role].model
                or self._policy.model
            ),
            slots=most,
            alone=alone,
        )

    async def _alone(self, plan: Plan) -> tuple[str, ...]:
        """The steps that can only be at work one at a time, since they share the files."""
        writing = writers(plan, await self._means(plan))
        shared = WorkspaceKind.SHARED in writing.values()
        if writing and (shared or await self._around.file_tree.why_no_copies()):
            return tuple(writing)
        return ()

    async def execute(self, plan: Plan | Mapping[str, Any], *, most: int) -> PlanResult:
        """Carry out `plan`, as a run of its own, with `most` children at a time.

        PlanError, before anything is done, if it cannot be.
        """
        plan = await self.check(plan)
        # All of them first: a wrong one is told before any work begins.
        budget = self._budget_of(plan)
        specs = {s.name: await self._step_spec(plan, s, budget.max_tokens) for s in plan.steps}
        adopted = await self._adopted(plan, budget.max_tokens, most)
        # Nothing is awaited from here to the adoption: what is begun can be gone on with.
        run = self._runs.begin(PLAN, plan.goal, budget=budget)
        run.preside()
        planned_run = self._planned_run(run)
        planned_run.adopt(adopted, specs)
        return await self._carried_out(run, planned_run)

    async def go_on(self, run: Run, found: RecoveredRun) -> RunResult:
        """Carry out what is left of a plan that another process has begun."""
        run.reseat(run.root, found.state.resume_points[run.root.id], apart=True)
        planned_run = self._planned_run(run)
        planned_run.recall(found.state.plan_facts)
        result = await self._carried_out(run, planned_run)
        return msgspec.structs.replace(
            run.outcome,
            response=result.report,
            results=tuple(o.result for o in result.steps if o.result is not None),
            plan=result,
        )

    async def _adopted(
        self, plan: Plan, limit: int | None, most: int, because: str = ""
    ) -> PlanAdopted:
        """What goes on record of a plan: it, and by what its steps are begun."""
        alone = await self._alone(plan)
        return PlanAdopted(
            plan=plan,
            because=because,
            forecast=await self._forecast(plan, most, alone),
            max_tokens=limit,
            max_concurrent=most,
            alone=alone,
        )

    def _planned_run(self, run: Run) -> PlannedRun:
        return PlannedRun(
            run,
            spec_for=self._step_spec,
            counsel=partial(Counsel, ask=self._asked, means=self._means),
            adopted=self._adopted,
        )

    async def _carried_out(self, run: Run, planned_run: PlannedRun) -> PlanResult:
        async def work() -> tuple[PlanResult, Status, str]:
            result = await planned_run.carry_out()
            self._around.storage.reports.keep(f".retinue/plan-{run.id}.md", result.report)
            return result, result.status, result.error or ""

        return await self._runs.ended(run, work())

    # Inside

    async def _wrong_with_files(self, step: PlanStep) -> str:
        """Why the files of a step cannot be given to it, or ""."""
        if step.role not in self._around.roles:
            return ""
        asked = Task(
            role=step.role,
            task=step.name,
            context_files=step.context_files,
            max_context_tokens=step.budget.max_context_tokens,
        )
        try:
            await self._task_resolver.resolve(asked)
        except UsageError as error:
            return str(error).rstrip(".")
        return ""

    def _budget_of(self, plan: Plan) -> Budget:
        """What a plan may use: its own limits, and at most those of the runtime."""
        whole, mine = self._policy.budget, plan.budget
        tokens = [n for n in (whole.max_tokens, mine.max_tokens) if n is not None]
        money = [n for n in (whole.max_cost_usd, mine.max_cost_usd) if n is not None]
        return msgspec.structs.replace(
            whole,
            max_tokens=min(tokens, default=None),
            max_cost_usd=min(money, default=None),
        )

    async def _means(
        self, plan: Plan, run: Run | None = None, *, mode: Mode | None = None
    ) -> PlanMeans:
        """What a plan would be carried out with, in some mode, or the rest of it in its run."""
        policy, around = self._policy, self._around
        mode = mode or policy.mode
        effects = around.tools.effects
        budget = policy.budget if run is None else run.root.contract.execution.budget
        left = budget.resources() if run is None else run.root.account.remaining()
        authority = Authority(
            run_id="",
            agent_id=None,
            task_prompt=plan.goal,
            grant=root_grant(mode, effects, roles=tuple(around.roles), depth=policy.max_depth),
            budget=budget,
            left=left,
            model=policy.model,
            working_directory=policy.directory,
            checks=policy.checks,
        )

        def wrong_with_model(name: str) -> str:
            try:
                around.models.get(around.models.resolve(name, None) or name)
            except UsageError as error:
                return str(error)
            return ""

        def unpriced(name: str) -> str:
            try:
                routed = around.models.resolve(name, None) or name
            except UsageError:
                routed = name
            return "" if around.models.price(routed) is not None else name

        checked = any(step.checks for step in plan.steps) or bool(policy.checks)
        return PlanMeans(
            roles=around.roles,
            authority=authority,
            effects=effects,
            checks_possible=not checked or await around.confine() is not None,
            wrong_with_model=wrong_with_model,
            wrong_with_command=self._wrong_with_command if self._may_command(mode) else None,
            unpriced=unpriced,
        )

    def _may_command(self, mode: Mode) -> bool:
        """Whether a planner may have commands run: as its children might, and confined."""
        sandbox = self._around.sandbox
        return sandbox is not None and sandbox.tier != "none" and mode.autonomous

    def _wrong_with_command(self, command: str) -> str:
        """Why a command that a planner has written is not run, or "": as if a child wanted it."""
        told = self._around.policy.rules.judge(RUN_COMMAND, command, is_command=True, asked=False)
        if told is Verdict.DENY:
            return "is forbidden by the user's rules"
        if told is Verdict.ASK and self._policy.mode is not Mode.DANGEROUS:
            return "needs a person's yes, and a check is run without one"
        return ""

    async def _asked(self, desired: Desired) -> AgentSpec:
        spec = await self._task_resolver.resolve(
            Task(role=desired.role, task=desired.task, output_schema=desired.schema, cache=False)
        )
        room = spec.role.budget.max_context_tokens // 2 - estimate_tokens(desired.context)
        handed, notes = handed_on(desired.purpose, desired.reports, max_tokens=max(0, room))
        context = "\n\n".join(filter(None, (desired.context, handed)))
        return msgspec.structs.replace(spec, context=context, notes=(*spec.notes, *notes))

    async def _planned(
        self, run: Run, goal: str, origin_key: str, told: str
    ) -> tuple[Plan, list[Problem]]:
        """What a planner makes of a goal, and what is wrong with that.

        Where nobody may write, it is no fault of a plan that it does: no other planner could help
        that, and who asks for a plan may well want to look at it first.
        """
        mode = self._policy.mode if self._policy.mode.autonomous else Mode.AUTO
        means = await self._means(Plan(goal=goal, steps=()), mode=mode)
        desired = Desired(
            role=PLANNER,
            task=plan_task(goal, means),
            schema=plan_schema(means),
            purpose=told or f"The plan is for: {goal}",
            context=run.root.contract.step.context,
        )
        child = run.employed(origin_key)
        if child is None:
            child = await run.create(await self._asked(desired), run.root, origin_key=origin_key)
        answer = child.result or await run.see_through(child)
        if not answer.ok:
            raise PlanError(f"The planner came to nothing: {answer.status}: {answer.error}")
        plan, found = planned(goal, answer.data, means)
        return plan, [*found, *problems(plan, await self._means(plan, mode=mode))]

    async def _step_spec(self, plan: Plan, step: PlanStep, limit: int | None) -> AgentSpec:
        limits = step.budget.given() | {
            "max_tokens": shares(plan, self._around.roles, limit)[step.name]
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


def _as_plan(tasks: Sequence[Task | tuple[str, str]]) -> Plan:
    """Tasks that need nothing of each other, as a plan."""
    wanted = [asked(task) for task in tasks]
    for task in wanted:
        check_task(task.task)
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
