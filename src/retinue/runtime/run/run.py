"""A run: one job, a tree of agents, one journal, one outcome."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable
from functools import partial

import msgspec

from retinue.domain.contract import Contract, WorkspaceKind
from retinue.domain.drafting import DraftedContract
from retinue.domain.events import (
    AgentStarted,
    CachedResultUsed,
    ClockGapDetected,
    Fact,
    RunFinished,
    RunResumed,
    RunStarted,
    RunSuspended,
    TasksSubmitted,
)
from retinue.domain.lifecycle import State
from retinue.domain.messages import Effect
from retinue.domain.plan.outcome import RunResult
from retinue.domain.result import Result, Spent, Status
from retinue.domain.resume_point import ResumePoint
from retinue.errors import UsageError, WorkspaceError
from retinue.ports.clock import ClockGap
from retinue.ports.file_tree import WorkingCopy
from retinue.ports.run_lock import RunLock
from retinue.ports.sandbox import Sandbox
from retinue.ports.tool import ToolContext
from retinue.ports.workspace import Workspace
from retinue.runtime.agent.agent import Agent
from retinue.runtime.agent.baseline import BACKGROUND, FOREGROUND, Baseline
from retinue.runtime.agent.children import Children, Slot
from retinue.runtime.agent.lifecycle import (
    AgentServices,
    AttemptOutcome,
    data_in,
    live,
    proposed_outcome,
)
from retinue.runtime.agent.model_turn import OnText
from retinue.runtime.core.journal import EMPTY, Journal, JournalHead
from retinue.runtime.core.reservations import Reservations
from retinue.runtime.core.suspension import Suspension
from retinue.runtime.core.task_group import TaskGroup, run_to_completion
from retinue.runtime.delegation.registry import AgentRegistry
from retinue.runtime.delegation.requests import DelegationHandler
from retinue.runtime.delegation.spawner import Spawner
from retinue.runtime.history.recovery import RecoveredRun
from retinue.runtime.history.result_cache import CachedResult
from retinue.runtime.history.session import NEW, Session, find_earlier_result
from retinue.runtime.integration.checks import Checks, copy_names
from retinue.runtime.integration.conflicts import resolution, unsettled
from retinue.runtime.integration.file_changes import Authors, Recorder
from retinue.runtime.integration.merge_queue import MergeQueue, MergeSlot, examined
from retinue.runtime.services import Services

STOPPED = "stopped with its run"
STOPPED_BY_USER = "stopped by the user"
CANCEL = "cancel"  # followed by the agent's id: what another process says to have it stopped
READS_AT_ONCE = 8


class Run:
    """Start it, give it work, finish it. Everything between is in its journal."""

    def __init__(
        self,
        run_id: str,
        root: DraftedContract,
        around: Services,
        session: Session = NEW,
        *,
        run_lock: RunLock | None = None,
        end: JournalHead = EMPTY,
    ) -> None:
        """`run_lock` and `end` are of a run that another process has left."""
        self.id = run_id
        self._around = around
        self._session = session
        self._sums_up = False
        self._reservations = Reservations()
        self._suspension = Suspension()
        self._journal = Journal(
            around.storage.store, around.clock, run_id, head=end, listener=around.listeners.on_event
        )
        self._roster = AgentRegistry(
            run_id,
            root.contract,
            around,
            self._journal,
            self._suspension,
            children_before=session.children,
        )
        self.root = self._roster.root
        self.root.tainted, self.root.heard_untrusted = session.tainted, session.heard_untrusted
        self._root_notes = root.notes
        self.why_stopped = STOPPED
        self.stranded: str | None = None
        """Why its root could not go on, although nothing but its model stands in the way."""
        self.rejected = 0
        """How many tasks of a program no contract could be written for."""
        self._steps = itertools.count(1)
        self._authors: Authors = []
        self._checks = Checks(around.confine, around.clock)
        self._joins: dict[str, MergeQueue] = {}
        self._recruitment = Spawner(self._roster, around, self._checks, self._join_of)
        self.agree, self.create = self._recruitment.agree, self._recruitment.create
        self._run_lock = run_lock or around.storage.run_locks.acquire(run_id)

    @property
    def agents(self) -> Iterable[Agent]:
        """Those that are not closed yet."""
        return self._roster.open.values()

    @property
    def children(self) -> int:
        return self._roster.children

    @property
    def failures(self) -> int:
        """Tasks that did not come to anything. Who is still open when it is asked never will."""
        return self._roster.failed + self.rejected + self._roster.open_children

    @property
    def has_open_children(self) -> bool:
        return self._roster.open_children > 0

    def start(self, fact: RunStarted) -> None:
        self._journal.record(fact, agent_id=self.root.id, parent_agent_id=None)
        self._roster.enter(self.root, self._root_notes)

    def resume(self, fact: RunResumed, found: RecoveredRun) -> None:
        """Be where the journal says that the run was left."""
        self._journal.record(fact, agent_id=self.root.id, parent_agent_id=None)
        self._roster.restore(found)
        self._steps = itertools.count(found.last_change + 1)
        for author, change in found.state.file_changes:
            who = f"{author.id} ({author.path})"
            self._authors.extend((file.path, who) for file in change.files)

    def employed(self, origin_key: str) -> Agent | None:
        """The child of the root that an errand has made already, in another process."""
        return self._roster.employed(origin_key)

    def stop(self, why: str) -> None:
        """Say why the tasks that are about to be cancelled are cancelled."""
        self.why_stopped = why

    def suspend(self, why: str, then: Callable[[], None] | None = None) -> None:
        """Stop so that it can go on later: whoever is between two turns says what they have.

        `then` is called when nobody has anything more to say. The tasks are to be cancelled after
        that, or any time before; agents that have not ended stay as they are in the journal.
        """
        self._suspension.request(why, is_busy=self._at_work, when_idle=then)

    @property
    def why_suspended(self) -> str:
        return self._suspension.reason or ""

    @property
    def suspended(self) -> bool:
        return self._suspension.reason is not None

    def _at_work(self) -> bool:
        """Is there anybody who may come to a pause? Parents wait for their children."""
        parents = {agent.parent for agent in self.agents}
        return any(
            agent.deadline is not None and not agent.paused and not agent.excused
            for agent in self.agents
            if agent not in parents
        )

    def cancel(self, agent: Agent) -> None:
        """Stop one agent of this run, and all below it, for good."""
        agent.stop(STOPPED_BY_USER)
        if agent.deadline is None:
            # A program that leads has no attempt that could be ended; its children have.
            for child in self.agents:
                if child.parent is agent:
                    child.stop(STOPPED_BY_USER)

    def listen(self) -> None:
        """Do what other processes ask for: so far, that agents are stopped."""
        for words in self._run_lock.received():
            verb, _, agent_id = words.partition(" ")
            agent = self._roster.open.get(agent_id)
            if verb == CANCEL and agent is not None:
                self.cancel(agent)

    # The root

    async def lead(self, *, sums_up: bool = False) -> Result:
        """Let the root work, as a model's agent; or have it sum up the session, and no more."""
        self._sums_up = sums_up
        return await self.see_through(self.root)

    def preside(self) -> None:
        """Let the calling program be the root: it gives the orders, and no model does."""
        self.root.record(AgentStarted(sub_agent_id=self.root.id))

    def give(self, fact: TasksSubmitted) -> None:
        """Write down what the program wants done, before any of it is."""
        self.root.record(fact)

    def lapse(self, lapse: ClockGap) -> None:
        """Write down that time is not what it seems from the times of the events."""
        self._journal.record(
            ClockGapDetected(stalled_s=lapse.stalled_s, jumped_s=lapse.jumped_s),
            agent_id=self.root.id,
            parent_agent_id=None,
        )

    async def note(self, fact: Fact) -> None:
        """Write down what is of no agent's doing, and see it safe."""
        self._journal.record(fact, agent_id=self.root.id, parent_agent_id=None)
        await self._journal.durable()

    async def finish(self, status: Status, reason: str) -> None:
        """Write the outcome, which nobody but the run may do, and see it safe."""
        for agent in reversed(list(self.agents)):
            if agent is self.root and agent.past is not None and agent.past.agent.has_ended:
                self._roster.conclude(agent, agent.past)
            elif agent is self.root:
                self._roster.close(agent, AttemptOutcome(status, reason or "done", reason))
            else:
                # A task that is cancelled before its first step never runs, so it could not say so.
                self._roster.close(agent, AttemptOutcome(Status.CANCELLED, "", self.why_stopped))
        self._journal.record(
            RunFinished(status=status, reason=reason), agent_id=self.root.id, parent_agent_id=None
        )
        await self._over()

    async def leave(self, reason: str) -> None:
        """Write down that the work on it stops here, and can go on."""
        self._journal.record(
            RunSuspended(reason=reason), agent_id=self.root.id, parent_agent_id=None
        )
        await self._over()

    async def _over(self) -> None:
        """See all of it safe, and let go of the run."""
        try:
            await self._journal.durable()
        finally:
            self._run_lock.release()
        await self._around.storage.reports.drained()

    @property
    def outcome(self) -> RunResult:
        """The root's result, once it is closed, with the bill of the whole tree."""
        result = self.root.result
        assert result is not None, "it is closed"
        fields = {name: getattr(result, name) for name in result.__struct_fields__}
        session = next(iter(self._session.runs), self.id)
        return RunResult(**fields, total=self.total, children=self.children, session=session)

    @property
    def total(self) -> Spent:
        """The bill of the whole tree so far."""
        return self._roster.total

    # Its children

    def refused(self, role: str, task: str, why: str, status: Status) -> Result:
        """The result of a task that no child was made for."""
        return Result(status=status, agent_id="", run_id=self.id, role=role, task=task, error=why)

    def _join_of(self, parent: Agent) -> MergeQueue:
        if parent.id not in self._joins:
            authors = self._authors if parent.file_tree is self._around.file_tree else []
            self._joins[parent.id] = MergeQueue(
                parent.file_tree, self._checks, self._recorder, authors, self._resolve
            )
        return self._joins[parent.id]

    def _recorder(self, agent: Agent) -> Recorder | None:
        """Who counts the changes of the user's files. What happens in a copy is nobody's step."""
        at_home = agent.file_tree is self._around.file_tree
        return Recorder(agent, self._steps, self._authors) if at_home else None

    async def _resolve(self, agent: Agent, copy: WorkingCopy) -> str:
        """Have a further child settle the conflicts of `agent`; why it could not, or ""."""
        parent, around = agent.parent, self._around
        assert parent is not None, "only a child is merged"
        order = resolution(agent, around.roles[agent.role])
        try:
            resolver = await self._recruitment.stand_in(order, parent)
        except UsageError as error:
            return str(error)
        resolver.file_tree = copy
        try:
            ending = await self._live(resolver)
        except asyncio.CancelledError:
            if not self.suspended:
                # It has no task of its own that would close it.
                why = agent.why_stopped or self.why_stopped
                self._roster.close(
                    resolver, AttemptOutcome(Status.CANCELLED, resolver.last_text, why)
                )
            raise
        if ending.status is Status.COMPLETED:
            wrong = await unsettled(agent, copy, resolver.contract.execution.working_directory)
            if wrong:
                ending = AttemptOutcome(Status.ERROR, ending.text, wrong)
        self._roster.close(resolver, ending)
        return "" if ending.status is Status.COMPLETED else ending.reason

    async def see_through(self, agent: Agent, slot: Slot | None = None) -> Result:
        """Let `agent` live, from its contract to its closing, once there is a slot for it."""
        past, seat = agent.past, agent.seat
        if past is not None and past.agent.state in (State.COMPLETED, State.FAILED, State.CLOSED):
            return await self._concluded(agent, past)
        now = self._around.clock.monotonic()
        try:
            if past is not None and past.agent.state is State.WAITING_FOR_MERGE:
                agent.past, agent.since = None, now - past.lifetime.seconds
                # They are made again, on what there is to be integrated now.
                agent.checks, ending = [], proposed_outcome(past, agent.contract)
            else:
                if seat is not None and seat.after:
                    if slot is not None:
                        slot.leave()
                    await seat.join.ready(seat)
                if slot is not None:
                    await slot.take()
                try:
                    now = self._around.clock.monotonic()
                    agent.since = now - (0.0 if past is None else past.lifetime.seconds)
                    ending = await self._live(agent)
                finally:
                    if slot is not None:
                        slot.leave()
            if ending.stranded:
                self.stranded = ending.reason
                return self._roster.strand(agent, ending)
            contract = agent.contract
            reads = contract.execution.workspace is WorkspaceKind.READONLY
            if not reads or agent.recorder or contract.outputs.checks:
                ending = await self._integrated(agent, ending)
        except asyncio.CancelledError:
            if self.suspended:
                if seat is not None:
                    seat.join.let_go(seat)
                raise
            why = agent.why_stopped or _late(agent) or self.why_stopped
            try:
                if seat is not None:
                    await run_to_completion(seat.join.abandon(seat))
            except WorkspaceError as error:
                why = f"{why}; {error}"
            finally:
                self._roster.close(agent, AttemptOutcome(Status.CANCELLED, agent.last_text, why))
            if seat is not None:
                await run_to_completion(self._cleared(agent, seat))
            raise
        result = self._roster.close(agent, ending)
        # Closing is on record before anybody reads the result.
        await agent.durable()
        if seat is not None:
            await run_to_completion(self._cleared(agent, seat))
        return result

    async def _cleared(self, agent: Agent, seat: MergeSlot) -> None:
        """Remove the copy of one that is closed, and not sooner: until then it may be needed."""
        await agent.durable()
        await seat.join.clear(seat)

    async def _integrated(self, agent: Agent, ending: AttemptOutcome) -> AttemptOutcome:
        """The ending of one that can write or has checks, when it is decided what becomes of it."""
        try:
            if agent.seat is not None and not agent.seat.shared:
                return await agent.seat.join.integrate(agent.seat, ending)
            return await examined(agent, ending, self._checks)
        except WorkspaceError as error:
            return msgspec.structs.replace(ending, status=Status.ERROR, reason=str(error))

    def _equipped(self, agent: Agent) -> tuple[Workspace, Sandbox | None]:
        """What `agent` works with. What writes in the user's own files is recorded."""
        contract, sandbox = agent.contract, self._around.sandbox
        directory = contract.execution.working_directory
        workspace = agent.file_tree.workspace(directory)
        if contract.execution.workspace is WorkspaceKind.READONLY and (
            sandbox is None or sandbox.tier != "none" or not self._runs_commands(contract)
        ):
            return workspace, sandbox
        agent.recorder = self._recorder(agent)
        return agent.file_tree.with_recording(workspace, sandbox, directory, agent.recorder)

    def _runs_commands(self, contract: Contract) -> bool:
        """May it run what nothing but a sandbox could keep from writing?"""
        effects, grant = self._around.tools.effects, contract.permissions
        tools = (*grant.allowed_tools, *grant.ask_tools)
        return any(effects.get(name) is Effect.EXECUTE for name in tools)

    async def _concluded(self, agent: Agent, past: ResumePoint) -> Result:
        """The result of one that has ended, which is written down in part."""
        if agent.result is not None:
            return agent.result
        result = self._roster.conclude(agent, past)
        await agent.durable()
        await self._around.file_tree.discard(copy_names(self.id, agent.id))
        return result

    async def _live(self, agent: Agent) -> AttemptOutcome:
        around, contract = self._around, agent.contract
        if agent.seat is not None:
            try:
                await agent.seat.join.begin(agent.seat)
            except WorkspaceError as error:
                return AttemptOutcome(Status.ERROR, "", str(error))
        workspace, sandbox = self._equipped(agent)
        grant = contract.permissions
        reach = workspace.reach(grant.write_scope, grant.network)
        ctx = ToolContext(
            workspace=workspace,
            sandbox=sandbox,
            reach=reach,
            directory=(reach.mount_point if sandbox is None or sandbox.relocates else "")
            or reach.root,
            agent_id=agent.id,
            path=agent.path,
            ask=around.person.ask if agent is self.root else None,
            memory_store=around.storage.memory_store,
            run_id=self.id,
            depth=agent.depth,
            remembered=agent.cache_key is not None,
            waiting=agent.waiting,
        )
        if agent.cache_key is not None and agent.past is None:
            hit = await around.cache.find(agent.cache_key, ctx)
            if hit is not None:
                return await _repeat(agent, hit)
        served = around.models.known(contract.execution.model)
        means = AgentServices(
            model=around.models.get(contract.execution.model),
            window=None if served is None else served.window,
            tools=around.tools,
            ctx=ctx,
            approve=around.person.approve,
            reservations=self._reservations,
            clock=around.clock,
            staff=self.staff_of,
            desk=self._desk_of,
            at_once=max(around.policy.max_concurrent, READS_AT_ONCE),
            price=around.models.price(contract.execution.model),
            breaker=around.policy.breaker if agent is self.root else None,
            rules=around.policy.rules,
            on_text=self._ear_for(agent),
            before=self._session.messages if agent is self.root else (),
            sums_up=self._sums_up and agent is self.root,
        )
        return await live(agent, means)

    def _ear_for(self, agent: Agent) -> OnText | None:
        """Who hears what the model of `agent` says while it says it."""
        around = self._around
        if agent is self.root:
            return around.listeners.on_text
        if around.listeners.on_child_text is None:
            return None
        return partial(around.listeners.on_child_text, self.id, agent.id)

    def staff_of(self, boss: Agent, tasks: TaskGroup, past: ResumePoint | None = None) -> Children:
        staff = Children(self, boss, tasks, max_concurrent=self._around.policy.max_concurrent)
        if past is not None:
            self.reseat(boss, past)
            staff.take_up(past, self._roster.restored)
        return staff

    def reseat(self, boss: Agent, past: ResumePoint, *, apart: bool = False) -> None:
        """Give those of its children that are still open their places again, in their order.

        With `apart`, each of them makes a line of its own, as the steps of a plan do.
        """
        for agent_id in past.children:
            child = self._roster.restored[agent_id]
            if child.result is not None or child.past is None:
                continue
            child.file_tree = boss.file_tree
            if child.contract.execution.workspace is not WorkspaceKind.READONLY:
                line = BACKGROUND if child.background else FOREGROUND
                round = Baseline(line=child.origin_key if apart else line)
                child.seat = self._join_of(boss).enter(child, round, child.past)

    def _desk_of(self, boss: Agent, staff: Children) -> DelegationHandler:
        around = self._around
        return DelegationHandler(
            boss,
            staff,
            roles=around.roles,
            workspace=boss.file_tree.workspace(boss.contract.execution.working_directory),
            route=around.models.resolve,
            servers=around.models,
            earlier=partial(
                find_earlier_result,
                around.storage.store,
                self._session if boss is self.root else NEW,
            ),
        )


def _late(agent: Agent) -> str | None:
    """Why an agent goes whose parent's time is up."""
    deadline = None if agent.parent is None else agent.parent.deadline
    return "its parent ran out of time" if deadline is not None and deadline.expired() else None


async def _repeat(agent: Agent, hit: CachedResult) -> AttemptOutcome:
    """The ending of an agent whose work an earlier one has done."""
    await agent.durable()
    agent.record(AgentStarted(sub_agent_id=agent.id))
    agent.record(CachedResultUsed(run_id=hit.run_id, agent_id=hit.agent_id))
    for receipt in hit.receipts:
        agent.keep(receipt)
    data = data_in(hit.response, agent.contract)
    return AttemptOutcome(Status.COMPLETED, hit.response, data=data, cached=True)
