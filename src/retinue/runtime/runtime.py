"""The runtime that a program holds: give it work, get results."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Literal, Self, Unpack

from retinue.domain.events import Event
from retinue.domain.plan.forecast import Forecast
from retinue.domain.plan.outcome import PlanResult, RunResult
from retinue.domain.plan.plan import Plan
from retinue.domain.result import Result
from retinue.domain.role import Role
from retinue.domain.server_info import EndpointLoad
from retinue.errors import UsageError
from retinue.ports.sandbox import Sandbox
from retinue.runtime.agent.watchdog import watch
from retinue.runtime.core.task_group import TaskGroup, run_to_completion
from retinue.runtime.delegation.children import Job
from retinue.runtime.delegation.task import Task, TaskOptions, as_task, check_text
from retinue.runtime.delegation.task_resolver import TaskResolver
from retinue.runtime.history.follow import follow as follow_journal
from retinue.runtime.history.follow import not_written
from retinue.runtime.history.undo import ChangePatch, UndoRedo, UndoResult, load_changes, open_undo
from retinue.runtime.planning.plans import Plans
from retinue.runtime.run.program import ProgramRun, resume_program
from retinue.runtime.run.run import MODEL_LED, PLAN, PLANNING
from retinue.runtime.run.runs import COMPACT, Runs, program_error
from retinue.runtime.services import Services


class Runtime:
    """Made by `retinue.open`; use it as an async context manager.

    `run` is a run of its own, led by a model. Everything else (`spawn`, `fan_out`, `start`) belongs
    to one run whose root is the calling program; it begins with the first child and ends when the
    runtime is closed, and its budget holds for all of them together.
    """

    def __init__(self, services: Services) -> None:
        self.policy = services.policy
        self._services = services
        self._task_group = TaskGroup()
        self._runs = Runs(services)
        self._task_resolver = TaskResolver(services)
        self._plans = Plans(services, self._runs, self._task_resolver)
        self._program = ProgramRun(
            self._runs,
            self._task_resolver,
            self._task_group,
            max_concurrent=self.policy.max_concurrent,
        )

    async def __aenter__(self) -> Self:
        await self._task_group.__aenter__()
        self._watch = self._services.clock.watch(self._runs.handle_clock_gap)
        self._watch.__enter__()
        self._watching = [
            self._task_group.create_task(
                watch(self._runs.agents, self._services.clock, self.policy.silence_s / 4)
            ),
            self._task_group.create_task(self._runs.handle_messages()),
        ]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._watch.__exit__(None, None, None)
            for task in self._watching:
                task.cancel()
            if error is not None and not isinstance(error, asyncio.CancelledError):
                # Whoever is at work is left as they are, for `resume`.
                self._runs.suspend(program_error(error), None)
            self._program.cancel_background()
            await self._task_group.__aexit__(kind, error, trace)
        finally:
            await run_to_completion(self._program.close(error))

    @property
    def roles(self) -> Mapping[str, Role]:
        return self._services.roles

    @property
    def sandbox(self) -> Sandbox | None:
        """Where shell commands run; None where they are off."""
        return self._services.sandbox

    @property
    def loads(self) -> Sequence[EndpointLoad]:
        """How busy the endpoints are that are asked."""
        return self._services.models.loads()

    def stop(self, why: str) -> None:
        """Say why everything is about to be cancelled; it will stand in the journal."""
        self._runs.set_cancel_reason(why)

    def suspend(
        self, why: str, then: Callable[[], None] | None = None, *, run_id: str | None = None
    ) -> None:
        """Stop all work, or that of one run, so that it can be resumed.

        Nothing new is begun; whoever is between two turns says what they have, and `then` is called
        when nobody has anything more to say. Cancel the tasks then, or sooner: what is under way
        stays in the journal as it is, for `resume`.
        """
        self._runs.suspend(why, then, run_id)

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
        lead = self.policy.lead
        return await self._runs.run_model_led(
            await self._runs.begin_model_led(task, lead, session, context, context_files)
        )

    async def compact(self, session: str) -> RunResult:
        """Have a model sum up a session, which goes on from the summary alone.

        That is a run of the session, with a budget and an outcome like any other.
        """
        run = await self._runs.begin_model_led(COMPACT, self.policy.lead, session, "", ())
        return await self._runs.run_model_led(run, only_summarize=True)

    async def resume(self, run_id: str) -> RunResult:
        """Go on with a run that was suspended, or whose process is gone, from where it was.

        Who is closed stays so; whoever was at work goes on from the last reply that is on record,
        under the same contract and with what is left of the budget. A tool that was under way is
        run again if it only reads; otherwise the model is told. Of a run that a program led, every
        task that was given is seen through, and `results` has all of them in order. Of a plan, the
        steps that are left are carried out, and `plan` has how all of it went; of a plan that was
        to be written, `response` is its text.

        RunError if the run is over, or another process works on it.
        """
        run, found = await self._runs.reopen(run_id)
        if found.started.kind == MODEL_LED:
            return await self._runs.run_model_led(run, only_summarize=found.started.task == COMPACT)
        if found.started.kind == PLAN:
            return await self._plans.resume(run, found)
        if found.started.kind == PLANNING:
            return await self._plans.resume_writing(run, found)
        return await resume_program(self._runs, self._task_resolver, run, found)

    async def spawn(self, role: str, task: str, **options: Unpack[TaskOptions]) -> Result:
        """Give one task to one child and wait for it. The options are those of a `Task`."""
        return await self._program.spawn(as_task(role, task, options))

    async def fan_out(
        self, tasks: Sequence[Task | tuple[str, str]], *, max_concurrent: int | None = None
    ) -> list[Result]:
        """Give each task to a child of its own; results come in the order of the tasks.

        A child that fails becomes a failed result and never sinks its siblings.
        """
        return await self._program.fan_out(tasks, max_concurrent=self._at_a_time(max_concurrent))

    async def start(self, role: str, task: str, **options: Unpack[TaskOptions]) -> Job:
        """Give a task to a child in the background. Its contract is on record when this returns."""
        return await self._program.start(as_task(role, task, options))

    async def join(self, jobs: Iterable[Job] | Literal["*"] = "*") -> list[Result]:
        """Wait for jobs, all of them with "*". Results can be joined again."""
        return await self._program.join(jobs)

    # Plans

    async def plan(
        self, goal: str, *, context: str = "", context_files: Sequence[str] = ()
    ) -> Plan:
        """Have a planner, who only reads, write a plan for `goal`. Nothing of it is done.

        Raises PlanError if what it wrote cannot be carried out; its `plan` is the plan.
        """
        return await self._plans.write(goal, context=context, files=context_files)

    async def check(self, plan: Plan | Mapping[str, Any]) -> Plan:
        """`plan` as it would be carried out. PlanError tells of everything that is wrong with it.

        It may be data, such as a TOML or JSON file holds. Nothing is done.
        """
        return await self._plans.check(plan)

    async def forecast(
        self, work: Plan | Sequence[Task | tuple[str, str]], *, max_concurrent: int | None = None
    ) -> Forecast:
        """What a plan, or the tasks of a fan-out, will likely use: tokens, money and time.

        It is taken from what earlier agents of the same roles have used in this project.
        """
        return await self._plans.forecast(work, most=self._at_a_time(max_concurrent))

    async def execute(
        self, plan: Plan | Mapping[str, Any], *, max_concurrent: int | None = None
    ) -> PlanResult:
        """Carry out `plan`, as a run of its own, in as many children at a time as may be.

        PlanError, before anything is done, if it cannot be.
        """
        return await self._plans.execute(plan, most=self._at_a_time(max_concurrent))

    # Those at work

    def cancel(self, agent_id: str, *, run_id: str | None = None) -> None:
        """Stop one agent, and all below it, for good; its parent is told, and cannot revive it."""
        run, agent = self._runs.find_agent(agent_id, run_id)
        run.cancel(agent)

    def tell(self, agent_id: str, text: str, *, run_id: str | None = None) -> None:
        """Say something to an agent at work; it reads it before its next turn."""
        if not text.strip():
            raise UsageError("There is nothing to tell: the text is empty.")
        check_text(text=text)
        _, agent = self._runs.find_agent(agent_id, run_id)
        agent.inbox.append(("user", text))

    # What there is to see

    async def files(self, glob: str, *, limit: int = 1_000) -> list[str]:
        """The files of the project that fit, sorted; without those that git ignores.

        UsageError if there are more than `limit`.
        """
        workspace = self._services.file_tree.workspace(self.policy.directory)
        found, more = await asyncio.to_thread(workspace.find, glob, under=".", limit=limit)
        if more:
            raise UsageError(f"More than {limit:,} files fit {glob!r}; choose fewer.")
        return list(found)

    async def events(self, run_id: str, *, follow: bool = False) -> AsyncIterator[Event]:
        """The events of a run; with `follow`, also those to come, for as long as it is worked on.

        The run may be that of another process.
        """
        storage, clock = self._services.storage, self._services.clock
        written = storage.run_locks.is_held if follow else not_written
        async for event in follow_journal(storage.store, clock, run_id, written=written):
            yield event

    async def diff(self, run_id: str, agent: str | None = None) -> list[ChangePatch]:
        """What a run has done to the files, change by change; or one agent and all below it."""
        found = await load_changes(self._services.storage.store, self._services.history, run_id)
        return await found.diff(agent)

    async def undo(
        self, run_id: str, agent: str | None = None, *, to: int | None = None
    ) -> UndoResult:
        """Take back what a run, or one agent of it, has done to the files; all of it or nothing.

        With `to`, what was done after that step. What others have changed since stays; where that
        is impossible, nothing is touched and `refused` says why. RunError if there is nothing to
        undo, or if it is not known yet: agents that are at work cannot be undone.
        """
        async with self._open_undo(run_id, agent) as found:
            return await found.undo(agent, to=to)

    async def redo(self, run_id: str, agent: str | None = None) -> UndoResult:
        """Make again what was undone. Of an agent that failed, bring in what was kept of it."""
        async with self._open_undo(run_id, agent) as found:
            return await found.redo(agent)

    def _open_undo(self, run_id: str, agent: str | None) -> AbstractAsyncContextManager[UndoRedo]:
        services = self._services
        return open_undo(
            services.storage.store,
            services.history,
            services.storage.run_locks,
            services.clock,
            run_id,
            agent=agent,
            at_work=self._runs.writer,
        )

    def _at_a_time(self, max_concurrent: int | None) -> int:
        most = self._services.policy.max_concurrent if max_concurrent is None else max_concurrent
        if most < 1:
            raise UsageError(f"max_concurrent must be at least 1, not {most}.")
        return most
