"""The runtime that a program holds: give it work, get results."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

import msgspec

from retinue.domain.budget import Budget
from retinue.domain.contract import (
    Contract,
    Execution,
    OnConflict,
    Outputs,
    Parent,
    Step,
    WorkspaceKind,
    execution_limits,
    title_of,
)
from retinue.domain.drafting import (
    Draft,
    Order,
    Superior,
    root_grant,
    without_delegation,
    workspace_for,
)
from retinue.domain.events import Event, RunResumed, RunStarted, TasksGiven
from retinue.domain.forecast import Forecast, forecast
from retinue.domain.grant import Mode
from retinue.domain.lifecycle import State
from retinue.domain.messages import estimate_tokens
from retinue.domain.outcome import PlanResult
from retinue.domain.plan import Means as PlanMeans
from retinue.domain.plan import Plan, PlanStep, Problem, StepBudget, problems, read, refuse, shares
from retinue.domain.result import Result, RunResult, Status
from retinue.domain.role import Role, pick
from retinue.domain.served import Load
from retinue.domain.toolname import picked
from retinue.errors import ContractError, PlanError, RunError, StoreError, UsageError
from retinue.ports import Post, Sandbox
from retinue.runtime.agent import ROOT, Agent
from retinue.runtime.enclosures import enclose
from retinue.runtime.follow import follow as follow_journal
from retinue.runtime.follow import nobody_writes
from retinue.runtime.handover import handed_on
from retinue.runtime.nursery import Nursery, to_its_end
from retinue.runtime.planned import Desired, PlannedRun
from retinue.runtime.planning import PLANNER, plan_schema, plan_task, planned, wrong_with
from retinue.runtime.prompts import Prompts, listed_profiles
from retinue.runtime.recovery import Recovered, recover
from retinue.runtime.round import Round
from retinue.runtime.run import Run, Surroundings
from retinue.runtime.session import NEW, Session, chain, recall
from retinue.runtime.shape import schema_text
from retinue.runtime.staff import Job, Staff
from retinue.runtime.undo import Changed, Revision, Rewritten, Write, past, revision
from retinue.runtime.watchdog import watch
from retinue.runtime.windows import fitted, notes_on, within
from retinue.version import VERSION

T = TypeVar("T")

LISTEN_S = 0.2
NOT_YOURS = (
    "Run {run_id} was not begun by you on this machine (or by an earlier version), so it is not"
    " gone on with. `retinue show {run_id}` shows it; begin a new one."
)
PLAN = "plan"
NO_PLANS = (
    "Run {run_id} is a plan, and plans are not gone on with. `retinue show {run_id}` tells which"
    " steps are done; run a plan of those that are left."
)
COMPACT = "Sum up the conversation so far."

PROGRAM = Role(
    name="program",
    description="A root that is no model: the calling program gives the orders.",
    instructions="",
)


class Task(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One piece of work for a child, with the terms that differ from its role's.

    `scope` are the paths to keep to, `write` those it may write, `context` and `context_files` what
    it is given along. `output_schema` (a JSON schema, or a pydantic or msgspec type) makes the
    answer data. `directory` is a folder of the project to work in. `cache=False` asks anew.
    `workspace` is "worktree" (a copy, merged at the end), "shared" (the project's own files) or
    "readonly". `checks` are commands that must succeed on its work before that is integrated, and
    `on_conflict="resolve"` has a further child settle what contradicts a sibling's.
    """

    role: str
    task: str
    tools: tuple[str, ...] | None = None
    mode: Mode | None = None
    scope: tuple[str, ...] = ()
    write: tuple[str, ...] | None = None
    context: str = ""
    context_files: tuple[str, ...] = ()
    system_prompt: str | None = None
    success_criteria: tuple[str, ...] = ()
    output_schema: Any = None
    model: str | None = None
    endpoint: str | None = None
    directory: str | None = None
    workspace: WorkspaceKind | None = None
    checks: tuple[str, ...] = ()
    on_conflict: OnConflict | None = None
    cache: bool = True
    max_tool_calls: int | None = None
    max_turns: int | None = None
    max_tokens: int | None = None
    max_context_tokens: int | None = None
    timeout_s: float | None = None
    max_cost_usd: float | None = None
    max_retries: int | None = None


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """What the user allows this runtime as a whole."""

    model: str
    mode: Mode
    budget: Budget
    lead: Role
    max_depth: int
    directory: str
    silence_s: float
    delegation: bool = True
    notes: tuple[str, ...] = ()
    """What the user should know about them; each run begins with it."""
    checks: tuple[str, ...] = ()
    on_conflict: OnConflict = OnConflict.FAIL


class Runtime:
    """Made by `retinue.open`; use it as an async context manager.

    `run` is a run of its own, led by a model. Everything else (`spawn`, `fan_out`, `start`) belongs
    to one run whose root is the calling program; it begins with the first child and ends when the
    runtime is closed, and its budget holds for all of them together.
    """

    def __init__(self, terms: Terms, around: Surroundings) -> None:
        self.terms = terms
        self._around = around
        self._nursery = Nursery()
        self._staff: Staff | None = None
        self._runs: dict[str, Run] = {}
        self._under_way = asyncio.Event()
        self._office: Run | None = None
        self._given = 0
        """How many tasks the program has given so far."""

    async def __aenter__(self) -> Self:
        await self._nursery.__aenter__()
        self._watching = [
            self._nursery.create_task(
                watch(self._agents, self._around.clock, self.terms.silence_s / 4)
            ),
            self._nursery.create_task(self._listen()),
        ]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            for task in self._watching:
                task.cancel()
            if self._office is not None and self._staff is not None:
                for job in self._staff.jobs.values():
                    job.cancel(self._office.why_stopped)
            await self._nursery.__aexit__(kind, error, trace)
        finally:
            if self._office is not None:
                await to_its_end(self._adjourn(self._office, error))

    @property
    def roles(self) -> Mapping[str, Role]:
        return self._around.roles

    @property
    def sandbox(self) -> Sandbox | None:
        """Where shell commands run; None where they are off."""
        return self._around.sandbox

    @property
    def loads(self) -> Sequence[Load]:
        """How busy the endpoints are that are asked."""
        return self._around.servers.loads()

    def _agents(self) -> Iterator[Agent]:
        for run in self._runs.values():
            yield from run.agents

    def stop(self, why: str) -> None:
        """Say why everything is about to be cancelled; it will stand in the journal."""
        for run in self._runs.values():
            run.stop(why)

    def suspend(self, why: str, then: Callable[[], None] | None = None) -> None:
        """Stop all work so that it can be resumed.

        Nothing new is begun; whoever is between two turns says what they have, and `then` is called
        when nobody has anything more to say. Cancel the tasks then, or sooner: what is under way
        stays in the journal as it is, for `resume`.
        """
        left = len(self._runs)

        def one_less() -> None:
            nonlocal left
            left -= 1
            if left == 0 and then is not None:
                then()

        for run in self._runs.values():
            run.suspend(why, one_less)
        if not self._runs and then is not None:
            then()

    # Work

    async def run(
        self,
        task: str,
        *,
        session: str | None = None,
        context: str = "",
        context_files: Sequence[str] = (),
    ) -> RunResult:
        """Let a model do `task`, as the root of a run of its own.

        With `session` (the id of a run in it, a unique beginning of one, or "last") the model goes
        on with the conversation so far; `RunResult.session` is what to give here. `context` and
        `context_files` are given along, framed as data.
        """
        run = await self._open_run(task, self.terms.lead, session, context, context_files)
        return await self._led(run)

    async def compact(self, session: str) -> RunResult:
        """Have a model sum up a session, which goes on from the summary alone.

        That is a run of the session, with a budget and an outcome like any other.
        """
        return await self._led(
            await self._open_run(COMPACT, self.terms.lead, session, "", ()), sums_up=True
        )

    async def _led(self, run: Run, *, sums_up: bool = False) -> RunResult:
        try:
            result = await run.lead(sums_up=sums_up)
        except BaseException as error:
            await to_its_end(_left(run, error))
            raise
        else:
            await run.finish(result.status, result.error or "")
            return run.with_total(result)
        finally:
            self._forget(run)

    async def resume(self, run_id: str) -> RunResult:
        """Go on with a run that was suspended, or whose process is gone, from where it was.

        Who is closed stays so; whoever was at work goes on from the last reply that is on record,
        under the same contract and with what is left of the budget. A tool that was under way is
        run again if it only reads; otherwise the model is told. Of a run that a program led, every
        task that was given is seen through, and `results` has all of them in order.

        RunError if the run is over, or another process works on it.
        """
        around = self._around
        row = await around.store.run(run_id)
        post = around.posts.take(row.id)
        try:
            found = await recover(around.store, row.id)
            seal = around.seal(row.id)
            if not seal or not secrets.compare_digest(found.started.seal, seal):
                raise RunError(NOT_YOURS.format(run_id=row.id))
            if found.started.kind == PLAN:
                raise RunError(NO_PLANS.format(run_id=row.id))
            session = await chain(around.store, found.started.earlier)
        except BaseException:
            post.leave()
            raise
        run = self._resumed(found, session, post)
        try:
            await run.tidy(found)
            if found.started.kind == "run":
                result = await run.lead(sums_up=found.started.task == COMPACT)
                await run.finish(result.status, result.error or "")
                return run.with_total(result)
            results = await self._see_through(run, found)
            await _close(run)
            assert run.root.result is not None, "it is closed"
            return msgspec.structs.replace(run.with_total(run.root.result), results=tuple(results))
        except BaseException as error:
            await to_its_end(_left(run, error))
            raise
        finally:
            self._forget(run)

    async def spawn(self, role: str, task: str, **terms: Any) -> Result:
        """Give one task to one child and wait for it."""
        asked = as_task(role, task, terms)
        order = await self._order(asked)
        run = await self._open_office(title_of(order.task))
        return await self._employ(run, order, self._give(run, [asked]))

    async def fan_out(
        self, tasks: Sequence[Task | tuple[str, str]], *, max_concurrent: int | None = None
    ) -> list[Result]:
        """Give each task to a child of its own; results come in the order of the tasks.

        A child that fails becomes a failed result and never sinks its siblings.
        """
        most = self._at_a_time(max_concurrent)
        asked = _each_for_itself(t if isinstance(t, Task) else as_task(*t, {}) for t in tasks)
        # All of them first: a wrong one is told before any work begins.
        orders = [await self._order(task) for task in asked]
        if not orders:
            return []
        first = title_of(orders[0].task)
        run = await self._open_office(
            first if len(orders) == 1 else f"{len(orders)} tasks: {first}"
        )
        number = self._give(run, asked, most)
        slots, round = asyncio.Semaphore(most), Round()
        results: dict[int, Result] = {}

        async def work(index: int, order: Order) -> None:
            try:
                results[index] = await self._employ(run, order, number + index, round)
            finally:
                slots.release()

        async with Nursery() as nursery:
            # A child is made when there is a slot for it: ten thousand tasks cost no more memory
            # than those that run.
            for index, order in enumerate(orders):
                await slots.acquire()
                nursery.create_task(work(index, order))
        return [results[index] for index in range(len(orders))]

    async def plan(
        self, goal: str, *, context: str = "", context_files: Sequence[str] = ()
    ) -> Plan:
        """Have a planner, who only reads, write a plan for `goal`. Nothing of it is done.

        Raises PlanError if what it wrote cannot be carried out; `draft` of that is the plan.
        """
        if not goal.strip():
            raise PlanError("The goal is empty; say what the plan is for.")
        given, left_out = await enclose(
            self._around.workspace_for(self.terms.directory),
            context=context,
            files=context_files,
            max_tokens=self.roles[PLANNER].budget.max_context_tokens // 2,
        )
        if left_out and context_files:
            raise UsageError("; ".join(left_out) + ".")
        run = self._new_run("program", f"Plan: {goal}", PROGRAM, "")

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
        self, work: Plan | Sequence[Task | tuple[str, str]], *, max_concurrent: int | None = None
    ) -> Forecast:
        """What a plan, or the tasks of a fan-out, will likely use: tokens, money and time.

        It is taken from what earlier agents of the same roles have used in this project.
        """
        slots = self._at_a_time(max_concurrent)
        plan = work if isinstance(work, Plan) else _as_plan(work)
        around = self._around
        names = dict.fromkeys(step.role for step in plan.steps)
        roles = {name: pick(self.roles, name) for name in names}
        return forecast(
            plan,
            roles=roles,
            history={name: await around.store.history(name) for name in names},
            limits=shares(plan, self.roles, self._budget_of(plan).max_tokens),
            price=lambda step: around.price_for(
                around.route(step.model, None) or roles[step.role].model or self.terms.model
            ),
            slots=slots,
        )

    async def execute(
        self, plan: Plan | Mapping[str, Any], *, max_concurrent: int | None = None
    ) -> PlanResult:
        """Carry out `plan`, as a run of its own, in as many children at a time as may be.

        PlanError, before anything is done, if it cannot be.
        """
        most = self._at_a_time(max_concurrent)
        plan = await self.check(plan)
        # All of them first: a wrong one is told before any work begins.
        budget = self._budget_of(plan)
        orders = {s.name: await self._step_order(plan, s, budget.max_tokens) for s in plan.steps}
        run = self._new_run(PLAN, plan.goal, PROGRAM, "", budget=budget)

        planned_run = PlannedRun(
            run,
            plan,
            order=self._step_order,
            ask=self._asked,
            means=lambda: self._means(plan, run),
            at_once=most,
            forecast=lambda plan: self.forecast(plan, max_concurrent=most),
        )

        async def work() -> tuple[PlanResult, Status, str]:
            result = await planned_run.carry_out(orders)
            self._around.reports.keep(f".retinue/plan-{run.id}.md", result.report)
            return result, result.status, result.error or ""

        return await self._presided(run, work())

    async def files(self, glob: str, *, limit: int = 1_000) -> list[str]:
        """The files of the project that fit, sorted; without those that git ignores.

        UsageError if there are more than `limit`.
        """
        workspace = self._around.workspace_for(self.terms.directory)
        found, more = await asyncio.to_thread(workspace.find, glob, under=".", limit=limit)
        if more:
            raise UsageError(f"More than {limit:,} files fit {glob!r}; choose fewer.")
        return list(found)

    async def start(self, role: str, task: str, **terms: Any) -> Job:
        """Give a task to a child in the background. Its contract is on record when this returns."""
        asked = as_task(role, task, terms)
        order = await self._order(asked)
        run = await self._open_office(title_of(order.task))
        if self._staff is None:
            self._staff = run.staff_of(run.root, self._nursery)
        job = await self._staff.hire(order, _errand(self._give(run, [asked])))
        await job.agent.durable()
        return job

    async def join(self, jobs: Iterable[Job] | Literal["*"] = "*") -> list[Result]:
        """Wait for jobs, all of them with "*". Results can be joined again."""
        known = {} if self._staff is None else self._staff.jobs
        waited = list(known.values()) if jobs == "*" else list(jobs)
        return [await job.result() for job in waited]

    def cancel(self, agent_id: str, *, run_id: str | None = None) -> None:
        """Stop one agent, and all below it, for good; its parent is told, and cannot revive it."""
        run, agent = self._at_work(agent_id, run_id)
        run.cancel(agent)

    def tell(self, agent_id: str, text: str, *, run_id: str | None = None) -> None:
        """Say something to an agent at work; it reads it before its next turn."""
        if not text.strip():
            raise UsageError("There is nothing to tell: the text is empty.")
        _check_text(text=text)
        _, agent = self._at_work(agent_id, run_id)
        agent.inbox.append(("user", text))

    def _at_work(self, agent_id: str, run_id: str | None) -> tuple[Run, Agent]:
        found = [
            (run, agent)
            for run in self._runs.values()
            for agent in run.agents
            if agent.id == agent_id and run_id in (None, run.id)
        ]
        if len(found) != 1:
            raise UsageError(
                f"No agent {agent_id!r} is at work."
                if not found
                else f"Several runs have an agent {agent_id!r}; say which with run_id."
            )
        return found[0]

    async def events(self, run_id: str, *, follow: bool = False) -> AsyncIterator[Event]:
        """The events of a run; with `follow`, also those to come, for as long as it is worked on.

        The run may be that of another process.
        """
        around = self._around
        written = around.posts.held if follow else nobody_writes
        async for event in follow_journal(around.store, around.clock, run_id, written=written):
            yield event

    async def diff(self, run_id: str, agent: str | None = None) -> list[Changed]:
        """What a run has done to the files, change by change; or one agent and all below it."""
        found = await past(self._around.store, self._around.history, run_id)
        return await found.diff(agent)

    async def undo(
        self, run_id: str, agent: str | None = None, *, to: int | None = None
    ) -> Rewritten:
        """Take back what a run, or one agent of it, has done to the files; all of it or nothing.

        With `to`, what was done after that step. What others have changed since stays; where that
        is impossible, nothing is touched and `refused` says why. RunError if there is nothing to
        undo, or if it is not known yet: agents that are at work cannot be undone.
        """
        async with self._revision(run_id, agent) as found:
            return await found.undo(agent, to=to)

    async def redo(self, run_id: str, agent: str | None = None) -> Rewritten:
        """Make again what was undone. Of an agent that failed, bring in what was kept of it."""
        async with self._revision(run_id, agent) as found:
            return await found.redo(agent)

    # Inside

    def _budget_of(self, plan: Plan) -> Budget:
        """What a plan may use: its own limits, and at most those of the runtime."""
        whole, mine = self.terms.budget, plan.budget
        tokens = [n for n in (whole.max_tokens, mine.max_tokens) if n is not None]
        money = [n for n in (whole.max_cost_usd, mine.max_cost_usd) if n is not None]
        return msgspec.structs.replace(
            whole,
            max_tokens=min(tokens, default=None),
            max_cost_usd=min(money, default=None),
        )

    async def _means(self, plan: Plan, run: Run | None = None) -> PlanMeans:
        """What a plan would be carried out with, or the rest of it in its run."""
        terms, around = self.terms, self._around
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
            self._forget(run)

    async def _asked(self, desired: Desired) -> Order:
        order = await self._order(
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
        roles = self.roles
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
        limits = step.budget.chosen() | {"max_tokens": shares(plan, self.roles, limit)[step.name]}
        return await self._order(
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

    def _revision(self, run_id: str, agent: str | None) -> AbstractAsyncContextManager[Revision]:
        def at_work(name: str) -> Write | None:
            run = self._runs.get(name)
            return None if run is None else run.note

        around = self._around
        return revision(
            around.store,
            around.history,
            around.posts,
            around.clock,
            run_id,
            agent=agent,
            at_work=at_work,
        )

    async def _listen(self) -> None:
        """Hear what other processes want of the runs under way, for ever."""
        while True:
            await self._under_way.wait()
            await self._around.clock.sleep(LISTEN_S)
            for run in list(self._runs.values()):
                run.listen()

    def _give(self, run: Run, tasks: Sequence[Task], max_concurrent: int | None = None) -> int:
        """Put on record what the program wants done; answers the number of the first."""
        first, self._given = self._given, self._given + len(tasks)
        run.give(
            TasksGiven(
                first=first,
                tasks=tuple(map(_on_record, tasks)),
                max_concurrent=max_concurrent or self._around.max_concurrent,
            )
        )
        return first

    async def _see_through(self, run: Run, found: Recovered) -> list[Result]:
        """Have all done that a program wanted to be done."""
        program = found.agents[run.root.id]
        if program.state is State.CREATED:
            run.preside()
        run.reseat(run.root, program)
        results: dict[int, Result] = {}

        async def work(number: int, task: Task, slots: asyncio.Semaphore, round: Round) -> None:
            async with slots:
                child = run.employed(_errand(number))
                results[number] = (
                    await self._employ(run, await self._order(task), number, round)
                    if child is None
                    else child.result or await run.see_through(child)
                )

        async with Nursery() as nursery:
            for given in found.tasks:
                slots, round = asyncio.Semaphore(given.max_concurrent), Round()
                for number, task in enumerate(given.tasks, given.first):
                    asked = msgspec.json.decode(task, type=Task)
                    nursery.create_task(work(number, asked, slots, round))
        return [results[number] for number in sorted(results)]

    async def _employ(
        self, run: Run, order: Order, number: int, round: Round | None = None
    ) -> Result:
        if run.root.stop_reason is not None:
            return run.refused(order, run.root.stop_reason, Status.CANCELLED)
        try:
            child = await run.create(order, run.root, round, errand=_errand(number))
        except ContractError as error:
            run.rejected += 1
            spent_up = run.root.account.unspent().tokens == 0
            status = Status.BUDGET_EXCEEDED if spent_up else Status.REJECTED
            return run.refused(order, str(error), status)
        return await run.see_through(child)

    def _at_a_time(self, max_concurrent: int | None) -> int:
        most = self._around.max_concurrent if max_concurrent is None else max_concurrent
        if most < 1:
            raise UsageError(f"max_concurrent must be at least 1, not {most}.")
        return most

    async def _order(self, task: Task) -> Order:
        """`task` as an order. Raises UsageError for what can never be done."""
        _check_task(task.task)
        _check_text(task=task.task, context=task.context, system_prompt=task.system_prompt)
        for field in ("scope", "write", "success_criteria", "context_files", "checks"):
            _check_text(**{field: "".join(getattr(task, field) or ())})
        role = pick(self.roles, task.role)
        model = self._around.route(task.model, task.endpoint)
        used = model or role.model or self.terms.model
        self._around.model_for(used)
        served = await self._around.servers.served(used)
        role = fitted(role, served)
        effects = self._around.tools.effects
        if unknown := picked(sorted(task.tools or ()), effects)[1]:
            raise ContractError(
                f"Unknown tool {unknown[0]!r}; there are: {', '.join(sorted(effects))}."
            )
        limits = {f: v for f in _LIMITS if (v := getattr(task, f)) is not None}
        largest = within(Budget(**limits), served).max_context_tokens
        notes = () if used == self.terms.model else notes_on(served)
        if largest < limits.get("max_context_tokens", 0):
            limits["max_context_tokens"] = largest
            notes = (*notes, f"max_context_tokens became {largest}: the window of {used}")
        directory = self._directory(task.directory)
        context, left_out = await enclose(
            self._around.workspace_for(directory or self.terms.directory),
            context=task.context,
            files=task.context_files,
            max_tokens=limits.get("max_context_tokens", role.budget.max_context_tokens) // 2,
        )
        if left_out and task.context_files:
            raise UsageError("; ".join(left_out) + ".")
        return Order(
            role=role,
            task=task.task,
            extra_instructions=task.system_prompt,
            tools=task.tools,
            mode=task.mode,
            scope=task.scope,
            write=task.write,
            context=context,
            success_criteria=task.success_criteria,
            output_schema=schema_text(task.output_schema),
            model=model,
            directory=directory,
            workspace=task.workspace,
            checks=task.checks,
            on_conflict=task.on_conflict,
            cache=task.cache,
            notes=(*left_out, *notes),
            **limits,
        )

    def _directory(self, name: str | None) -> str | None:
        if name is None:
            return None
        root = self.terms.directory
        path = os.path.realpath(os.path.join(root, name))
        if os.path.commonpath([root, path]) != root or not os.path.isdir(path):
            raise UsageError(f"{name!r} is no directory inside {root}.")
        return path

    async def _open_office(self, task: str) -> Run:
        """The run of the calling program, named after the first thing that it asks for."""
        if self._office is None:
            # Nothing may be awaited here: two children may ask for it in the same moment.
            self._office = self._new_run("program", task, PROGRAM, "")
            self._office.preside()
        return self._office

    async def _adjourn(self, run: Run, error: BaseException | None) -> None:
        if error is not None:
            await _left(run, error)
        else:
            await _close(run)

    def _forget(self, run: Run) -> None:
        self._runs.pop(run.id)
        if not self._runs:
            self._under_way.clear()

    def _resumed(self, found: Recovered, session: Session, post: Post) -> Run:
        root, around = found.agents[ROOT], self._around
        drafted = Draft(root.contract, root.created.notes)
        run = Run(found.row.id, drafted, around, session, post=post, end=found.end)
        self._runs[run.id] = run
        self._under_way.set()
        run.resume(RunResumed(retinue_version=VERSION, sandbox=_tier(around)), found)
        return run

    async def _open_run(
        self, task: str, role: Role, session: str | None, context: str, files: Sequence[str]
    ) -> Run:
        _check_task(task)
        _check_text(task=task, context=context, context_files="".join(files))
        around = self._around
        given, left_out = await enclose(
            around.workspace_for(self.terms.directory),
            context=context,
            files=files,
            max_tokens=self.terms.budget.max_context_tokens // 2,
        )
        if left_out and files:
            raise UsageError("; ".join(left_out) + ".")
        earlier = NEW if session is None else await recall(around.store, around.posts, session)
        role = fitted(role, await around.servers.served(self.terms.model))
        prompts = Prompts(around.workspace_for(self.terms.directory))
        instructions, _ = await prompts.assemble(role)
        delegates = self.terms.delegation and self.terms.mode is not Mode.PLAN
        profiles = listed_profiles(around.roles.values()) if delegates else ""
        text = "\n\n".join(filter(None, (instructions, profiles)))
        return self._new_run("run", task, role, text, earlier, given)

    def _new_run(
        self,
        kind: str,
        task: str,
        role: Role,
        instructions: str,
        session: Session = NEW,
        context: str = "",
        budget: Budget | None = None,
    ) -> Run:
        run_id, terms, around = new_run_id(), self.terms, self._around
        effects, served = around.tools.effects, around.servers.known(terms.model)
        grant = root_grant(terms.mode, effects, roles=tuple(around.roles), depth=terms.max_depth)
        if kind == "run" and not terms.delegation:
            grant = msgspec.structs.replace(grant, can_spawn_children=False)
        contract = Contract(
            parent=Parent(run_id=run_id, agent_id=None, step_idx=0, task_prompt=task),
            step=Step(title=title_of(task), description=task, context=context),
            permissions=without_delegation(grant, effects),
            execution=Execution(
                role=role.name,
                instructions=instructions,
                model=terms.model,
                working_directory=terms.directory,
                workspace=workspace_for(grant, effects, WorkspaceKind.SHARED),
                silence_ms=round(terms.silence_s * 1000),
                **execution_limits(within(budget or terms.budget, served)),  # type: ignore[arg-type]
            ),
            outputs=Outputs(
                report_path_pattern=around.report_path_pattern,
                checks=terms.checks,
                on_conflict=terms.on_conflict,
            ),
        )
        notes = (*terms.notes, *notes_on(served))
        if kind == "run":
            window = contract.execution.max_context_tokens
            notes += around.tools.left_out(contract.permissions, window=window)
        run = self._runs[run_id] = Run(run_id, Draft(contract, notes), around, session)
        self._under_way.set()
        run.start(
            RunStarted(
                kind=kind,
                task=task,
                directory=terms.directory,
                model=terms.model,
                mode=terms.mode,
                retinue_version=VERSION,
                sandbox=_tier(around),
                earlier=session.runs,
                tainted=session.tainted,
                wary=session.wary,
                seal=around.seal(run_id),
            )
        )
        return run


def _check_task(task: str) -> None:
    if not task.strip():
        raise ContractError("The task is empty; say what the agent should do.")


def _as_plan(tasks: Sequence[Task | tuple[str, str]]) -> Plan:
    """Tasks that need nothing of each other, as a plan."""
    asked = [t if isinstance(t, Task) else as_task(*t, {}) for t in tasks]
    for task in asked:
        _check_task(task.task)
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


def _each_for_itself(tasks: Iterable[Task]) -> list[Task]:
    """Who asks the same several times at once wants several answers, not one of them repeated."""
    seen: set[tuple[str, str]] = set()
    found = []
    for task in tasks:
        same = (task.role, task.task)
        found.append(msgspec.structs.replace(task, cache=False) if same in seen else task)
        seen.add(same)
    return found


def _on_record(task: Task) -> msgspec.Raw:
    if task.output_schema is not None:
        schema = schema_text(task.output_schema)
        task = msgspec.structs.replace(task, output_schema=schema)
    return msgspec.Raw(_encoder.encode(task))


def _errand(number: int) -> str:
    """What a task of a program is called in the record of the child that it has made."""
    return f"task {number}"


def _check_text(**texts: str | None) -> None:
    """Raise UsageError for a text that has no bytes: neither a journal nor a model can take it."""
    for name, text in texts.items():
        try:
            (text or "").encode()
        except UnicodeEncodeError as error:
            raise UsageError(
                f"The {name} is not valid Unicode: it has half a surrogate pair at character"
                f" {error.start}."
            ) from None


_LIMITS = Budget.__struct_fields__
_encoder = msgspec.json.Encoder()


async def _close(run: Run) -> None:
    """Write the outcome of a run that a program led."""
    failed = run.failures
    if run.root.stop_reason is not None:
        outcome = Status.CANCELLED, run.root.stop_reason
    elif failed:
        asked = run.children + run.rejected
        outcome = Status.ERROR, f"{failed} of {asked} children failed"
    else:
        outcome = Status.COMPLETED, ""
    await run.finish(*outcome)


async def _left(run: Run, error: BaseException) -> None:
    """End a run that an exception has ended; one that was suspended can go on.

    So can one whose journal has failed: what was meant to be its end is not on record.
    """
    if isinstance(error, StoreError):
        await run.leave(str(error))
    elif not isinstance(error, asyncio.CancelledError):
        await run.finish(Status.ERROR, f"the program ended with {type(error).__name__}")
    elif run.suspended:
        await run.leave(run.why_suspended)
    else:
        await run.finish(Status.CANCELLED, run.why_stopped)


def _tier(around: Surroundings) -> str:
    return "none" if around.sandbox is None else around.sandbox.tier


def as_task(role: str, task: str, terms: Mapping[str, Any]) -> Task:
    """A Task from loose arguments; an unknown one is told by name."""
    known = Task.__struct_fields__
    for name in terms:
        if name not in known:
            raise UsageError(f"Unknown term {name!r}; there are: {', '.join(known)}.")
    try:
        return msgspec.convert({**terms, "role": role, "task": task}, Task)
    except msgspec.ValidationError as error:
        raise UsageError(f"A term is of the wrong type: {error}.") from error


def new_run_id() -> str:
    """Short enough to type, long enough to be unique in a project: 40 bits, no look-alikes."""
    return "".join(secrets.choice("23456789abcdefghjkmnpqrstuvwxyz") for _ in range(8))
