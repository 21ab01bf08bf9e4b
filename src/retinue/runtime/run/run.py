"""A run: one job, one tree of agents, one journal, one outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import assert_never

from retinue.domain.agent_spec import AgentSpec
from retinue.domain.agent_state import ROOT_ID
from retinue.domain.drafting import DraftedContract
from retinue.domain.events import (
    AgentStarted,
    CommandReceived,
    Event,
    Fact,
    RunFinished,
    RunResumed,
    RunStarted,
    RunSuspended,
)
from retinue.domain.lifecycle import State
from retinue.domain.permissions import COULD_NOT_WRITE
from retinue.domain.plan.outcome import RunResult
from retinue.domain.plural import listed
from retinue.domain.race import BEST, RaceResult
from retinue.domain.remote_commands import Command, Verb, decode_command
from retinue.domain.result import ChildFailure, OnChildFailure, Result, Status
from retinue.domain.resume_point import FROM_USER
from retinue.errors import OutOfBudget, UsageError
from retinue.ports.store import RunLock
from retinue.runtime.agent.agent import Agent
from retinue.runtime.agent.loop import AttemptOutcome
from retinue.runtime.core.journal import EMPTY, Journal, JournalHead, Listener
from retinue.runtime.core.suspension import Suspension
from retinue.runtime.delegation.agent_runner import AgentRunner
from retinue.runtime.delegation.race import MakeSpec, Race
from retinue.runtime.delegation.registry import AgentNumbers, AgentRegistry
from retinue.runtime.history.recovery import RecoveredRun
from retinue.runtime.history.session import NEW, Session
from retinue.runtime.integration.baseline import Baseline
from retinue.runtime.services import Services

SHOWN_FAILURES = 5
STOPPED_BY_USER = "stopped by the user"
STOPPED_FROM_ELSEWHERE = "stopped by {by}"

# Kinds of runs, by who leads them. They are stored in the journal.
MODEL_LED, PROGRAM_LED, PLAN, PLANNING = "run", "program", "plan", "planning"


def incomplete(failures: Sequence[ChildFailure]) -> str:
    """The reason of a run that its root has completed without these children."""
    reasons = [
        f"{failure.agent_id} {failure.error}" if failure.error == COULD_NOT_WRITE else str(failure)
        for failure in failures
    ]
    return f"incomplete: {listed(reasons, SHOWN_FAILURES)}"


def _both(first: Listener | None, second: Listener | None) -> Listener | None:
    if first is None or second is None:
        return first or second

    def call_both(event: Event) -> None:
        first(event)
        second(event)

    return call_both


class Run:
    """One run: start or resume it, spawn agents in it, then finish or suspend it.

    Its `registry` knows the agents, its `runner` runs them.
    """

    root: Agent

    def __init__(
        self,
        run_id: str,
        services: Services,
        directory: str,
        session: Session = NEW,
        *,
        numbers: AgentNumbers,
        run_lock: RunLock | None = None,
        head: JournalHead = EMPTY,
    ) -> None:
        """`run_lock` and `head` are given for a run that an earlier process left."""
        self.id = run_id
        self._services = services
        self._session = session
        self._journal = Journal(
            services.storage.store,
            services.clock,
            run_id,
            head=head,
            listener=_both(services.telemetry.on_event, services.listeners.on_event),
        )
        self.suspension = Suspension(self._is_busy)
        numbers.skip_to(session.last_child)
        self.registry = AgentRegistry(services, self._journal, self.suspension, numbers)
        self.runner = AgentRunner(services, self.registry, session, directory)
        self.rejected = 0
        """Number of tasks that no contract could be drafted for."""
        self._run_lock = run_lock or services.storage.run_locks.acquire(run_id)

    @property
    def outcome(self) -> RunResult:
        """The root's result, once it has one, with the usage of the whole tree."""
        result = self.root.result
        assert result is not None, "the root has ended"
        fields = {name: getattr(result, name) for name in result.__struct_fields__}
        if result.ok and (failures := self.failures):
            fields |= {"status": Status.ERROR, "error": incomplete(failures)}
            fields["failures"] = failures
        session = next(iter(self._session.runs), self.id)
        registry = self.registry
        return RunResult(
            **fields, total=registry.total, children=registry.children, session=session
        )

    @property
    def failures(self) -> tuple[ChildFailure, ...]:
        """Failed children of a root that is a model, unless they are settled.

        A failure is settled by a child that continues or replaces the failed one, or by the root's
        answer to the reminder of it, unless that repeats the answer before the reminder. No answer
        settles the failure of a child that was not allowed to write.
        """
        root, ignored = self.root.state, self._services.policy.on_child_failure
        if not root.attempt or ignored is OnChildFailure.IGNORE:
            return ()
        answered = root.response.strip() != root.answer_before_reminder
        settled = root.reminded_of if answered else {}
        return tuple(
            failure
            for failure in self.registry.failures.values()
            if failure.agent_id not in settled or failure.error == COULD_NOT_WRITE
        )

    # Start

    def start(self, started: RunStarted, root: DraftedContract) -> None:
        """Record the run and its root."""
        self.record(started)
        self.root = self.registry.create(
            root.contract, "root", None, notes=root.notes, images=root.images
        )
        state, session = self.root.state, self._session
        state.tainted, state.read_untrusted = session.tainted, session.read_untrusted
        self.root.earlier_tool_limits = session.tool_limits
        if started.origin is not None:
            self.runner.integrator.enter_fork(self.root, started.origin)
        if started.kind != MODEL_LED:  # No model runs the root of a program or a plan.
            self.root.record(AgentStarted(sub_agent_id=ROOT_ID))

    def resume(self, resumed: RunResumed, recovered: RecoveredRun) -> None:
        """Continue where an earlier process left the run."""
        self.record(resumed)
        self.root = self.registry.restore(recovered)
        self.root.earlier_tool_limits = self._session.tool_limits
        for agent_id, fact in recovered.unrecorded:
            agent = self.registry.restored[agent_id]
            agent.record(fact)
            recovered.state.file_changes.append((agent.state, fact))
        self.runner.integrator.restore(recovered.last_change, recovered.state.file_changes)
        if (origin := recovered.started.origin) is not None:
            point = recovered.state.resume_points[ROOT_ID]
            self.runner.integrator.enter_fork(self.root, origin, point)
        if (kind := recovered.started.kind) != MODEL_LED:
            if self.root.state.state is State.CREATED:
                self.root.record(AgentStarted(sub_agent_id=ROOT_ID))
            resume_point = recovered.state.resume_points[ROOT_ID]
            self.runner.spawner.restore_children(
                self.root, resume_point, separate_queues=kind == PLAN
            )

    # Work

    async def spawn(
        self,
        spec: AgentSpec,
        origin_key: str,
        baseline: Baseline,
        *,
        read_untrusted: bool = False,
    ) -> Result:
        """Run one child of the root. If the child cannot be made, the result says why."""
        role, task, stop_reason = spec.role.name, spec.task, self.root.stop_reason
        if stop_reason is not None:
            return self.failed_result(role, task, stop_reason, Status.CANCELLED)
        try:
            await self.runner.spawner.approve({origin_key: spec}, self.root, typed=True)
            child = await self.runner.spawner.create(
                spec, self.root, baseline, origin_key=origin_key
            )
        except UsageError as error:
            self.rejected += 1
            no_budget = isinstance(error, OutOfBudget)
            status = Status.BUDGET_EXCEEDED if no_budget else Status.REJECTED
            return self.failed_result(role, task, str(error), status)
        child.state.read_untrusted |= read_untrusted
        return await self.runner.run(child)

    async def spawn_once(
        self,
        make_spec: Callable[[], Awaitable[AgentSpec]],
        origin_key: str,
        baseline: Baseline | None = None,
        *,
        read_untrusted: bool = False,
    ) -> Result:
        """Like `spawn`, but use the child that an earlier process spawned for `origin_key`.

        Without `baseline`, the child has a merge queue of its own, so that no other child waits for
        it.
        """
        child = self.registry.restored_child(origin_key)
        if child is None:
            baseline = baseline or Baseline(queue=origin_key)
            spec = await make_spec()
            return await self.spawn(spec, origin_key, baseline, read_untrusted=read_untrusted)
        child.state.read_untrusted |= read_untrusted
        return child.result or await self.runner.run(child)

    async def race(
        self,
        key: str,
        count: int,
        make_spec: MakeSpec,
        *,
        rule: str = BEST,
        max_concurrent: int,
        read_untrusted: bool = False,
    ) -> RaceResult:
        """Run a race of `count` children, or continue one that an earlier process left.

        Raises UsageError, before any call of a model, if it cannot be run.
        """
        if (stop_reason := self.root.stop_reason) is not None:
            return RaceResult(run_id=self.id, status=Status.CANCELLED, error=stop_reason)

        def mark(candidate: Agent) -> None:
            candidate.state.read_untrusted |= read_untrusted

        race = Race(self.runner, self.root, key, rule, asyncio.Semaphore(max_concurrent), mark)
        keys = [f"{key} candidate {number}" for number in range(count)]
        try:
            return await race.run(keys, make_spec, typed=True)
        except UsageError:
            self.rejected += 1
            raise

    def failed_result(self, role: str, task: str, error: str, status: Status) -> Result:
        """The result of a task that no child was made for."""
        return Result(status=status, agent_id="", run_id=self.id, role=role, task=task, error=error)

    # Stop

    def _is_busy(self) -> bool:
        """Whether an agent without open children still works and has not paused yet."""
        agents = self.registry.open.values()
        parents = {agent.parent for agent in agents}
        return any(
            (agent.activity.deadline is not None or agent.remote is not None)
            and not agent.activity.paused
            and not agent.activity.waits
            for agent in agents
            if agent not in parents
        )

    def cancel(self, agent: Agent) -> None:
        """Stop one agent of this run, and its descendants, for good."""
        agent.stop(STOPPED_BY_USER)
        if agent.activity.deadline is None and agent.remote is None:
            # A program that leads a run has no attempt that could be ended; its children have.
            for child in self.registry.open.values():
                if child.parent is agent:
                    child.stop(STOPPED_BY_USER)

    def handle_messages(self) -> None:
        """Obey commands of other processes. A command that is obeyed is recorded."""
        for message in self._run_lock.received():
            command = decode_command(message)
            agent = None if command is None else self.registry.open.get(command.agent_id)
            if command is None or agent is None or not self._obey(command, agent):
                continue
            agent.record(
                CommandReceived(
                    verb=command.verb,
                    by=command.by,
                    text=command.text,
                    request=command.request,
                    answer=command.answer,
                )
            )
            if command.verb is Verb.CANCEL:
                self.cancel(agent)

    def _obey(self, command: Command, agent: Agent) -> bool:
        """Do what a command says. False if that is not possible (any more)."""
        match command.verb:
            case Verb.CANCEL:
                return True  # Done once it is recorded: afterwards the agent records its end.
            case Verb.STOP:
                on_stop = self._services.listeners.on_stop
                if on_stop is not None:
                    return on_stop(self.id)
                self.suspension.raises = True
                self.suspension.request(STOPPED_FROM_ELSEWHERE.format(by=command.by))
                return True
            case Verb.MESSAGE:
                # A program that leads a run reads no messages.
                if agent.is_ending or (agent.state.attempt == 0 and agent.parent is None):
                    return False
                agent.receive(command.text, source=FROM_USER)
                return True
            case Verb.ANSWER:
                return self.registry.remote_answers.accept(command)
            case _:
                assert_never(command.verb)

    # Journal of the run itself

    async def record_durably(self, fact: Fact) -> None:
        self.record(fact)
        await self._journal.durable()

    def record(self, fact: Fact) -> None:
        self._journal.record(fact, agent_id=ROOT_ID, parent_agent_id=None)

    # End

    async def finish(self, status: Status, reason: str) -> None:
        """Close all open agents, and record the outcome."""
        for agent in reversed(list(self.registry.open.values())):
            if agent is not self.root:
                # A task that is cancelled before its first step never runs, and could not close
                # its agent.
                self.runner.close(
                    agent, AttemptOutcome(Status.CANCELLED, "", self.runner.cancel_reason)
                )
            elif agent.resume_point is not None and agent.state.has_ended:
                self.runner.close(agent, None)
            else:
                self.runner.close(agent, AttemptOutcome(status, reason or "done", reason))
        await self.runner.hooks.run_finished(self.root, status, reason, self.record)
        self.record(RunFinished(status=status, reason=reason))
        await self._release()

    async def finish_suspended(self, reason: str) -> None:
        """Record that this process stops its work on the run, and that it can be resumed."""
        self.record(RunSuspended(reason=reason))
        await self._release()

    async def _release(self) -> None:
        """Make the journal durable, and release the lock."""
        try:
            await self._journal.durable()
        finally:
            self._run_lock.release()
