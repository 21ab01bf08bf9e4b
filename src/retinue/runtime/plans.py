"""Plans: having them written, checking them, telling what they will take, carrying them out."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from retinue.domain.budget import Budget
from retinue.domain.drafting import Order, Superior, root_grant
from retinue.domain.forecast import Forecast, forecast
from retinue.domain.messages import estimate_tokens
from retinue.domain.outcome import PlanResult
from retinue.domain.plan import Means as PlanMeans
from retinue.domain.plan import Plan, PlanStep, Problem, StepBudget, problems, read, refuse, shares
from retinue.domain.result import Status
from retinue.domain.role import pick
from retinue.errors import PlanError, UsageError
from retinue.runtime.enclosures import enclose
from retinue.runtime.handover import handed_on
from retinue.runtime.nursery import to_its_end
from retinue.runtime.orders import Orders
from retinue.runtime.planned import Desired, PlannedRun
from retinue.runtime.planning import PLANNER, plan_schema, plan_task, planned, wrong_with
from retinue.runtime.run import Run, Surroundings
from retinue.runtime.runs import BY_PROGRAM, PLAN, Runs
from retinue.runtime.task import Task, as_task, check_task
from retinue.runtime.terms import Terms

T = TypeVar("T")


class Plans:
    """Makes runs of plans, and plans of goals."""

    def __init__(self, terms: Terms, around: Surroundings, runs: Runs, orders: Orders) -> None:
        self._terms = terms
        self._around = around
        self._runs = runs
        self._orders = orders

    async def write(self, goal: str, *, context: str, files: Sequence[str]) -> Plan:
        """Have a planner, who only reads, write a plan for `goal`. Nothing of it is done.

        Raises PlanError if what it wrote cannot be carried out; `draft` of that is the plan.
        """
        if not goal.strip():
            raise PlanError("The goal is empty; say what the plan is for.")
        given, left_out = await enclose(
            self._around.workspace_for(self._terms.directory),
            context=context,
            files=files,
            max_tokens=self._around.roles[PLANNER].budget.max_context_tokens // 2,
        )
        if left_out and files:
            raise UsageError("; ".join(left_out) + ".")
        run = self._runs.begin(BY_PROGRAM, f"Plan: {goal}")

        async def work() -> tuple[tuple[Plan, list[Problem]], Status, str]:
            plan, found = await self._planned(run, goal, given, "")
            if found:
                plan, found = await self._planned(run, goal, given, wrong_with(found))
            why = "the plan cannot be run" if found else ""
            return (plan, found), Status.ERROR if found else Status.COMPLETED, why

        plan, found = await self._presided(run, work())
        refuse(found, draft=plan)
        return plan

    async def check(self, plan: Plan | Mapping[str, Any]) -> Plan:
        """`plan` as it would be carried out. PlanError tells of everything that is wrong with it.

        It may be data, such as a TOML or JSON file holds. Nothing is done.
        """
        data = msgspec.to_builtins(plan) if isinstance(plan, Plan) else plan
        read_plan, found = read(data)
        refuse([*found, *problems(read_plan, await self._means(read_plan))], draft=read_plan)
        return read_plan

    async def forecast(
        self, work: Plan | Sequence[Task | tuple[str, str]], *, most: int
    ) -> Forecast:
        """What a plan, or the tasks of a fan-out, will likely use: tokens, money and time.

        It is taken from what earlier agents of the same roles have used in this project.
        """
        plan = work if isinstance(work, Plan) else _as_plan(work)
        around = self._around
        names = dict.fromkeys(step.role for step in plan.steps)
        roles = {name: pick(around.roles, name) for name in names}
        return forecast(
            plan,
            roles=roles,
            history={name: await around.store.history(name) for name in names},
            limits=shares(plan, around.roles, self._budget_of(plan).max_tokens),
            price=lambda step: around.price_for(
                around.route(step.model, None) or roles[step.role].model or self._terms.model
            ),
            slots=most,
        )

    async def execute(self, plan: Plan | Mapping[str, Any], *, most: int) -> PlanResult:
        """Carry out `plan`, as a run of its own, with `most` children at a time.

        PlanError, before anything is done, if it cannot be.
        """
        plan = await self.check(plan)
        # All of them first: a wrong one is told before any work begins.
        budget = self._budget_of(plan)
        orders = {s.name: await self._step_order(plan, s, budget.max_tokens) for s in plan.steps}
        run = self._runs.begin(PLAN, plan.goal, budget=budget)

        planned_run = PlannedRun(
            run,
            plan,
            order=self._step_order,
            ask=self._asked,
            means=lambda: self._means(plan, run),
            at_once=most,
            forecast=lambda plan: self.forecast(plan, most=most),
        )

        async def work() -> tuple[PlanResult, Status, str]:
            result = await planned_run.carry_out(orders)
            self._around.reports.keep(f".retinue/plan-{run.id}.md", result.report)
            return result, result.status, result.error or ""

        return await self._presided(run, work())

    # Inside

    def _budget_of(self, plan: Plan) -> Budget:
        """What a plan may use: its own limits, and at most those of the runtime."""
        whole, mine = self._terms.budget, plan.budget
        tokens = [n for n in (whole.max_tokens, mine.max_tokens) if n is not None]
        money = [n for n in (whole.max_cost_usd, mine.max_cost_usd) if n is not None]
        return msgspec.structs.replace(
            whole,
            max_tokens=min(tokens, default=None),
            max_cost_usd=min(money, default=None),
        )

    async def _means(self, plan: Plan, run: Run | None = None) -> PlanMeans:
        """What a plan would be carried out with, or the rest of it in its run."""
        terms, around = self._terms, self._around
        effects = around.tools.effects
        budget = terms.budget if run is None else run.root.contract.execution.budget
        left = budget.limits() if run is None else run.root.account.unspent()
        superior = Superior(
            run_id="",
            agent_id=None,
            task_prompt=plan.goal,
            grant=root_grant(terms.mode, effects, roles=tuple(around.roles), depth=terms.max_depth),
            budget=budget,
            left=left,
            model=terms.model,
            working_directory=terms.directory,
            checks=terms.checks,
        )

        def wrong_with_model(name: str) -> str:
            try:
                around.model_for(around.route(name, None) or name)
            except UsageError as error:
                return str(error)
            return ""

        checked = any(step.checks for step in plan.steps) or bool(terms.checks)
        return PlanMeans(
            roles=around.roles,
            superior=superior,
            effects=effects,
            checks_possible=not checked or await around.confine() is not None,
            wrong_with_model=wrong_with_model,
            unpriced=lambda name: "" if around.price_for(name) is not None else name,
        )

    async def _presided(self, run: Run, work: Coroutine[Any, Any, tuple[T, Status, str]]) -> T:
        """Do `work` in a run that is led by this program, and finish it with the outcome."""
        run.preside()
        try:
            value, status, reason = await work
        except asyncio.CancelledError:
            await to_its_end(run.finish(Status.CANCELLED, run.why_stopped))
            raise
        except BaseException as error:
            why = f"the program ended with {type(error).__name__}"
            await to_its_end(run.finish(Status.ERROR, why))
            raise
        else:
            await run.finish(status, reason)
            return value
        finally:
            self._runs.forget(run)

    async def _asked(self, desired: Desired) -> Order:
        order = await self._orders.of(
            Task(role=desired.role, task=desired.task, output_schema=desired.schema, cache=False)
        )
        room = order.role.budget.max_context_tokens // 2 - estimate_tokens(desired.context)
        handed, notes = handed_on(desired.purpose, desired.reports, max_tokens=max(0, room))
        context = "\n\n".join(filter(None, (desired.context, handed)))
        return msgspec.structs.replace(order, context=context, notes=(*order.notes, *notes))

    async def _planned(
        self, run: Run, goal: str, context: str, told: str
    ) -> tuple[Plan, list[Problem]]:
        """What a planner makes of a goal, and what is wrong with that."""
        roles = self._around.roles
        desired = Desired(
            role=PLANNER,
            task=plan_task(goal, roles.values()),
            schema=plan_schema(roles),
            purpose=told or f"The plan is for: {goal}",
            context=context,
        )
        child = await run.create(await self._asked(desired), run.root)
        answer = await run.see_through(child)
        if not answer.ok:
            raise PlanError(f"The planner came to nothing: {answer.status}: {answer.error}")
        plan, found = planned(goal, answer.data)
        return plan, [*found, *problems(plan, await self._means(plan))]

    async def _step_order(self, plan: Plan, step: PlanStep, limit: int | None) -> Order:
        limits = step.budget.chosen() | {
            "max_tokens": shares(plan, self._around.roles, limit)[step.name]
        }
        return await self._orders.of(
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
    asked = [t if isinstance(t, Task) else as_task(*t, {}) for t in tasks]
    for task in asked:
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
            for number, task in enumerate(asked)
        ),
    )
