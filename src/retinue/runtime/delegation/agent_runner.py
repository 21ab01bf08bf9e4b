"""Run an agent from its contract to its closing: workspace, attempts, integration, result."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial

import msgspec

from retinue.domain.contract import Contract, WorkspaceKind
from retinue.domain.events import AgentStarted, CachedResultUsed
from retinue.domain.lifecycle import State
from retinue.domain.permissions import COULD_NOT_WRITE
from retinue.domain.plan.forecast import Forecast
from retinue.domain.plan.plan import Plan, PlanStep
from retinue.domain.result import Result, Status
from retinue.errors import RunSuspended, UnknownRun, UsageError, WorkspaceError
from retinue.ports.file_tree import WorkingCopy
from retinue.ports.person import Ask
from retinue.ports.tool import ToolContext
from retinue.runtime.agent.agent import Agent
from retinue.runtime.agent.agent_services import AgentServices, OnText
from retinue.runtime.agent.loop import AttemptOutcome
from retinue.runtime.agent.run_hooks import RunHooks
from retinue.runtime.core.reservations import Reservations
from retinue.runtime.core.task_group import TaskGroup, run_to_completion
from retinue.runtime.delegation.children import Children, Permit
from retinue.runtime.delegation.continuation import load_earlier
from retinue.runtime.delegation.forecasts import forecast_of
from retinue.runtime.delegation.race import Race
from retinue.runtime.delegation.registry import AgentRegistry, output_data
from retinue.runtime.delegation.requests import DelegationHandler
from retinue.runtime.delegation.spawner import Spawner
from retinue.runtime.history.result_cache import CachedResult
from retinue.runtime.history.session import NEW, Session
from retinue.runtime.integration.checks import Checks, copy_names
from retinue.runtime.integration.conflicts import resolution_spec, unresolved
from retinue.runtime.integration.integrator import Integrator
from retinue.runtime.integration.merge_queue import MergeSlot
from retinue.runtime.integration.review import DiffReview
from retinue.runtime.integration.tool_context import ToolContexts
from retinue.runtime.services import Services

STOPPED = "stopped with its run"
MIN_PARALLEL_CALLS = 8


class AgentRunner:
    """Runs the agents of one run: its root, and the children that its `spawner` makes."""

    def __init__(
        self, services: Services, registry: AgentRegistry, session: Session, directory: str
    ) -> None:
        self._services = services
        self.registry = registry
        self._session = session
        self._reservations = Reservations()
        checks = Checks(services.check_sandbox, services.clock)
        self.session_id = next(iter(session.runs), registry.run_id)
        self.hooks = RunHooks(services.hooks, self.session_id, services.policy.directory)
        review = DiffReview(
            services.file_tree,
            services.tools.effects,
            services.policy.rules,
            services.person.approve,
            self.hooks,
        )
        self.integrator = Integrator(
            services.file_tree, checks, review, self._resolve_conflicts, self.hooks
        )
        self.spawner = Spawner(services, registry, self.integrator, checks, self.hooks, directory)
        self._tool_contexts = ToolContexts(
            effects=services.tools.effects,
            sandbox=services.sandbox,
            check_sandbox=services.check_sandbox,
            test=services.policy.test,
            recorder_for=self.integrator.recorder_for,
        )
        self.cancel_reason = STOPPED
        """Why tasks of this run are cancelled, unless an agent has a reason of its own."""
        self.only_summarize = False
        """Whether the root only summarizes its session."""

    def children_of(self, parent: Agent, tasks: TaskGroup | None = None) -> Children:
        limit = self._services.policy.max_concurrent
        return Children(self.spawner, self.run, parent, max_concurrent=limit, tasks=tasks)

    async def forecast(self, contracts: Sequence[Contract]) -> Forecast:
        """The likely usage of agents with these contracts that work side by side."""
        steps = [
            PlanStep(name=f"{number}", role=one.execution.role, task="", model=one.execution.model)
            for number, one in enumerate(contracts)
        ]
        limits = [contract.execution.max_tokens for contract in contracts]
        return await forecast_of(
            Plan(goal="", steps=tuple(steps)),
            self._services,
            limits={step.name: limit for step, limit in zip(steps, limits, strict=True)},
            limit=None,
            slots=self._services.policy.max_concurrent,
        )

    async def run(self, agent: Agent, permit: Permit | None = None) -> Result:
        """Run `agent` until it is closed. It holds `permit` only while it works.

        Raises RunSuspended, and leaves `agent` open, if it cannot continue because a model endpoint
        is gone. A background agent then waits until its task is cancelled.
        """
        if agent.resume_point is not None and agent.state.state in _ENDED:
            return await self._finish_closing(agent)
        slot = self.integrator.slot_of(agent)
        try:
            try:
                outcome = await self._outcome(agent, slot, permit)
            except RunSuspended as error:
                agent.leave_open(str(error))
                if slot is not None:
                    slot.queue.suspend(slot)
                if agent.state.background or agent.state.race:
                    # The parent, or the race, continues and may cancel the agent.
                    await agent.pause()
                if slot is not None:
                    slot.queue.release_copy(slot)
                raise
        except asyncio.CancelledError:
            await self._cancelled(agent, slot)
            raise
        if outcome.status is Status.COMPLETED and COULD_NOT_WRITE in agent.state.notes:
            outcome = msgspec.structs.replace(
                outcome, status=Status.REJECTED, reason=COULD_NOT_WRITE
            )
        result = self.close(agent, outcome)
        if slot is not None:
            await run_to_completion(_remove_copy(agent, slot))
        # The closing is durable before the parent reads the result.
        await agent.durable()
        return result

    async def _outcome(
        self, agent: Agent, slot: MergeSlot | None, permit: Permit | None
    ) -> AttemptOutcome:
        """Run the attempts of `agent`, and integrate its work."""
        if agent.state.state is State.WAITING_FOR_MERGE:
            outcome = self._resume_waiting(agent)
        else:
            if slot is not None and slot.blockers:
                if permit is not None:
                    permit.release()
                await slot.queue.wait_for_blockers(slot)
            if permit is not None:
                await permit.acquire()
            try:
                outcome = await self._run_attempts(agent, slot, permit)
            finally:
                if permit is not None:
                    permit.release()
        if self.integrator.has_work(agent):
            outcome = await self.integrator.integrate(agent, outcome)
        return outcome

    def close(self, agent: Agent, outcome: AttemptOutcome | None) -> Result:
        """Close `agent`. Synchronous, so that a cancelled task can call it.

        Without `outcome`, complete an ending that an earlier process recorded in part.
        """
        self.integrator.leave(agent)
        result = self.registry.close(agent, outcome)
        if agent.state.race:
            agent.account.release_prepaid()
            self._reservations.notify_released()
        return result

    async def _finish_closing(self, agent: Agent) -> Result:
        if agent.result is not None:
            return agent.result
        result = self.close(agent, None)
        await agent.durable()
        run_id = agent.contract.parent.run_id
        await self._services.file_tree.discard(copy_names(run_id, agent.id))
        return result

    def _resume_waiting(self, agent: Agent) -> AttemptOutcome:
        """Continue with an agent whose work was ready to be merged."""
        self._start_clock(agent)
        agent.resume_point = None
        # The checks run again, on the files that the work is merged into now.
        agent.state.checks = []
        text = agent.state.response
        data = output_data(text, agent.contract)
        return AttemptOutcome(Status.COMPLETED, text, data=data, proposed=True)

    def _start_clock(self, agent: Agent) -> None:
        resume_point = agent.resume_point
        earlier_s = 0.0 if resume_point is None else resume_point.lifetime.seconds
        agent.activity.started_at = self._services.clock.monotonic() - earlier_s

    async def _cancelled(self, agent: Agent, slot: MergeSlot | None) -> None:
        """Close a cancelled agent and keep its work; leave it open if the run is suspended."""
        left_open = agent.activity.endpoint_failure and agent.inherited_stop_reason is None
        if agent.suspension.reason is not None or left_open:
            if slot is not None:
                slot.queue.release_copy(slot)
            return
        reason = agent.inherited_stop_reason or _parent_timeout(agent) or self.cancel_reason
        if slot is None:
            self.close(agent, AttemptOutcome(Status.CANCELLED, agent.last_text, reason))
        else:
            await run_to_completion(self._close_cancelled(agent, slot, reason))

    async def _close_cancelled(self, agent: Agent, slot: MergeSlot, reason: str) -> None:
        try:
            await slot.queue.keep_cancelled(slot)
        except WorkspaceError as error:
            reason = f"{reason}; {error}"
        finally:
            self.close(agent, AttemptOutcome(Status.CANCELLED, agent.last_text, reason))
        await _remove_copy(agent, slot)

    async def cancel_restored(self, agent: Agent) -> None:
        """Close a stopped agent that an earlier process left, and its descendants; keep their work.

        The root itself stays open: it ends with its run.
        """
        resume_point = agent.resume_point
        assert resume_point is not None, "it was restored"
        slot = self.integrator.slot_of(agent)
        if slot is not None and resume_point.worktree_base:
            # The copies of its children were made from its own.
            with suppress(WorkspaceError):
                await slot.queue.make_copy(slot)
        for child in self.spawner.restore_children(agent, resume_point):
            if child.result is None:
                await self.cancel_restored(child)
        if agent.parent is None:
            if slot is not None:  # The copy of a fork.
                await slot.queue.keep_cancelled(slot)
                await slot.queue.remove_copy(slot)
            return
        if agent.state.state in _ENDED:
            if slot is not None:
                slot.queue.release_copy(slot)
            await self._finish_closing(agent)
        else:
            self._start_clock(agent)
            await self._cancelled(agent, slot)

    async def _run_attempts(
        self, agent: Agent, slot: MergeSlot | None, permit: Permit | None = None
    ) -> AttemptOutcome:
        services, contract = self._services, agent.contract
        self._start_clock(agent)
        if slot is not None:
            try:
                await slot.queue.make_copy(slot)
            except WorkspaceError as error:
                return AttemptOutcome(Status.ERROR, "", str(error))
        children = self.children_of(agent) if contract.permissions.can_spawn_children else None
        ctx = self._tool_context(agent, children)
        try:
            earlier, changes_since = await load_earlier(agent, services)
        except (UsageError, UnknownRun) as error:
            return AttemptOutcome(Status.ERROR, "", str(error))
        if agent.cache_key is not None and agent.resume_point is None:
            hit = await services.cache.find(agent.cache_key, ctx)
            if hit is not None:
                return await _use_cached(agent, hit)
        model = contract.execution.model
        served = services.models.known(model)
        is_root = agent.parent is None
        return await services.runner.run(
            agent,
            AgentServices(
                model=services.models.get(model),
                window=None if served is None else served.window,
                max_output=None if served is None else served.max_output,
                tools=services.tools,
                ctx=ctx,
                children=children,
                approve=self.hooks.notifying(agent, services.person.approve),
                reservations=self._reservations,
                clock=services.clock,
                max_parallel_calls=max(services.policy.max_concurrent, MIN_PARALLEL_CALLS),
                price=services.models.price(model),
                breaker=services.policy.breaker if is_root else None,
                rules=services.policy.rules,
                on_text=self._text_listener(agent),
                earlier_messages=self._session.messages if is_root else earlier,
                changes_since=changes_since,
                check_work=self._work_checker(agent, permit),
                only_summarize=self.only_summarize and is_root,
                hooks=services.hooks,
                telemetry=services.telemetry,
                session=self.session_id,
                directory=services.policy.directory,
            ),
        )

    def _ask(self, agent: Agent) -> Ask | None:
        """How the root asks the user, here or elsewhere; None if there is no user."""
        ask = self._services.person.ask
        if agent.parent is not None or ask is None:
            return None

        async def ask_both(path: str, question: str) -> str:
            asking = self.hooks.ask(agent, question, ask)
            return await agent.remote_answers.answer(agent.id, asking)

        return ask_both

    def _tool_context(self, agent: Agent, children: Children | None) -> ToolContext:
        services = self._services
        start_race = partial(Race, self, agent)
        # Only the root continues a session.
        session = self._session if agent.parent is None else NEW
        return self._tool_contexts.make(
            agent,
            ask=self._ask(agent),
            # Children work in a copy, which the editor knows nothing of.
            read_buffer=services.person.read_buffer if agent.parent is None else None,
            delegation=(
                None
                if children is None
                else DelegationHandler(agent, children, services, session, start_race)
            ),
            memory_store=services.storage.memory_store,
        )

    def _work_checker(
        self, agent: Agent, permit: Permit | None
    ) -> Callable[[], Awaitable[str]] | None:
        """Runs the checks before the work is proposed, so that the agent can correct it."""
        contract = agent.contract
        if not contract.outputs.checks or contract.execution.workspace is WorkspaceKind.READONLY:
            return None

        async def check() -> str:
            if problem := await self.integrator.check_ahead(agent):
                return problem
            if permit is not None:
                # Earlier siblings are merged first, and may need the permit for a retry.
                permit.release()
            problem = await self.integrator.check_in_turn(agent)
            if problem and permit is not None:
                await permit.acquire()
            return problem

        return check

    def _text_listener(self, agent: Agent) -> OnText | None:
        """Called with the text of the agent's model while it arrives."""
        services = self._services
        if agent.parent is None:
            return services.listeners.on_text
        if services.listeners.on_child_text is None:
            return None
        return partial(services.listeners.on_child_text, agent.contract.parent.run_id, agent.id)

    async def _resolve_conflicts(self, agent: Agent, copy: WorkingCopy) -> str:
        """Have another child resolve the conflicts of `agent`. Return why it failed, or ""."""
        assert agent.parent is not None, "only a child is merged"
        spec = resolution_spec(agent, self._services.roles[agent.role])
        try:
            resolver = await self.spawner.create(spec, agent.parent, None)
        except UsageError as error:
            return str(error)
        resolver.files.tree = copy
        try:
            outcome = await self._run_attempts(resolver, None)
        except asyncio.CancelledError:
            if agent.suspension.reason is None:
                # The resolver has no task of its own that would close it.
                reason = agent.inherited_stop_reason or self.cancel_reason
                self.close(resolver, AttemptOutcome(Status.CANCELLED, resolver.last_text, reason))
            raise
        if outcome.status is Status.COMPLETED:
            directory = resolver.contract.execution.working_directory
            if problem := await unresolved(agent, copy, directory):
                outcome = AttemptOutcome(Status.ERROR, outcome.text, problem)
        self.close(resolver, outcome)
        return "" if outcome.status is Status.COMPLETED else outcome.reason


_ENDED = (State.COMPLETED, State.FAILED, State.CLOSED)


def _parent_timeout(agent: Agent) -> str | None:
    """The reason of a cancellation because the parent's attempt timed out."""
    if agent.parent is None:
        return None
    activity = agent.parent.activity
    expired = activity.deadline is not None and activity.deadline.expired()
    return "its parent ran out of time" if expired or activity.timed_out else None


async def _remove_copy(agent: Agent, slot: MergeSlot) -> None:
    # Until the closing is durable, a resumed process may need the copy.
    await agent.durable()
    await slot.queue.remove_copy(slot)


async def _use_cached(agent: Agent, hit: CachedResult) -> AttemptOutcome:
    """The outcome of an agent whose task an earlier agent has done."""
    await agent.durable()
    agent.record(AgentStarted(sub_agent_id=agent.id))
    agent.record(CachedResultUsed(run_id=hit.run_id, agent_id=hit.agent_id))
    for receipt in hit.receipts:
        agent.state.add_receipt(receipt)
    data = output_data(hit.response, agent.contract)
    return AttemptOutcome(Status.COMPLETED, hit.response, data=data)
