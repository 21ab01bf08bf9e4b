"""The runs that this process works on: begin them, resume them, end them."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from retinue.domain.agent_spec import AgentSpec, RequestedOutput, RequestedPermissions
from retinue.domain.agent_state import ROOT_ID
from retinue.domain.budget import Budget, Limits, least
from retinue.domain.contract import title_of
from retinue.domain.drafting import ContractDrafter
from retinue.domain.events import (
    ClockGapDetected,
    FilesChanged,
    ForkOrigin,
    RunResumed,
    RunStarted,
    TasksSubmitted,
)
from retinue.domain.grant import Grant, Mode, intersect_grants
from retinue.domain.lifecycle import State
from retinue.domain.permissions import Effects
from retinue.domain.plan.outcome import RunResult
from retinue.domain.result import Status
from retinue.domain.role import Role
from retinue.domain.tool_names import select_names
from retinue.errors import (
    RecoveryError,
    RunError,
    RunSuspended,
    StoreError,
    UsageError,
    WorkspaceError,
)
from retinue.ports.clock import ClockGap
from retinue.ports.file_tree import ChangeHistory
from retinue.ports.person import Listeners
from retinue.ports.store import RunLock, RunLocks
from retinue.runtime.agent.agent import Agent
from retinue.runtime.agent.prompts import Prompts, profile_list
from retinue.runtime.core.journal import JournalHead
from retinue.runtime.core.task_group import run_to_completion
from retinue.runtime.delegation.attachments import (
    NOTHING_ATTACHED,
    Attached,
    NamedData,
    attach_all,
)
from retinue.runtime.delegation.registry import AgentNumbers
from retinue.runtime.delegation.task import Task, check_not_empty, check_unicode, encode_task
from retinue.runtime.delegation.task_resolver import fit_budget, fit_role, server_notes
from retinue.runtime.history.fork_point import files_at, find_fork_point
from retinue.runtime.history.recovery import RecoveredRun, recover
from retinue.runtime.history.session import (
    NEW,
    Session,
    earlier_session,
    fork_session,
    load_session,
)
from retinue.runtime.history.undo import Write
from retinue.runtime.integration.checks import copy_names
from retinue.runtime.run.program import PROGRAM, program_error, program_outcome
from retinue.runtime.run.run import MODEL_LED, PLAN, PROGRAM_LED, STOPPED_BY_USER, Run
from retinue.runtime.services import Services
from retinue.threads import in_thread_shielded
from retinue.version import VERSION

T = TypeVar("T")

MESSAGE_POLL_S = 0.2
MIN_RECORDED_GAP_S = 5.0
NO_PLAN = (
    "Run {run_id} ended before its plan was recorded (or an earlier version wrote it); there is"
    " nothing to resume. `retinue run --plan FILE` runs the plan."
)
LEFT = "its process is gone"
ANY_ANSWER, ANY_PERMISSIONS = RequestedOutput(), RequestedPermissions()
COMPACT = "Sum up the conversation so far."
CONTINUE = "Continue with your task."


class Runs:
    """Open runs. The caller that begins or resumes a run also ends it, with `run_to_end`."""

    def __init__(self, services: Services) -> None:
        self._policy = services.policy
        self._services = services
        self._open: dict[str, Run] = {}
        self._program: Run | None = None
        """The run that the program leads, from its first task on."""
        self._task_count = 0
        self._has_runs = asyncio.Event()
        self.numbers: AgentNumbers | None = None
        """Numbers that all runs share; None if each run, or session, has its own."""

    def agents(self) -> Iterator[Agent]:
        for run in self._open.values():
            yield from run.registry.open.values()

    def find_agent(self, agent_id: str, run_id: str | None) -> tuple[Run, Agent]:
        """The open agent with that id, and its run. Raises UsageError."""
        found = [
            (run, agent)
            for run in self._open.values()
            if run_id in (None, run.id) and (agent := run.registry.open.get(agent_id))
        ]
        if len(found) != 1:
            raise UsageError(
                f"No agent {agent_id!r} is at work."
                if not found
                else f"Several runs have an agent {agent_id!r}; say which with run_id."
            )
        return found[0]

    def writer(self, run_id: str) -> Write | None:
        """Records events of an open run; None if the run is not open in this process."""
        run = self._open.get(run_id)
        return None if run is None else run.record_durably

    async def handle_messages(self) -> None:
        """Handle messages of other processes to the open runs, forever."""
        while True:
            await self._has_runs.wait()
            await self._services.clock.sleep(MESSAGE_POLL_S)
            for run in list(self._open.values()):
                run.handle_messages()

    def handle_clock_gap(self, gap: ClockGap) -> None:
        """Exclude time in which the process was stalled from the agents' silence; record it."""
        now = self._services.clock.monotonic()
        for agent in self.agents():
            activity = agent.activity
            activity.last_seen = min(now, activity.last_seen + gap.stalled_s)
        if max(gap.stalled_s, abs(gap.jumped_s)) >= MIN_RECORDED_GAP_S:
            for run in self._open.values():
                run.record(ClockGapDetected(stalled_s=gap.stalled_s, jumped_s=gap.jumped_s))

    def set_cancel_reason(self, reason: str) -> None:
        """Say why all tasks are about to be cancelled."""
        for run in self._open.values():
            run.runner.cancel_reason = reason

    def suspend(
        self, reason: str, when_idle: Callable[[], None] | None, run_id: str | None = None
    ) -> None:
        """Suspend one run, or all. Call `when_idle` when no agent of them is busy any more."""
        runs = [run for run in self._open.values() if run_id in (None, run.id)]
        busy = len(runs)

        def run_is_idle() -> None:
            nonlocal busy
            busy -= 1
            if busy == 0 and when_idle is not None:
                when_idle()

        for run in runs:
            run.suspension.request(reason, run_is_idle)
        if not runs and when_idle is not None:
            when_idle()

    # Begin

    async def begin_model_led(
        self,
        task: str,
        session: str | None,
        context: str = "",
        files: Sequence[str | NamedData] = (),
        *,
        output: RequestedOutput = ANY_ANSWER,
        listeners: Listeners | None = None,
        run_id: str | None = None,
        tools: Sequence[str] | None = None,
    ) -> Run:
        """Begin a run whose root is a model; with `tools`, it has only those. Raises UsageError."""
        check_not_empty(task)
        names = [file if isinstance(file, str) else file.name for file in files]
        check_unicode(task=task, context=context, context_files="".join(names))
        services, policy = self._services, self._policy
        served = await services.models.served(policy.model)
        attached = await attach_all(
            services.file_tree.workspace(policy.directory),
            context=context,
            files=files,
            max_tokens=fit_budget(policy.budget, served).context_tokens // 2,
            served=served,
            outside=True,
        )
        earlier = (
            NEW
            if session is None
            else await load_session(services.storage.store, services.storage.run_locks, session)
        )
        role = fit_role(policy.lead, served)
        prompts = Prompts(services.file_tree.workspace(policy.directory))
        instructions, _ = await prompts.assemble(role)
        delegates = policy.delegation and policy.mode is not Mode.PLAN
        profiles = profile_list(services.roles.values()) if delegates else ""
        text = "\n\n".join(filter(None, (instructions, profiles)))
        return self.begin(
            MODEL_LED,
            task,
            role,
            text,
            earlier,
            attached,
            output=output,
            listeners=listeners,
            run_id=run_id,
            tools=tools,
        )

    async def begin_fork(
        self,
        run_id: str,
        agent: str,
        at: int | str | None,
        tell: str,
        limits: Limits,
        *,
        new_budget: bool,
        tools: Sequence[str] | None,
    ) -> Run:
        """Begin a run that starts from a moment of an agent. Raises RunError or UsageError."""
        check_unicode(tell=tell)
        services, policy = self._services, self._policy
        store = services.storage.store
        found = await find_fork_point(store, run_id, agent, at)
        contract, id = found.contract, found.agent.id
        had, execution = contract.permissions, contract.execution
        if policy.mode.rank > had.mode.rank:
            name = f"Run {found.run_id}" if id == ROOT_ID else f"{id} of run {found.run_id}"
            raise UsageError(f"{name} had mode {had.mode}; a fork of it cannot have {policy.mode}.")
        effects = services.tools.effects
        if unknown := select_names(tools or (), effects)[1]:
            raise UsageError(
                f"Unknown tool {unknown[0]!r}; there are: {', '.join(sorted(effects))}."
            )
        files, base = await files_at(services.history, found)
        origin = ForkOrigin(
            run_id=found.run_id,
            seq=found.seq,
            hash=found.hash,
            files=files,
            agent_id=id,
            base=base,
        )
        await services.models.served(policy.model)
        budget = found.budget_left
        if new_budget:
            budget = policy.budget if id == ROOT_ID else execution.budget
        sampling = policy.sampling
        if policy.model == execution.model and execution.sampling:
            sampling = sampling.over(execution.sampling)
        return self.begin(
            MODEL_LED,
            tell or CONTINUE,
            Role(name=execution.role, description="", instructions="", sampling=sampling),
            execution.instructions,
            await fork_session(store, origin),
            budget=limits.applied_to(least(policy.budget, budget)),
            output=RequestedOutput(
                schema=contract.outputs.output_schema,
                checks=contract.outputs.checks,
                success_criteria=contract.step.success_criteria,
            ),
            tools=tools,
            most=had,
            permissions=RequestedPermissions(scope=contract.step.scope, directory=found.directory),
            origin=origin,
        )

    def begin(
        self,
        kind: str,
        task: str,
        role: Role = PROGRAM,
        instructions: str = "",
        session: Session = NEW,
        attached: Attached = NOTHING_ATTACHED,
        budget: Budget | None = None,
        output: RequestedOutput = ANY_ANSWER,
        listeners: Listeners | None = None,
        run_id: str | None = None,
        tools: Sequence[str] | None = None,
        most: Grant | None = None,
        permissions: RequestedPermissions = ANY_PERMISSIONS,
        origin: ForkOrigin | None = None,
    ) -> Run:
        """Begin a run, and record its root, which gets no more than `most`. Synchronous."""
        run_id, policy, services = run_id or new_run_id(), self._policy, self._services
        if listeners is not None:
            services = msgspec.structs.replace(services, listeners=listeners)
        effects, served = services.tools.effects, services.models.known(policy.model)
        spec = AgentSpec(
            role=role,
            task=task,
            context=attached.text,
            images=attached.images,
            permissions=permissions,
            output=output,
            notes=(*policy.notes, *server_notes(served, budget or policy.budget)),
        )
        budget = fit_budget(budget or policy.budget, served)
        user = policy.authority(run_id, task, effects, tuple(services.roles), budget=budget)
        delegates = kind != MODEL_LED or policy.delegation
        grant = _root_grant(user.grant, effects, most=most, tools=tools, delegates=delegates)
        user = msgspec.structs.replace(user, grant=grant)
        drafted = ContractDrafter(effects).draft_root(spec, user, instructions=instructions)
        if kind == MODEL_LED:
            contract = drafted.contract
            window = contract.execution.max_context_tokens
            omitted = services.tools.omitted_tool_notes(contract.permissions, window=window)
            drafted = msgspec.structs.replace(drafted, notes=(*drafted.notes, *omitted))
        numbers = self.numbers or AgentNumbers()
        run = Run(run_id, services, policy.directory, session, numbers=numbers)
        self._opened(run)
        run.start(
            RunStarted(
                kind=kind,
                task=task,
                directory=policy.directory,
                model=policy.model,
                mode=policy.mode,
                retinue_version=VERSION,
                sandbox=_tier(services),
                earlier=session.runs,
                tainted=session.tainted,
                read_untrusted=session.read_untrusted,
                by=services.person.origin,
                traceparent=services.telemetry.caller,
                origin=origin,
            ),
            drafted,
        )
        run.root.convert_output = output.convert
        return run

    def submit(
        self, tasks: Sequence[Task], max_concurrent: int, *, race: str = ""
    ) -> tuple[Run, int]:
        """Record tasks of a program before any of them is done. The first ones begin its run.

        Returns the run, and the number of the first task. For the candidates of a race, `race` is
        its rule. Synchronous: two coroutines may submit the first tasks at the same moment.
        """
        if self._program is None:
            title = title_of(tasks[0].task)
            if race:
                title = f"race of {len(tasks)}: {title}"
            elif len(tasks) > 1:
                title = f"{len(tasks)} tasks: {title}"
            self._program = self.begin(PROGRAM_LED, title)
        first, self._task_count = self._task_count, self._task_count + len(tasks)
        recorded = tuple(map(encode_task, tasks))
        self._program.root.record(
            TasksSubmitted(first=first, tasks=recorded, max_concurrent=max_concurrent, race=race)
        )
        return self._program, first

    def _opened(self, run: Run) -> None:
        self._open[run.id] = run
        self._has_runs.set()

    async def reopen(self, run_id: str) -> tuple[Run, RecoveredRun]:
        """Resume a run that another process left. Return it, and what its journal says.

        Raises RunError if the run is over, or if another process works on it, and WorkspaceError
        if another process uses a working copy of the run.
        """
        services = self._services
        row = await services.storage.store.run(run_id)
        run_lock = await _acquired(services.storage.run_locks, row.id)
        try:
            found = await recover(services.storage.store, row.id)
            if found.started.kind == PLAN and not _is_adopted(found):
                raise RecoveryError(NO_PLAN.format(run_id=row.id))
            session = await earlier_session(services.storage.store, found.started)
            # Before anything is recorded: the owner may live although its lock file was deleted.
            names = [name for id in found.state.agents for name in copy_names(row.id, id)]
            await services.file_tree.check_unused(names)
            # A killed process may have left copies of closed agents.
            closed = [id for id, agent in found.state.agents.items() if agent.state is State.CLOSED]
            await services.file_tree.discard([n for id in closed for n in copy_names(row.id, id)])
            with suppress(WorkspaceError):  # Without git there are no recorded changes.
                found = await _with_unrecorded(found, services.history)
        except BaseException:
            run_lock.release()
            raise
        services.telemetry.resume(row.id, found.started)
        directory = found.contracts[ROOT_ID].execution.working_directory
        head = JournalHead.of(found.row)
        numbers = self.numbers or AgentNumbers()
        run = Run(
            row.id, services, directory, session, numbers=numbers, run_lock=run_lock, head=head
        )
        self._opened(run)
        run.resume(
            RunResumed(
                retinue_version=VERSION,
                sandbox=_tier(services),
                by=services.person.origin,
                traceparent=services.telemetry.caller,
            ),
            found,
        )
        return run, found

    async def cancel_suspended(self, run_id: str, agent_id: str = ROOT_ID) -> None:
        """Cancel a run that no process works on, or one of its agents and its descendants.

        Their changes in working copies are kept. Raises like `reopen`.
        """
        run, found = await self.reopen(run_id)
        try:
            agent = run.registry.open.get(agent_id)
            if agent is None:
                await run.finish_suspended(found.state.suspend_reason or LEFT)
                raise RunError(f"{agent_id} of run {run.id} has already ended, or never existed.")
            agent.stop(STOPPED_BY_USER)
            run.runner.cancel_reason = STOPPED_BY_USER
            await run.runner.cancel_restored(agent)
            if agent is run.root:
                await run.finish(Status.CANCELLED, STOPPED_BY_USER)
            else:
                await run.finish_suspended(found.state.suspend_reason or LEFT)
        finally:
            self._forget(run)

    # End

    async def run_model_led(self, run: Run, *, only_summarize: bool = False) -> RunResult:
        """Have the model of the root work until the run ends."""

        async def work() -> tuple[None, Status, str]:
            run.runner.only_summarize = only_summarize
            await run.runner.run(run.root)
            outcome = run.outcome
            return None, outcome.status, outcome.error or ""

        await self.run_to_end(run, work())
        return run.outcome

    async def run_to_end(self, run: Run, work: Coroutine[Any, Any, tuple[T, Status, str]]) -> T:
        """Await `work`, and end the run with the outcome that it returns, or by what it raises."""
        try:
            value, status, reason = await work
        except BaseException as error:
            await run_to_completion(self._end_by_error(run, error))
            raise
        else:
            await run.finish(status, reason)
            return value
        finally:
            self._forget(run)

    def _forget(self, run: Run) -> None:
        self._open.pop(run.id)
        if not self._open:
            self._has_runs.clear()

    async def end_program_led(self, error: BaseException | None) -> None:
        """End the run of a program that is done, or has raised `error`; it may have begun none."""
        if (run := self._program) is None:
            return
        if error is not None:
            await self._end_by_error(run, error)
        elif (failure := run.registry.endpoint_failure) is not None:
            await run.finish_suspended(failure)
        else:
            await run.finish(*program_outcome(run))

    async def _end_by_error(self, run: Run, error: BaseException) -> None:
        """Finish a run that an exception ended, or leave it suspended if it can be resumed.

        It can be resumed if it was being suspended, if a model endpoint is gone, if its journal
        failed (then its end is not on record), and if a program raised while its children were
        running.
        """
        if isinstance(error, StoreError) or (
            isinstance(error, RunSuspended) and error.run_id == run.id
        ):
            await run.finish_suspended(str(error))
        elif not isinstance(error, asyncio.CancelledError):
            reason = program_error(error)
            if run.registry.open_children:
                await run.finish_suspended(reason)
            else:
                await run.finish(Status.ERROR, reason)
        elif run.suspension.reason is not None:
            await run.finish_suspended(run.suspension.reason)
        else:
            await run.finish(Status.CANCELLED, run.runner.cancel_reason)


def _root_grant(
    grant: Grant,
    effects: Effects,
    *,
    most: Grant | None,
    tools: Sequence[str] | None,
    delegates: bool,
) -> Grant:
    """The user's grant, narrowed to `most` and to `tools`."""
    if not delegates:
        grant = msgspec.structs.replace(grant, can_spawn_children=False)
    if most is not None:
        grant = intersect_grants(grant, most)
    if tools is None:
        return grant
    kept = select_names(tools, effects)[0]
    return msgspec.structs.replace(
        grant,
        allowed_tools=tuple(kept.intersection(grant.allowed_tools)),
        ask_tools=tuple(kept.intersection(grant.ask_tools)),
    )


def _is_adopted(found: RecoveredRun) -> bool:
    plan = found.state.plan
    return plan is not None and bool(plan.rounds) and plan.rounds[0].max_concurrent > 0


def _tier(services: Services) -> str:
    return "none" if services.sandbox is None else services.sandbox.tier


def new_run_id() -> str:
    """A random id: short enough to type, unique in a project (40 bits), without look-alikes."""
    return "".join(secrets.choice("23456789abcdefghjkmnpqrstuvwxyz") for _ in range(8))


async def _acquired(run_locks: RunLocks, run_id: str) -> RunLock:
    """Lock a run without blocking the event loop: other runs may be at work, and a server slow."""
    found: list[RunLock] = []
    try:
        await in_thread_shielded(lambda: found.append(run_locks.acquire(run_id)))
    except asyncio.CancelledError:
        for lock in found:
            lock.release()
        raise
    return found[0]


async def _with_unrecorded(found: RecoveredRun, history: ChangeHistory) -> RecoveredRun:
    """Add the changes of the user's files that a killed process had made and not recorded."""
    changes = await history.changes(found.row.id)
    last = max(found.last_change, *(change.number or 0 for change in changes), 0)
    recorded = {fact.commit for _, fact in found.state.file_changes}
    unrecorded = [
        (change.agent_id, FilesChanged(number=change.number, commit=change.commit, files=files))
        for change in changes
        # An earlier version did not name the agent.
        if change.kind == "steps" and change.number and change.agent_id in found.state.agents
        if change.commit not in recorded
        for files in [await history.files(change)]
    ]
    return msgspec.structs.replace(found, last_change=last, unrecorded=tuple(unrecorded))
