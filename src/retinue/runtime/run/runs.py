"""The runs that this process works on: they are opened, taken up again, and ended here."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from retinue.domain.agent_state import ROOT_ID
from retinue.domain.budget import Budget
from retinue.domain.contract import (
    Contract,
    Execution,
    Outputs,
    Parent,
    Step,
    WorkspaceKind,
    execution_limits,
    title_of,
)
from retinue.domain.drafting import DraftedContract, root_grant, without_delegation, workspace_for
from retinue.domain.events import RunResumed, RunStarted
from retinue.domain.grant import Mode
from retinue.domain.lifecycle import State
from retinue.domain.plan.outcome import RunResult
from retinue.domain.result import Status
from retinue.domain.role import Role
from retinue.errors import RecoveryError, StoreError, UsageError, WorkspaceError
from retinue.ports.clock import ClockGap
from retinue.ports.run_lock import RunLock
from retinue.runtime.agent.agent import Agent
from retinue.runtime.agent.context_window import fitted, notes_on, within
from retinue.runtime.agent.prompts import Prompts, listed_profiles
from retinue.runtime.core.task_group import run_to_completion
from retinue.runtime.delegation.attachments import enclose
from retinue.runtime.delegation.task import check_task, check_text
from retinue.runtime.history.recovery import RecoveredRun, recover
from retinue.runtime.history.session import NEW, Session, load_session, session_of
from retinue.runtime.history.undo import Write
from retinue.runtime.integration.checks import copy_names
from retinue.runtime.run.run import Run
from retinue.runtime.services import Services
from retinue.version import VERSION

T = TypeVar("T")

LISTEN_S = 0.2
TELL_S = 5.0
NOT_YOURS = (
    "Run {run_id} was not begun by you on this machine (or by an earlier version), so it is not"
    " gone on with. `retinue show {run_id}` shows it; begin a new one."
)
LED, BY_PROGRAM, PLAN, PLANNING = "run", "program", "plan", "planning"
NO_PLAN = (
    "Run {run_id} was ended before its plan was on record (or is of an earlier version); there is"
    " nothing to resume. `retinue run --plan FILE` runs the plan."
)
COMPACT = "Sum up the conversation so far."

PROGRAM = Role(
    name="program",
    description="A root that is no model: the calling program gives the orders.",
    instructions="",
)


class Runs:
    """Those under way. Whoever opens one sees to it that it is ended, and then forgotten."""

    def __init__(self, around: Services) -> None:
        self._policy = around.policy
        self._around = around
        self._open: dict[str, Run] = {}
        self._under_way = asyncio.Event()

    def agents(self) -> Iterator[Agent]:
        for run in self._open.values():
            yield from run.agents

    def at_work(self, agent_id: str, run_id: str | None) -> tuple[Run, Agent]:
        """The one agent of that name, and its run. Raises UsageError."""
        found = [
            (run, agent)
            for run in self._open.values()
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

    def writer(self, run_id: str) -> Write | None:
        """The journal of a run that is at work here."""
        run = self._open.get(run_id)
        return None if run is None else run.note

    async def listen(self) -> None:
        """Hear what other processes want of the runs under way, for ever."""
        while True:
            await self._under_way.wait()
            await self._around.clock.sleep(LISTEN_S)
            for run in list(self._open.values()):
                run.listen()

    def lapse(self, lapse: ClockGap) -> None:
        """Hold nothing against anybody that happened while they could not run; and tell of it."""
        now = self._around.clock.monotonic()
        for agent in self.agents():
            agent.seen_at = min(now, agent.seen_at + lapse.stalled_s)
        if max(lapse.stalled_s, abs(lapse.jumped_s)) >= TELL_S:
            for run in self._open.values():
                run.lapse(lapse)

    def stop(self, why: str) -> None:
        """Say why everything is about to be cancelled."""
        for run in self._open.values():
            run.stop(why)

    def suspend(self, why: str, then: Callable[[], None] | None, run_id: str | None = None) -> None:
        """Have everybody pause, of one run or of all; `then` is called when nobody has anything
        more to say."""
        runs = [run for run in self._open.values() if run_id in (None, run.id)]
        left = len(runs)

        def one_less() -> None:
            nonlocal left
            left -= 1
            if left == 0 and then is not None:
                then()

        for run in runs:
            run.suspend(why, one_less)
        if not runs and then is not None:
            then()

    # Their beginning

    async def open(
        self, task: str, role: Role, session: str | None, context: str, files: Sequence[str]
    ) -> Run:
        """A run that a model is to lead. Raises UsageError."""
        check_task(task)
        check_text(task=task, context=context, context_files="".join(files))
        around, policy = self._around, self._policy
        given, left_out = await enclose(
            around.file_tree.workspace(policy.directory),
            context=context,
            files=files,
            max_tokens=policy.budget.max_context_tokens // 2,
        )
        if left_out and files:
            raise UsageError("; ".join(left_out) + ".")
        storage, earlier = around.storage, NEW
        if session is not None:
            earlier = await load_session(storage.store, storage.run_locks, session)
        role = fitted(role, await around.models.served(policy.model))
        prompts = Prompts(around.file_tree.workspace(policy.directory))
        instructions, _ = await prompts.assemble(role)
        delegates = policy.delegation and policy.mode is not Mode.PLAN
        profiles = listed_profiles(around.roles.values()) if delegates else ""
        text = "\n\n".join(filter(None, (instructions, profiles)))
        return self.begin(LED, task, role, text, earlier, given)

    def begin(
        self,
        kind: str,
        task: str,
        role: Role = PROGRAM,
        instructions: str = "",
        session: Session = NEW,
        context: str = "",
        budget: Budget | None = None,
    ) -> Run:
        """A run with its root on record. Nothing is awaited."""
        run_id, policy, around = new_run_id(), self._policy, self._around
        effects, served = around.tools.effects, around.models.known(policy.model)
        grant = root_grant(policy.mode, effects, roles=tuple(around.roles), depth=policy.max_depth)
        if kind == LED and not policy.delegation:
            grant = msgspec.structs.replace(grant, can_spawn_children=False)
        contract = Contract(
            parent=Parent(run_id=run_id, agent_id=None, step_idx=0, task_prompt=task),
            step=Step(title=title_of(task), description=task, context=context),
            permissions=without_delegation(grant, effects),
            execution=Execution(
                role=role.name,
                instructions=instructions,
                model=policy.model,
                working_directory=policy.directory,
                workspace=workspace_for(grant, effects, WorkspaceKind.SHARED),
                silence_ms=round(policy.silence_s * 1000),
                **execution_limits(within(budget or policy.budget, served)),  # type: ignore[arg-type]
            ),
            outputs=Outputs(
                report_path_pattern=around.policy.report_path_pattern,
                checks=policy.checks,
                on_conflict=policy.on_conflict,
            ),
        )
        notes = (*policy.notes, *notes_on(served))
        if kind == LED:
            window = contract.execution.max_context_tokens
            notes += around.tools.omitted_tool_notes(contract.permissions, window=window)
        run = self._open[run_id] = Run(run_id, DraftedContract(contract, notes), around, session)
        self._under_way.set()
        run.start(
            RunStarted(
                kind=kind,
                task=task,
                directory=policy.directory,
                model=policy.model,
                mode=policy.mode,
                retinue_version=VERSION,
                sandbox=_tier(around),
                earlier=session.runs,
                tainted=session.tainted,
                heard_untrusted=session.heard_untrusted,
                seal=around.sign_run(run_id),
            )
        )
        return run

    async def reopen(self, run_id: str) -> tuple[Run, RecoveredRun]:
        """A run that another process has left, as it was left; and what is known of it.

        RunError if it is over, or another process works on it.
        """
        around = self._around
        row = await around.storage.store.run(run_id)
        run_lock = around.storage.run_locks.acquire(row.id)
        try:
            found = await recover(around.storage.store, row.id)
            seal = around.sign_run(row.id)
            if not seal or not secrets.compare_digest(found.started.seal, seal):
                raise RecoveryError(NOT_YOURS.format(run_id=row.id))
            if found.started.kind == PLAN and not _is_adopted(found):
                raise RecoveryError(NO_PLAN.format(run_id=row.id))
            session = await session_of(around.storage.store, found.started.earlier)
            # After a process that was killed: whoever is closed needs no copy.
            closed = [id for id, agent in found.state.agents.items() if agent.state is State.CLOSED]
            await around.file_tree.discard([n for id in closed for n in copy_names(row.id, id)])
            with suppress(WorkspaceError):  # Without git there are no steps.
                kept = await around.history.changes(row.id)
                # The number of one that was made, and is not on record, is not taken again.
                last = max(found.last_change, *(change.number or 0 for change in kept), 0)
                found = msgspec.structs.replace(found, last_change=last)
        except BaseException:
            run_lock.release()
            raise
        return self._resumed(found, session, run_lock), found

    def _resumed(self, found: RecoveredRun, session: Session, run_lock: RunLock) -> Run:
        around = self._around
        drafted = DraftedContract(found.contracts[ROOT_ID], found.state.agents[ROOT_ID].notes)
        run = Run(found.row.id, drafted, around, session, run_lock=run_lock, end=found.end)
        self._open[run.id] = run
        self._under_way.set()
        run.resume(RunResumed(retinue_version=VERSION, sandbox=_tier(around)), found)
        return run

    # Their end

    async def led(self, run: Run, *, sums_up: bool = False) -> RunResult:
        """What comes of a run that a model leads."""

        async def work() -> tuple[None, Status, str]:
            result = await run.lead(sums_up=sums_up)
            return None, result.status, result.error or ""

        await self.ended(run, work())
        return run.outcome

    async def ended(self, run: Run, work: Coroutine[Any, Any, tuple[T, Status, str]]) -> T:
        """Do `work`, and end the run with the outcome that it tells, or by what it raises."""
        try:
            value, status, reason = await work
        except BaseException as error:
            await run_to_completion(self._left(run, error))
            raise
        else:
            if run.stranded is not None:
                await run.leave(run.stranded)
            else:
                await run.finish(status, reason)
            return value
        finally:
            self.forget(run)

    async def adjourn(self, run: Run, error: BaseException | None) -> None:
        """End the run of a program that has nothing more to do, or has raised."""
        if error is not None:
            await self._left(run, error)
        else:
            await run.finish(*outcome(run))

    async def _left(self, run: Run, error: BaseException) -> None:
        """End a run that an exception has ended; one that was suspended can go on.

        So can one whose journal has failed, since what was meant to be its end is not on record;
        and one whose program has raised while children of it were at work.
        """
        if isinstance(error, StoreError):
            await run.leave(str(error))
        elif not isinstance(error, asyncio.CancelledError):
            why = ended_with(error)
            await (run.leave(why) if run.has_open_children else run.finish(Status.ERROR, why))
        elif run.suspended:
            await run.leave(run.why_suspended)
        else:
            await run.finish(Status.CANCELLED, run.why_stopped)

    def forget(self, run: Run) -> None:
        self._open.pop(run.id)
        if not self._open:
            self._under_way.clear()


def outcome(run: Run) -> tuple[Status, str]:
    """How a run has ended that a program led."""
    failed = run.failures
    if run.root.stop_reason is not None:
        return Status.CANCELLED, run.root.stop_reason
    if failed:
        return Status.ERROR, f"{failed} of {run.children + run.rejected} children failed"
    return Status.COMPLETED, ""


def ended_with(error: BaseException) -> str:
    return f"the program ended with {type(error).__name__}"


def _is_adopted(found: RecoveredRun) -> bool:
    plan = found.state.plan
    return plan is not None and bool(plan.rounds) and plan.rounds[0].max_concurrent > 0


def _tier(around: Services) -> str:
    return "none" if around.sandbox is None else around.sandbox.tier


def new_run_id() -> str:
    """Short enough to type, long enough to be unique in a project: 40 bits, no look-alikes."""
    return "".join(secrets.choice("23456789abcdefghjkmnpqrstuvwxyz") for _ in range(8))
