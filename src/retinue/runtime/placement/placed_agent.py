"""An agent whose attempts run on a host: the side of its run, which records and decides."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple, assert_never

import msgspec

from retinue.domain.account import ONE_CALL, Overdraft, Reservation, Resources
from retinue.domain.approval import ApprovalRequest, Rule
from retinue.domain.events import (
    TYPES,
    AgentPlaced,
    ApprovalDecided,
    ApprovalRequested,
    Event,
    MessageReceived,
    ModelFailed,
    ModelReplied,
    ToolDenied,
    ToolStarted,
)
from retinue.domain.lifecycle import State
from retinue.domain.permissions import COMMAND_TOOLS
from retinue.domain.price import PoolPrice, Price
from retinue.domain.result import Status
from retinue.errors import BudgetExceeded, RunError, RunSuspended, ToolFailure, WorkspaceError
from retinue.ports.person import refuse_unattended
from retinue.ports.store import MemoryStore, Store
from retinue.ports.tool import Delegation
from retinue.runtime.agent.agent import Agent
from retinue.runtime.agent.agent_services import AgentServices, ChildJobs
from retinue.runtime.agent.approvals import ask_here, requested
from retinue.runtime.agent.loop import AttemptOutcome
from retinue.runtime.core.task_group import TaskGroup, run_to_completion
from retinue.runtime.placement import messages as msg
from retinue.runtime.placement.held_attempt import HeldAttempt
from retinue.runtime.placement.host import FileChannel, Host, HostLost
from retinue.runtime.placement.host_choice import why_not
from retinue.runtime.placement.hosts import Hosts, NoSuchHost, Placement
from retinue.runtime.placement.reported_facts import decode_reported, problem_of
from retinue.runtime.placement.request_errors import describe_error
from retinue.runtime.placement.sent_files import ProjectFiles, SentFiles

FILES_LOST = (
    "host",
    "You continue on another machine. Your files are as after your last finished call, without"
    " those that git ignores: build outputs and installed packages are gone.",
)
"""Message to an agent that ran commands where the run did not see what git ignores."""
MAX_LOST_HOSTS = 3
"""An agent under which so many hosts were lost may be the reason."""
_WAITS_FOR_OTHERS = (
    msg.Approve, msg.Spawn, msg.AwaitJobs, msg.Delegate, msg.RunRace, msg.LeaveAttempt,
)  # fmt: skip


class _Answer(NamedTuple):
    """The answer to a request: a value, or the error that the host raises again."""

    value: msgspec.Raw = msgspec.Raw(b"null")
    error: str = ""


class NoFilesAnywhere(WorkspaceError):
    """No host can get the files of an agent."""


class PlacedAgent:
    """Runs the attempts of `agent` on one host after the other, until they are over.

    Facts that a host reports become events of the agent here. The next host repeats what a lost one
    had not reported, in the same attempt. Implements `RemoteControl` and `Placed`.
    """

    def __init__(
        self,
        agent: Agent,
        services: AgentServices,
        store: Store,
        project: ProjectFiles,
    ) -> None:
        self._project = project
        self._files = SentFiles(agent, project)
        self._without_files: dict[str, str] = {}
        """Why hosts could not get the files, by their names."""
        self.agent = agent
        self._services = services
        self._store = store
        self._tasks = TaskGroup()
        self._hosts: Hosts
        self._host: Host | None = None
        self._waiting = 0
        """Requests that wait for children or for the user."""
        self._serial = 0
        self._over: asyncio.Future[msg.Ended | msg.NoFiles | msg.Failed]
        self._open: dict[int, asyncio.Task[_Answer]] = {}
        """Requests of the host, by their number."""
        self._once: dict[str, asyncio.Task[_Answer]] = {}
        """Requests that are made once in an attempt, by their key."""
        self._requested: dict[int, Event] = {}
        """Events that ask the user, by the numbers that the host gave them."""
        self._allowed: dict[int, ApprovalRequest] = {}
        """Requests to which the user has said yes, by the numbers of their events."""
        self._draw: Reservation | None = None
        self._told: msg.Shared | None = None
        """The remaining budget when a host was last told to compute its reservation again."""
        self._attempt = HeldAttempt(
            agent, store, self._tasks, on_left=self._once.clear, on_error=self.lost
        )
        account = agent.account
        self._draws = account.has_limited_ancestor or (
            services.children is not None and account.limits_shared
        )

    def why_not(self, host: Host) -> str:
        problem = self._without_files.get(host.name, "")
        return problem or why_not(self.agent, host, self._project.problem)

    @property
    def role(self) -> str:
        return self.agent.contract.execution.role

    @property
    def waits_for_others(self) -> bool:
        return self._waiting > 0

    async def run(self, hosts: Hosts) -> AttemptOutcome:
        """Run the attempts. Raises like `run_attempts`, or NoFilesAnywhere before they continue."""
        agent, self._hosts = self.agent, hosts
        requested = agent.suspension.on_request
        requested.append(self._suspend)
        agent.remote = self
        try:
            async with self._tasks:
                try:
                    return await self._run_on_hosts(hosts)
                finally:
                    await run_to_completion(self._end_requests())
        finally:
            agent.remote = None
            requested.remove(self._suspend)
            agent.account.release_kept()
            self._services.reservations.notify_released()

    async def _run_on_hosts(self, hosts: Hosts) -> AttemptOutcome:
        agent, lost, reason = self.agent, 0, ""
        while True:
            self._over = asyncio.get_running_loop().create_future()
            try:
                placement = await hosts.take(self)
            except NoSuchHost as error:
                stopped = agent.inherited_stop_reason is not None
                status = Status.CANCELLED if stopped else Status.ERROR
                return AttemptOutcome(status, agent.last_text, str(error))
            self._host, self._serial = host, serial = placement.host, placement.serial
            try:
                over = await self._run_on(placement, reason)
            except HostLost as error:
                lost, reason = lost + 1, str(error)
                once = set(self._once.values())
                for task in self._open.values():
                    if task not in once:
                        task.cancel()
                self._open.clear()
                self._requested.clear()
                # The next host keeps something for the last turn with its first reservation.
                self._release_draw()
                agent.account.release_kept()
                self._services.reservations.notify_released()
                if lost < MAX_LOST_HOSTS:
                    continue
                reason = f"{lost} hosts were lost under it; the last: {reason}"
                return AttemptOutcome(Status.ERROR, agent.last_text, reason)
            finally:
                self._host = None
                hosts.leave(serial)
            if isinstance(over, msg.NoFiles):
                reason = f"{host.name} cannot get its files: {over.error}"
                self._without_files[host.name] = reason
                if all(self.why_not(other) for other in hosts.live):
                    raise NoFilesAnywhere(reason)
                continue
            if isinstance(over, msg.Failed):
                reason = f"{host.name} could not run it: {over.error}"
                return AttemptOutcome(Status.ERROR, agent.last_text, reason)
            agent.last_text = over.last_text
            if over.outcome is None:
                raise RunSuspended(over.suspended, run_id=agent.contract.parent.run_id)
            agent.is_ending = True
            # Work is proposed here, from the files that are here.
            return msgspec.structs.replace(over.outcome, proposed=False)

    async def _run_on(
        self, placement: Placement, reason: str
    ) -> msg.Ended | msg.NoFiles | msg.Failed:
        agent, host, serial = self.agent, placement.host, placement.serial
        number = agent.state.placement + 1
        agent.record(AgentPlaced(host=host.name, placement=number, reason=reason))
        # The contract is on record before any work is done under it.
        await agent.durable()
        files = None
        if not host.info.shares_disk:
            try:
                files = await self._files.placed()
            except WorkspaceError as error:
                raise NoFilesAnywhere(str(error)) from error
        host.send(await self._place(serial, files))
        try:
            over = await asyncio.shield(self._over)
        except asyncio.CancelledError:
            self._send(msg.Cancel(serial))
            await run_to_completion(_settled(self._over))
            raise
        if isinstance(over, msg.Ended) and over.outcome is None and not over.suspended:
            raise HostLost(f"{host.name} has stopped")
        return over

    async def _place(self, serial: int, files: msg.PlacedFiles | None) -> msg.Place:
        agent, services, parent = self.agent, self._services, self.agent.parent
        assert parent is not None, "a root runs in the process of its run"
        state = agent.state
        events: Sequence[Event] = (agent.created,) if agent.created is not None else ()
        if not events or state.state is not State.CREATED:
            events = await self._store.agent_events(agent.contract.parent.run_id, agent.id)
        if files is not None and FILES_LOST not in agent.inbox and any(map(_is_command, events)):
            agent.inbox.append(FILES_LOST)
        answers: dict[str, ApprovalDecided] = {}
        node: Agent | None = parent
        while node is not None:
            answers = {**node.state.answers, **answers}
            node = node.parent
        suspension = agent.suspension
        return msg.Place(
            serial=serial,
            contract=msgspec.Raw(agent.contract.encode().canonical),
            events=events,
            parent_path=parent.path,
            parent_depth_left=parent.contract.permissions.max_delegation_depth,
            tree=agent.files.tree.location,
            files=files,
            inbox=agent.inbox,
            remembered=services.ctx.remembered,
            tainted=state.tainted,
            read_untrusted=state.read_untrusted,
            answers=answers,
            earlier_messages=services.earlier_messages,
            changes_since=services.changes_since,
            window=services.window,
            max_output=services.max_output,
            price=services.price if isinstance(services.price, Price) else None,
            pool_price=services.price if isinstance(services.price, PoolPrice) else None,
            rules=services.rules,
            attended=services.approve is not refuse_unattended,
            max_parallel_calls=services.max_parallel_calls,
            wants_text=services.on_text is not None,
            checks_work=services.check_work is not None,
            may_spawn=services.children is not None,
            has_memory=services.ctx.memory_store is not None,
            model_answered=agent.contract.execution.model in suspension.answered_models,
            draws=self._draws,
            left=self._left,
            below=self._below,
            child_calls=state.child_calls,
            suspension=suspension.reason,
            suspension_raises=suspension.raises,
            stop_reason=agent.inherited_stop_reason,
        )

    @property
    def _left(self) -> msg.Shared:
        """What ancestors with limits have left."""
        parent = self.agent.account.parent
        assert parent is not None, "only children are placed"
        return parent.remaining_shared()

    @property
    def _below(self) -> msg.Shared:
        """What descendants have spent."""
        below = self.agent.account.spent - self.agent.state.spent
        return below.tokens, below.cost_microusd, below.billed_tokens

    # Commands: `RemoteControl`, and suspension

    def _send(self, command: msg.Command) -> None:
        if self._host is not None:
            self._host.send(command)

    def message(self, source: str, text: str) -> None:
        self._send(msg.Tell(self._serial, source, text))

    def stop(self, reason: str) -> None:
        self._send(msg.Stop(self._serial, reason))
        self._hosts.look_again()

    def _suspend(self) -> None:
        suspension = self.agent.suspension
        self._send(msg.Suspend(self._serial, suspension.reason or "", suspension.raises))

    # Reports

    def lost(self, error: Exception) -> None:
        if not self._over.done():
            self._over.set_exception(error)
            if not isinstance(error, HostLost):
                # Before an acknowledgement lets it start what is not on record.
                self._send(msg.Cancel(self._serial))

    def handle(self, number: int, report: msg.AgentReport) -> None:
        agent = self.agent
        match report:
            case msg.Recorded():
                self._record(number, report)
            case msg.Asked():
                self._asked(report)
            case msg.Withdrawn():
                if (task := self._open.get(report.request)) is not None:
                    task.cancel()
            case msg.Released():
                self._release_draw()
                if report.kept:
                    agent.account.release_kept()
                self._services.reservations.notify_released()
            case msg.Text():
                agent.touch()
                if self._services.on_text is not None:
                    self._services.on_text(report.text)
            case msg.Progress():
                agent.report_progress(report.tool, report.text)
            case msg.Paused():
                agent.activity.paused = True
                agent.suspension.check_idle()
            case msg.Ended() | msg.NoFiles() | msg.Failed():
                if not self._over.done():
                    self._over.set_result(report)
            case _:
                assert_never(report)

    def _record(self, number: int, report: msg.Recorded) -> None:
        agent = self.agent
        rules = (*self._services.rules.allow, *agent.remote_answers.granted.allow)
        assert self._host is not None, "it has reported"
        refused = f"{self._host.name} reports what a host may not"
        try:
            fact = decode_reported(report.fact)
        except msgspec.DecodeError as error:
            raise HostLost(f"{refused}: {error}") from error
        if isinstance(fact, ApprovalDecided) and fact.request:
            asked = self._requested.get(fact.request)
            fact = msgspec.structs.replace(fact, request=0 if asked is None else asked.seq)
        if problem := problem_of(fact, report.attempt, agent.state, self._allowed, rules):
            raise HostLost(f"{refused}: {problem}")
        event = agent.record(fact, attempt=report.attempt)
        match fact:
            case ModelReplied(usage=usage):
                self._charge(1, usage.tokens, usage.cost_microusd, usage.billed_tokens)
                agent.last_text = agent.state.last_text
                agent.suspension.answered_models.add(agent.contract.execution.model)
            case ModelFailed(usage=usage):
                self._charge(0, usage.tokens, usage.cost_microusd, usage.billed_tokens)
            case ToolStarted():
                agent.account.charge(ONE_CALL)
            case ToolDenied(counted=True):
                agent.account.charge(ONE_CALL)
            case MessageReceived(source=source, content=text):
                if (source, text) in agent.inbox:
                    agent.inbox.remove((source, text))
            case ApprovalRequested():
                self._requested[number] = event

    def _charge(self, turns: int, tokens: int, cost_microusd: int, billed_tokens: int) -> None:
        self._release_draw()
        self.agent.account.charge(Resources(0, turns, tokens, cost_microusd, billed_tokens))
        self._services.reservations.notify_released()

    def _release_draw(self) -> None:
        if self._draw is not None:
            self._draw.release()
            self._draw = None

    # Requests

    def _asked(self, asked: msg.Asked) -> None:
        task = self._once.get(asked.key) if asked.key else None
        if task is None or task.cancelled():
            task = self._tasks.create_task(self._answer(asked.what))
            if asked.key:
                self._once[asked.key] = task
        self._open[asked.request] = task
        task.add_done_callback(partial(self._answered, self._host, self._serial, asked.request))

    def _answered(
        self, host: Host | None, serial: int, request: int, task: asyncio.Task[_Answer]
    ) -> None:
        if serial != self._serial or host is not self._host or host is None:
            return
        self._open.pop(request, None)
        state = self.agent.state
        withdrawn = _Answer(error="RunError: the request was withdrawn")
        answer = withdrawn if task.cancelled() else task.result()
        host.send(
            msg.Answered(
                serial=serial,
                request=request,
                value=answer.value,
                error=answer.error,
                tainted=state.tainted,
                read_untrusted=state.read_untrusted,
                child_calls=state.child_calls,
                below=self._below,
                left=self._left,
            )
        )

    async def _answer(self, what: msg.Request) -> _Answer:
        waits = isinstance(what, _WAITS_FOR_OTHERS)
        if waits:
            self._waiting += 1
            self._hosts.look_again()
        try:
            return _Answer(msgspec.Raw(msg.encode(await self._value(what))))
        except Exception as error:
            # The error ends this agent, on its host, and not its siblings.
            return _Answer(error=describe_error(error))
        finally:
            self._waiting -= waits

    async def _value(self, what: msg.Request) -> Any:
        services, ctx = self._services, self._services.ctx
        match what:
            case msg.Draw():
                return await self._reserve(what)
            case msg.GetCommits():
                return await self._files.get(what, self._channel)
            case msg.GetChanges():
                return await self._files.get_changes(what, self._channel)
            case msg.GetHistory():
                return await self._files.get_history(what, self._channel)
            case msg.PutFiles():
                await self._files.put(what, self._channel)
                return None
            case msg.Approve():
                return await self._approve(what)
            case msg.CheckWork():
                assert services.check_work is not None, "the host was told so"
                problem = await services.check_work()
                return msg.Checked(problem, tuple(self.agent.state.checks))
            case msg.EnterAttempt():
                return await self._attempt.enter(what, self._children)
            case msg.LeaveAttempt():
                return await self._attempt.leave(what)
            case msg.HasNews():
                return await self._children.has_news()
            case msg.TakeEnded():
                return await self._children.take_ended()
            case msg.TakeRunning():
                return await self._children.take_running()
            case msg.Spawn():
                return await self._delegation.spawn(what.request, what.call)
            case msg.AwaitJobs():
                return await self._delegation.wait(what.job_ids, what.call)
            case msg.Delegate():
                return await self._delegation.delegate(what.plan, what.subtasks, what.call)
            case msg.RunRace():
                return await self._delegation.race(what.request, what.call)
            case msg.SendMessage():
                return await self._delegation.message(what.id, what.text)
            case msg.CancelChild():
                return await self._delegation.cancel(what.id, what.call)
            case msg.ReadResult():
                return await self._delegation.result(what.id, what.start)
            case msg.Remember():
                return await self._memory("remember").remember(
                    kind=what.kind, text=what.text, run_id=ctx.run_id, agent_id=self.agent.id
                )
            case msg.Recall():
                memory = self._memory("recall")
                return await memory.recall(what.query, kind=what.kind, limit=what.limit)
            case _:
                assert_never(what)

    @property
    def _channel(self) -> FileChannel:
        assert self._host is not None, "it has asked"
        return self._host.files

    @property
    def _children(self) -> ChildJobs:
        assert self._services.children is not None, "the host was told so"
        return self._services.children

    @property
    def _delegation(self) -> Delegation:
        assert self._services.ctx.delegation is not None, "the host was told so"
        return self._services.ctx.delegation

    def _memory(self, tool: str) -> MemoryStore:
        grant, store = self.agent.contract.permissions, self._services.ctx.memory_store
        assert store is not None, "the host was told so"
        if tool not in (*grant.allowed_tools, *grant.ask_tools):
            raise ToolFailure(f"The agent has no tool {tool!r}.")
        return store

    async def _reserve(self, draw: msg.Draw) -> msg.Drawn:
        """Reserve budget for a turn, as soon as others leave room for it."""
        wanted = (*msgspec.structs.astuple(draw.amount), *msgspec.structs.astuple(draw.keep))
        if min(*wanted, draw.overdraft_tokens) < 0:
            raise RunError("Less than nothing cannot be reserved.")
        account, reservations = self.agent.account, self._services.reservations
        if self._draw is not None:
            self._release_draw()
            reservations.notify_released()
        while True:
            try:
                self._draw = reservations.try_reserve(
                    account, draw.amount, keep=draw.keep, overdraft=self._overdraft(draw)
                )
            except BudgetExceeded as error:
                # The host's view may stay wrong, so it is told once per change.
                if (left := account.remaining_shared()) not in (draw.seen, self._told):
                    self._told = left
                    return msg.Drawn()
                return msg.Drawn(refused=str(error), limit=error.limit)
            if self._draw is not None:
                return msg.Drawn(granted=True)
            with self.agent.waiting():
                await reservations.wait_for_release(account)
            if account.remaining_shared() != draw.seen:
                return msg.Drawn()

    def _overdraft(self, draw: msg.Draw) -> Overdraft | None:
        if not draw.overdraft_tokens:
            return None
        needed = draw.amount.tokens + draw.keep.tokens + draw.overdraft_tokens
        _, *ancestors = self.agent.account.self_and_ancestors()
        found = next((one for one in ancestors if one.limit.tokens >= needed), None)
        more = Resources(tokens=draw.overdraft_tokens)
        return None if found is None else Overdraft(found, more)

    async def _approve(self, wanted: msg.Approve) -> msg.Approval:
        event, request = self._requested[wanted.number], wanted.request
        if request.path != self.agent.path or event.fact != requested(request):
            raise RunError("That is not the request on record.")
        with self.agent.waiting_for_person():
            answer = await ask_here(
                self.agent.remote_answers, event.seq, request, self._services.approve
            )
        if answer:
            self._allowed[event.seq] = request
        if isinstance(answer, Rule):
            return msg.Approval(True, rule=answer)
        return msg.Approval(bool(answer), reason=getattr(answer, "reason", None))

    async def _end_requests(self) -> None:
        """End what the last host has left open: requests, and the attempt of the children."""
        self._release_draw()
        for task in (*self._open.values(), *self._once.values()):
            task.cancel()
        await self._attempt.leave(msg.LeaveAttempt(failed=True))


def _is_command(event: Event) -> bool:
    fact = event.fact if event.type == TYPES[ToolStarted] else None
    return isinstance(fact, ToolStarted) and fact.tool in COMMAND_TOOLS


async def _settled(future: asyncio.Future[Any]) -> None:
    await asyncio.wait([future])
    future.exception()
