"""The runtime that a program holds: give it work, get results."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self

import msgspec

from retinue.domain.budget import Budget
from retinue.domain.contract import Contract, Execution, Parent, Step, execution_limits, title_of
from retinue.domain.drafting import Draft, Order, root_grant
from retinue.domain.events import Event, RunStarted
from retinue.domain.grant import Mode
from retinue.domain.result import Result, RunResult, Status
from retinue.domain.role import Role, pick
from retinue.errors import ContractError, UsageError
from retinue.runtime.agent import Agent
from retinue.runtime.follow import follow as follow_journal
from retinue.runtime.nursery import Nursery
from retinue.runtime.run import Run, Surroundings
from retinue.version import VERSION

PROGRAM = Role(
    name="program",
    description="A root that is no model: the calling program gives the orders.",
    instructions="",
)


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One piece of work for a child, with the terms that differ from its role's."""

    role: str
    task: str
    tools: tuple[str, ...] | None = None
    mode: Mode | None = None
    write: tuple[str, ...] | None = None
    model: str | None = None
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
    roles: Mapping[str, Role]
    lead: Role
    max_concurrent: int
    max_depth: int
    directory: str


class Job:
    """A child that was started in the background."""

    def __init__(self, child: Agent, task: asyncio.Task[Result]) -> None:
        self.id = child.id
        self.run_id = child.contract.parent.run_id
        self._child = child
        self._task = task

    @property
    def done(self) -> bool:
        return self._task.done()

    def cancel(self, why: str = "cancelled by its parent") -> None:
        """Stop the child; it is closed as cancelled, and its result says so."""
        self._child.dismissal = why
        self._task.cancel()

    async def result(self) -> Result:
        """Wait for the child. Cancelling the wait does not cancel the child."""
        await asyncio.wait([self._task])
        if self._task.cancelled() and self._child.result is not None:
            return self._child.result
        return self._task.result()


class Runtime:
    """Made by `retinue.open`; use it as an async context manager.

    `run` is a run of its own, led by a model. Everything else (`spawn`, `fan_out`, `start`) belongs
    to one run whose root is the calling program; it begins with the first child and ends when the
    runtime is closed, and its budget holds for all of them together.
    """

    def __init__(self, terms: Terms, around: Surroundings) -> None:
        self.terms = terms
        self._around = around
        self._jobs: dict[str, Job] = {}
        self._nursery = Nursery()
        self._runs: dict[str, Run] = {}
        self._office: Run | None = None
        self._rejected = 0

    async def __aenter__(self) -> Self:
        await self._nursery.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if self._office is not None:
                for job in self._jobs.values():
                    job.cancel(self._office.why_stopped)
            await self._nursery.__aexit__(kind, error, trace)
        finally:
            if self._office is not None:
                await asyncio.shield(self._adjourn(self._office, error))

    @property
    def roles(self) -> Mapping[str, Role]:
        return self.terms.roles

    def stop(self, why: str) -> None:
        """Say why everything is about to be cancelled; it will stand in the journal."""
        for run in self._runs.values():
            run.stop(why)

    # Work

    async def run(self, task: str) -> RunResult:
        """Let a model do `task`, as the root of a run of its own."""
        run = self._open_run("run", task, self.terms.lead)
        try:
            result = await run.lead()
        except BaseException as error:
            await asyncio.shield(run.finish(*_outcome(run, error)))
            raise
        finally:
            self._runs.pop(run.id)
        await run.finish(result.status, result.error or "")
        return run.with_total(result)

    async def spawn(self, role: str, task: str, **terms: Any) -> Result:
        """Give one task to one child and wait for it."""
        return await self._employ(self._order(as_task(role, task, terms)))

    async def fan_out(
        self, tasks: Sequence[Task | tuple[str, str]], *, max_concurrent: int | None = None
    ) -> list[Result]:
        """Give each task to a child of its own; results come in the order of the tasks.

        A child that fails becomes a failed result and never sinks its siblings.
        """
        most = self.terms.max_concurrent if max_concurrent is None else max_concurrent
        if most < 1:
            raise UsageError(f"max_concurrent must be at least 1, not {most}.")
        asked = [t if isinstance(t, Task) else as_task(*t, {}) for t in tasks]
        # All of them first: a wrong one is told before any work begins.
        orders = [self._order(task) for task in asked]
        slots = asyncio.Semaphore(most)
        results: dict[int, Result] = {}

        async def work(index: int, order: Order) -> None:
            try:
                results[index] = await self._employ(order)
            finally:
                slots.release()

        async with Nursery() as nursery:
            # A child is made when there is a slot for it: ten thousand tasks cost no more memory
            # than those that run.
            for index, order in enumerate(orders):
                await slots.acquire()
                nursery.create_task(work(index, order))
        return [results[index] for index in range(len(orders))]

    async def start(self, role: str, task: str, **terms: Any) -> Job:
        """Give a task to a child in the background. Its contract is on record when this returns."""
        order, run = self._order(as_task(role, task, terms)), self._open_office()
        child = run.create(order, run.root)
        work = self._nursery.create_task(run.see_through(child))
        job = self._jobs[child.id] = Job(child, work)
        await child.durable()
        return job

    async def join(self, jobs: Iterable[Job] | Literal["*"] = "*") -> list[Result]:
        """Wait for jobs, all of them with "*". Results can be joined again."""
        waited = list(self._jobs.values()) if jobs == "*" else list(jobs)
        return [await job.result() for job in waited]

    async def events(self, run_id: str, *, follow: bool = False) -> AsyncIterator[Event]:
        """The events of a run; with `follow`, also those to come, until it is finished."""
        async for event in follow_journal(
            self._around.store, self._around.clock, run_id, live=follow
        ):
            yield event

    # Inside

    async def _employ(self, order: Order) -> Result:
        run = self._open_office()
        try:
            child = run.create(order, run.root)
        except ContractError as error:
            self._rejected += 1
            spent_up = run.root.account.unspent().tokens == 0
            return Result(
                status=Status.BUDGET_EXCEEDED if spent_up else Status.REJECTED,
                agent_id="",
                run_id=run.id,
                role=order.role.name,
                task=order.task,
                error=str(error),
            )
        return await run.see_through(child)

    def _order(self, task: Task) -> Order:
        """`task` with its role looked up. Raises UsageError for what can never be done."""
        if not task.task.strip():
            raise ContractError("The task is empty; say what the agent should do.")
        role = pick(self.roles, task.role)
        if model := task.model or role.model:
            self._around.model_for(model)
        unknown = sorted(set(task.tools or ()) - self._around.tools.effects.keys())
        if unknown:
            raise ContractError(
                f"Unknown tool {unknown[0]!r}; there are:"
                f" {', '.join(sorted(self._around.tools.effects))}."
            )
        chosen = {f: v for f in _LIMITS if (v := getattr(task, f)) is not None}
        Budget(**chosen)
        fields = {f: getattr(task, f) for f in task.__struct_fields__ if f != "role"}
        return Order(role=role, **fields)

    def _open_office(self) -> Run:
        if self._office is None:
            self._office = self._open_run("program", "The work of a program", PROGRAM)
            self._office.preside()
        return self._office

    async def _adjourn(self, run: Run, error: BaseException | None) -> None:
        failed = run.failures + self._rejected
        if error is not None:
            outcome = _outcome(run, error)
        elif failed:
            asked = run.children + self._rejected
            outcome = Status.ERROR, f"{failed} of {asked} children failed"
        else:
            outcome = Status.COMPLETED, ""
        await run.finish(*outcome)

    def _open_run(self, kind: str, task: str, role: Role) -> Run:
        if not task.strip():
            raise ContractError("The task is empty; say what the agent should do.")
        run_id, terms, around = new_run_id(), self.terms, self._around
        effects = around.tools.effects
        budget = terms.budget
        contract = Contract(
            parent=Parent(run_id=run_id, agent_id=None, step_idx=0, task_prompt=task),
            step=Step(title=title_of(task), description=task),
            permissions=root_grant(
                terms.mode, effects, roles=tuple(terms.roles), depth=terms.max_depth
            ),
            execution=Execution(
                role=role.name,
                instructions=role.instructions,
                model=terms.model,
                working_directory=terms.directory,
                **execution_limits(budget),  # type: ignore[arg-type]
            ),
        )
        run = self._runs[run_id] = Run(run_id, Draft(contract, ()), around)
        run.start(
            RunStarted(
                kind=kind,
                task=task,
                directory=terms.directory,
                model=terms.model,
                mode=terms.mode,
                retinue_version=VERSION,
                sandbox="none" if around.sandbox is None else around.sandbox.tier,
            )
        )
        return run


_LIMITS = Budget.__struct_fields__


def _outcome(run: Run, error: BaseException) -> tuple[Status, str]:
    """How a run ends that an exception has ended."""
    if isinstance(error, asyncio.CancelledError):
        return Status.CANCELLED, run.why_stopped
    return Status.ERROR, f"the program ended with {type(error).__name__}"


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
