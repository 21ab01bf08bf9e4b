"""One agent on a host: the agent, and what stands in there for the services of its run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import msgspec

from retinue.domain.account import UNLIMITED, Account, Resources
from retinue.domain.agent_state import AgentState
from retinue.domain.approval import ApprovalRequest, Refusal
from retinue.domain.contract import Contract, WorkspaceKind, decode_contract
from retinue.domain.events import TYPES, Event, Fact, encode_fact
from retinue.domain.lifecycle import State
from retinue.domain.result import ChildFailure, Result
from retinue.domain.resume_point import ResumePoint
from retinue.domain.run_state import fold_agent
from retinue.errors import RunSuspended, UsageError, WorkspaceError
from retinue.ports.clock import Clock
from retinue.ports.endpoint_slots import SlotSource
from retinue.ports.file_tree import FileTree, TreeLocation
from retinue.ports.model import ModelCatalog
from retinue.ports.person import Approve, refuse_unattended
from retinue.ports.store import MemoryEntry
from retinue.ports.tool import CallInfo, RaceRequest, SpawnRequest, Subtask, ToolOutcome
from retinue.runtime.agent.agent import Agent
from retinue.runtime.agent.agent_services import AgentServices, RunningChild, Tools
from retinue.runtime.agent.remote_answers import Answered as Decision
from retinue.runtime.agent.remote_answers import RemoteAnswers
from retinue.runtime.core.suspension import Suspension
from retinue.runtime.core.task_group import run_to_completion
from retinue.runtime.integration.tool_context import ToolContexts
from retinue.runtime.placement import messages as msg
from retinue.runtime.placement.host_reports import HostReports
from retinue.runtime.placement.hosted_files import HostedFiles, HostFiles
from retinue.runtime.placement.link import HostedReservations, Link


class HostServices(msgspec.Struct, frozen=True, kw_only=True):
    """What the agents of a host share. Built once per host."""

    models: ModelCatalog
    take_slots_from: Callable[[SlotSource], None]
    """Has each request to a model take a slot there."""
    tools: Tools
    tool_contexts: ToolContexts
    project: FileTree
    open_tree: Callable[[TreeLocation, str], Awaitable[FileTree]]
    """Opens the files of an agent that works in a directory of the project."""
    files: HostFiles
    """For agents of a run whose disk this machine does not see."""
    clock: Clock
    silence_s: float


class NoFilesHere(WorkspaceError):
    """The files of an agent cannot be got, so it has not begun."""


class HostedJournal:
    """Reports facts to the run, which numbers and stores them. Implements `AgentJournal`."""

    def __init__(self, link: Link, run_id: str, clock: Clock) -> None:
        self._link = link
        self._run_id = run_id
        self._now = clock.now

    def record(
        self, fact: Fact, agent_id: str, parent_agent_id: str | None, attempt: int = 0
    ) -> Event:
        """Report a fact. The number of the event is that of the report, not that in the journal."""
        payload = msgspec.Raw(encode_fact(fact))
        number = self._link.report(msg.Recorded(payload, attempt))
        return Event(
            seq=number,
            run_id=self._run_id,
            agent_id=agent_id,
            parent_agent_id=parent_agent_id,
            attempt=attempt,
            epoch=0,
            time=self._now(),
            type=TYPES[type(fact)],
            summary=str(fact),
            payload=payload,
            hash="",
        )

    async def durable(self) -> None:
        await self._link.durable()


class HostedAnswers(RemoteAnswers):
    """Has the run ask its user."""

    def __init__(self, link: Link) -> None:
        super().__init__()
        self._link = link

    async def approval(
        self, number: int, request: ApprovalRequest, asking: Coroutine[Any, Any, Decision]
    ) -> Decision:
        asking.close()  # There is no user here.
        answer: msg.Approval = await self._link.ask(msg.Approve(number, request), msg.Approval)
        if answer.rule is not None:
            return answer.rule
        return answer.allowed if answer.reason is None else Refusal(answer.reason)


async def _ask_at_the_run(request: ApprovalRequest) -> bool:
    raise AssertionError("`HostedAnswers` asks instead")


class HostedSuspension(Suspension):
    """Tells the run that the agent waits to be suspended."""

    def __init__(self, link: Link) -> None:
        super().__init__(lambda: False)
        self._link = link

    def check_idle(self) -> None:
        if self._link.agent.activity.paused:
            self._link.report(msg.Paused())


class HostedChildren:
    """The children of the agent, which its run spawns. Implements `ChildJobs`."""

    def __init__(self, link: Link, get_changes: Callable[[], Awaitable[None]]) -> None:
        """`get_changes` gets the files that children have changed."""
        self._link = link
        self.get_changes = get_changes
        self.has_jobs = False
        """Whether there may be background children."""

    @asynccontextmanager
    async def attempt(
        self, resume_point: ResumePoint | None, *, continued: bool = False
    ) -> AsyncIterator[None]:
        resumed = resume_point is not None
        self.has_jobs = resumed or (continued and self.has_jobs)
        await self._link.ask(msg.EnterAttempt(resumed, continued), None)
        if not resumed:
            # Children of the last attempt may have been merged at its end.
            await self.get_changes()
        try:
            yield
        except RunSuspended as error:
            await self._leave(msg.LeaveAttempt(suspended=str(error) or "suspended"))
            raise
        except BaseException:
            deadline = self._link.agent.activity.deadline
            timed_out = deadline is not None and deadline.expired()
            leave = msg.LeaveAttempt(failed=True, timed_out=timed_out)
            await run_to_completion(self._leave(leave))
            raise
        await self._leave(msg.LeaveAttempt())

    async def _leave(self, leave: msg.LeaveAttempt) -> None:
        # If this host is lost, the run finishes it.
        await self._link.ask(leave, None, "leave attempt")

    def rejoin(self, resume_point: ResumePoint) -> None:
        raise AssertionError("the run has the children, and rejoins them")

    async def has_news(self) -> bool:
        return self.has_jobs and await self._link.ask(msg.HasNews(), bool)

    def child_for(self, origin_key: str) -> Agent | None:
        return None  # Only hooks ask, and agents with hooks run in the process of the run.

    async def take_ended(self) -> Sequence[Result]:
        if not self.has_jobs:
            return ()
        ended: list[Result] = await self._link.ask(msg.TakeEnded(), list[Result[Any]])
        if ended:
            await self.get_changes()
        return ended

    def take_failed(self) -> Sequence[ChildFailure]:
        return ()  # Only a root is reminded of them.

    async def take_running(self) -> Sequence[RunningChild]:
        if not self.has_jobs:
            return ()
        running: list[RunningChild] = await self._link.ask(msg.TakeRunning(), list[RunningChild])
        return running


class HostedDelegation:
    """Passes requests about children on to the run. Implements the port `Delegation`.

    A request that is made again after a host was lost has the same key, so it is done once.
    """

    def __init__(self, link: Link, children: HostedChildren) -> None:
        self._link = link
        self._children = children

    async def _ask(self, what: msg.Request, key: str) -> ToolOutcome:
        outcome: ToolOutcome = await self._link.ask(what, ToolOutcome, key)
        await self._children.get_changes()
        return outcome

    async def spawn(self, request: SpawnRequest, call: CallInfo) -> ToolOutcome:
        self._children.has_jobs |= request.background
        return await self._ask(msg.Spawn(request, call), call.name)

    async def wait(self, job_ids: str, call: CallInfo) -> ToolOutcome:
        return await self._ask(msg.AwaitJobs(job_ids, call), call.name)

    async def delegate(self, plan: str, subtasks: Sequence[Subtask], call: CallInfo) -> ToolOutcome:
        return await self._ask(msg.Delegate(plan, subtasks, call), call.name)

    async def race(self, request: RaceRequest, call: CallInfo) -> ToolOutcome:
        return await self._ask(msg.RunRace(request, call), call.name)

    async def message(self, id: str, text: str) -> ToolOutcome:
        turn = self._link.agent.account.spent.turns
        return await self._ask(msg.SendMessage(id, text), f"{turn}:{id} {text}")

    async def cancel(self, id: str, call: CallInfo) -> ToolOutcome:
        return await self._ask(msg.CancelChild(id, call), call.name)

    async def result(self, id: str, start: int) -> ToolOutcome:
        return await self._ask(msg.ReadResult(id, start), "")


class HostedMemory:
    """The memory of the run. Implements `MemoryStore`."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def remember(self, *, kind: str, text: str, run_id: str, agent_id: str) -> int:
        number: int = await self._link.ask(msg.Remember(kind, text), int)
        return number

    async def recall(
        self, query: str, *, kind: str | None = None, limit: int = 5
    ) -> list[MemoryEntry]:
        found: list[MemoryEntry] = await self._link.ask(
            msg.Recall(query, kind, limit), list[MemoryEntry]
        )
        return found


class HostedAgent:
    """An agent that was placed here, as its events left it."""

    def __init__(self, services: HostServices, reports: HostReports, place: msg.Place) -> None:
        self._place, self._services = place, services
        self._files: HostedFiles | None = None
        """Its files, if they are copied here."""
        self.link = link = Link(reports, place)
        point = fold_agent(place.events)
        state, contract = point.agent, decode_contract(bytes(place.contract))
        state.tainted |= place.tainted
        state.read_untrusted |= place.read_untrusted
        state.child_calls = place.child_calls
        unlimited = Resources(UNLIMITED, UNLIMITED, UNLIMITED, UNLIMITED, UNLIMITED)
        ancestors = Account(place.parent_path, unlimited)
        if place.draws:
            ancestors.limit = Resources(UNLIMITED, UNLIMITED, *place.left)
        limit = contract.execution.budget.resources(
            priced=(place.price or place.pool_price) is not None
        )
        account = Account(state.path, limit, ancestors)
        journal = HostedJournal(link, contract.parent.run_id, services.clock)
        suspension = HostedSuspension(link)
        suspension.reason, suspension.raises = place.suspension, place.suspension_raises
        if place.model_answered:
            suspension.answered_models.add(contract.execution.model)
        make = partial(
            Agent,
            tree=services.project,
            journal=journal,
            clock=services.clock,
            suspension=suspension,
            remote_answers=HostedAnswers(link),
            on_progress=self._on_progress,
        )
        parent = make(
            _parent_state(state, place), _parent_contract(contract, place), None,
            account=ancestors, cache_key=None,
        )  # fmt: skip
        self.agent = link.agent = make(
            state, contract, parent, account=account, cache_key="" if place.remembered else None
        )
        link.reservations = HostedReservations(link, account, ancestors, draws=place.draws)
        self.agent.restore(point)
        account.spent += Resources(0, 0, *place.below)
        link.reservations.update(place.left)
        self.agent.inbox = list(place.inbox)
        self.agent.activity.stop_reason = place.stop_reason

    @asynccontextmanager
    async def opened_files(self) -> AsyncIterator[FileTree]:
        """The files of the agent. If they are copied here, the run gets what was changed.

        Raises NoFilesHere.
        """
        agent, place, services = self.agent, self._place, self._services
        directory = agent.contract.execution.working_directory
        if place.files is None:
            yield await services.open_tree(place.tree, directory)
            return
        self._files = files = HostedFiles(services.files, self.link, place.files, directory)
        try:
            try:
                with agent.waiting():
                    tree = await files.open()
            except WorkspaceError as error:
                raise NoFilesHere(str(error)) from error
            if agent.contract.execution.workspace is WorkspaceKind.READONLY:
                yield tree
                return
            agent.files.send_changes = files.send_changes
            try:
                yield tree
            finally:
                # A call that was interrupted may have changed something.
                await run_to_completion(files.send_changes())
        finally:
            await run_to_completion(files.close())

    def agent_services(self, tree: FileTree) -> AgentServices:
        agent, place, link, services = self.agent, self._place, self.link, self._services
        agent.files.tree = tree
        children = HostedChildren(link, self._get_changes) if place.may_spawn else None
        ctx = services.tool_contexts.make(
            agent,
            memory_store=HostedMemory(link) if place.has_memory else None,
            delegation=None if children is None else HostedDelegation(link, children),
        )
        model = services.models.get(agent.contract.execution.model)
        approve: Approve = _ask_at_the_run if place.attended else refuse_unattended
        return AgentServices(
            model=model,
            tools=services.tools,
            ctx=ctx,
            children=children,
            approve=approve,
            rules=place.rules,
            reservations=link.reservations,
            clock=services.clock,
            max_parallel_calls=place.max_parallel_calls,
            window=place.window,
            max_output=place.max_output,
            price=place.price or place.pool_price,
            on_text=self._on_text if place.wants_text else None,
            earlier_messages=place.earlier_messages,
            changes_since=place.changes_since,
            check_work=self._check_work if place.checks_work else None,
        )

    async def _get_changes(self) -> None:
        if self._files is not None:
            await self._files.get_changes()

    def tell(self, source: str, text: str) -> None:
        # After its last answer, the message stays unread at the run.
        with suppress(UsageError):
            self.agent.receive(text, source=source)

    def suspend(self, reason: str, *, raises: bool) -> None:
        self.agent.suspension.raises = raises
        self.agent.suspension.request(reason)

    def _on_text(self, text: str) -> None:
        if text:
            self.link.report(msg.Text(text))

    def _on_progress(self, run_id: str, agent_id: str, tool: str, text: str) -> None:
        self.link.report(msg.Progress(tool, text))

    async def _check_work(self) -> str:
        checked: msg.Checked = await self.link.ask(msg.CheckWork(), msg.Checked)
        self.agent.state.checks = list(checked.checks)
        # The files were merged with the changes of others.
        await self._get_changes()
        return checked.problem


def _parent_state(child: AgentState, place: msg.Place) -> AgentState:
    """The part of the parent that the agent looks at."""
    return AgentState(
        id=child.parent_id or "",
        path=place.parent_path,
        role="",
        title="",
        depth=child.depth - 1,
        step_idx=0,
        contract_sha256="",
        created_at=child.created_at,
        state=State.RUNNING,
        answers=dict(place.answers),
    )


def _parent_contract(contract: Contract, place: msg.Place) -> Contract:
    grant = msgspec.structs.replace(
        contract.permissions, max_delegation_depth=place.parent_depth_left
    )
    return msgspec.structs.replace(contract, permissions=grant)
