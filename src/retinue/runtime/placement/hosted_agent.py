"""One agent on a host: the agent, and what stands in there for the services of its run."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from retinue.domain.account import UNLIMITED, ZERO, Account, Overdraft, Reservation, Resources
from retinue.domain.agent_state import AgentState
from retinue.domain.approval import ApprovalRequest, Refusal
from retinue.domain.contract import Contract, WorkspaceKind, decode_contract
from retinue.domain.events import TYPES, Event, Fact, encode_fact
from retinue.domain.lifecycle import State
from retinue.domain.result import ChildFailure, Result
from retinue.domain.resume_point import ResumePoint
from retinue.domain.run_state import fold_agent
from retinue.errors import BudgetExceeded, RunSuspended, UsageError, WorkspaceError
from retinue.ports.file_tree import FileTree
from retinue.ports.person import Approve, refuse_unattended
from retinue.ports.store import MemoryEntry
from retinue.ports.tool import CallInfo, RaceRequest, SpawnRequest, Subtask, ToolOutcome
from retinue.runtime.agent.agent import Agent
from retinue.runtime.agent.agent_services import AgentServices, RunningChild
from retinue.runtime.agent.remote_answers import Answered as Decision
from retinue.runtime.agent.remote_answers import RemoteAnswers
from retinue.runtime.core.reservations import Reservations
from retinue.runtime.core.suspension import Suspension
from retinue.runtime.core.task_group import run_to_completion
from retinue.runtime.placement import messages as msg
from retinue.runtime.placement.hosted_files import HostedFiles
from retinue.runtime.placement.request_errors import error_from

if TYPE_CHECKING:
    from retinue.runtime.placement.host_agents import AgentHost

T = TypeVar("T")


class NoFilesHere(WorkspaceError):
    """The files of an agent cannot be got, so it has not begun."""


class Link:
    """An agent's connection to its run: reports, and requests with their answers."""

    def __init__(self, host: AgentHost, place: msg.Place) -> None:
        self._host = host
        self._serial = place.serial
        self._requests = itertools.count(1)
        self._open: dict[int, asyncio.Future[msg.Answered]] = {}
        self._last_number = 0
        self.agent: Agent
        self.reservations: HostedReservations
        self._below = place.below

    def report(self, report: msg.Report) -> int:
        self._last_number = self._host.report(self._serial, report)
        return self._last_number

    async def durable(self) -> None:
        """Wait until the run has recorded everything that was reported so far."""
        # Not the silence of the agent, but that of the run.
        with self.agent.waiting():
            await self._host.durable(self._last_number)

    async def ask(self, what: msg.Request, type: Any, key: str = "") -> Any:
        """Ask the run, and wait for the answer. Raises what the run's side raised."""
        answer = await self.request(what, key)
        self.learn(answer)
        return self.value(answer, type)

    def value(self, answer: msg.Answered, type: Any) -> Any:
        """The value of an answer. Raises what the run's side raised."""
        if answer.error:
            raise error_from(answer.error, self.agent.contract.parent.run_id)
        return msgspec.json.decode(answer.value, type=type)

    async def request(self, what: msg.Request, key: str = "") -> msg.Answered:
        """Ask the run, and wait for the answer. `learn` takes over its other fields."""
        number = next(self._requests)
        future: asyncio.Future[msg.Answered] = asyncio.get_running_loop().create_future()
        self._open[number] = future
        self.report(msg.Asked(number, what, key))
        try:
            with self.agent.waiting():
                return await asyncio.shield(future)
        except asyncio.CancelledError:
            self.report(msg.Withdrawn(number))
            await run_to_completion(_done(future))
            raise
        finally:
            del self._open[number]

    def answered(self, answer: msg.Answered) -> None:
        future = self._open.get(answer.request)
        if future is not None and not future.done():
            future.set_result(answer)

    def learn(self, answer: msg.Answered) -> None:
        """Take over what has happened at the run meanwhile, mostly by children."""
        agent, state = self.agent, self.agent.state
        state.tainted |= answer.tainted
        state.read_untrusted |= answer.read_untrusted
        calls = answer.child_calls - state.child_calls
        state.child_calls = answer.child_calls
        below = Resources(calls, 0, *answer.below) - Resources(0, 0, *self._below)
        self._below = answer.below
        agent.account.spent += below
        self.reservations.update(answer.left)


async def _done(future: asyncio.Future[msg.Answered]) -> None:
    with suppress(Exception):
        await future


class HostedJournal:
    """Reports facts to the run, which numbers and stores them. Implements `AgentJournal`."""

    def __init__(self, link: Link, run_id: str, host: AgentHost) -> None:
        self._link = link
        self._run_id = run_id
        self._now = host.services.clock.now

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


class HostedReservations(Reservations):
    """Reservations of one agent. If ancestors have limits, the run holds what is reserved."""

    def __init__(self, link: Link, account: Account, ancestors: Account, *, draws: bool) -> None:
        super().__init__()
        self._link = link
        self._account = account
        self._ancestors = ancestors
        self._draws = draws
        self._wanted: tuple[Resources, Resources, int] | None = None
        self._granted: tuple[Resources, Resources, int] | None = None
        self._answer: msg.Answered
        """The answer by which `_granted` was granted."""
        self._error: BudgetExceeded | None = None
        self._kept = False

    def update(self, left: msg.Shared) -> None:
        """Take over what ancestors with limits have left."""
        if self._draws:
            used = self._ancestors.spent + self._ancestors.kept
            self._ancestors.limit = Resources(UNLIMITED, UNLIMITED, *left) + used.shared()

    def try_reserve(
        self,
        account: Account,
        amount: Resources,
        *,
        keep: Resources = ZERO,
        overdraft: Overdraft | None = None,
    ) -> Reservation | None:
        if not self._draws:
            return super().try_reserve(account, amount, keep=keep, overdraft=overdraft)
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        more = 0 if overdraft is None else overdraft.amount.tokens
        wanted = amount, keep, more
        granted, self._granted = self._granted, None
        reservation: Reservation | None = None
        if wanted == granted:
            self._kept = keep != ZERO
            reservation = account.reserve(amount, keep=keep)
        if granted is not None:
            # In the answer, this reservation and what it keeps are subtracted already.
            self._link.learn(self._answer)
        self._wanted = wanted
        return reservation

    async def wait_for_release(self, account: Account) -> None:
        """Have the run reserve what `try_reserve` was asked for."""
        assert self._wanted is not None, "a reservation was tried"
        amount, keep, more = self._wanted
        draw = msg.Draw(amount, keep, more, account.remaining_shared())
        self._answer = answer = await self._link.request(draw)
        drawn: msg.Drawn = self._link.value(answer, msg.Drawn)
        if drawn.granted:
            self._granted = self._wanted
        else:
            self._link.learn(answer)
        if drawn.refused:
            self._error = BudgetExceeded(drawn.refused, limit=drawn.limit)

    def notify_released(self) -> None:
        if not self._draws:
            return
        kept, self._kept = self._kept, self._account.own_kept != ZERO
        self._link.report(msg.Released(kept=not self._kept and kept))


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

    def __init__(self, host: AgentHost, place: msg.Place) -> None:
        self._place, self._host = place, host
        self._files: HostedFiles | None = None
        """Its files, if they are copied here."""
        self.link = link = Link(host, place)
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
        journal = HostedJournal(link, contract.parent.run_id, host)
        suspension = HostedSuspension(link)
        suspension.reason, suspension.raises = place.suspension, place.suspension_raises
        if place.model_answered:
            suspension.answered_models.add(contract.execution.model)
        make = partial(
            Agent,
            tree=host.services.project,
            journal=journal,
            clock=host.services.clock,
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
        agent, place, services = self.agent, self._place, self._host.services
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
        agent, place, link, services = self.agent, self._place, self.link, self._host.services
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
        # They were merged with what others had changed.
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
