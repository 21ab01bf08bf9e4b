"""A running agent: its contract, its account, its recorded state and its signs of life.

The parts are separated by who writes them. The identity (`id`, `path`, `contract`, …) is constant.
`state` changes only by the events that the agent records. The lifecycle and the watchdog write
`activity`; the integration of its work writes `files`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from retinue.domain.account import Account
from retinue.domain.agent_state import AgentState
from retinue.domain.contract import Contract
from retinue.domain.events import Event, Fact
from retinue.domain.lifecycle import State
from retinue.domain.remote_commands import READS_NO_MORE
from retinue.domain.result import Conflict, Result
from retinue.domain.resume_point import FROM_PARENT, FROM_USER, ResumePoint
from retinue.errors import RunSuspended, UsageError, WorkspaceError
from retinue.ports.clock import Clock
from retinue.ports.file_tree import ChangeRecorder, FileTree
from retinue.runtime.agent.remote_answers import RemoteAnswers
from retinue.runtime.core.journal import AgentJournal
from retinue.runtime.core.suspension import Suspension


@dataclass(slots=True)
class Activity:
    """Signs that an agent makes progress, and whether it was told to stop.

    Times are those of the monotonic clock.
    """

    started_at: float
    last_seen: float
    deadline: asyncio.Timeout | None = None
    """End of the current attempt; the watchdog and `Agent.stop` bring it forward."""
    silent_s: float | None = None
    """How long the agent was silent when the watchdog noticed it."""
    timed_out: bool = False
    """Whether a host says that the current attempt ran out of time."""
    given_up: bool = False
    """Whether the watchdog ended the current attempt."""
    waits: int = 0
    """Number of things the agent waits for that may take long: a person, a command, a queue."""
    stop_reason: str | None = None
    """Why the agent was stopped for good; a stopped agent does not run again."""
    paused: bool = False
    """Whether the agent waits for its run to be suspended."""
    questions: int = 0
    """Number of questions to a person that the agent and its descendants wait for."""
    asked_at: float = 0.0
    """When the first of these questions was asked."""
    asked_s: float = 0.0
    """Seconds in which questions were open. The duration of the agent leaves them out."""
    release_deadline: Callable[[], None] | None = None
    """Restarts the time limit of the current attempt, which is on hold while a person is asked."""
    endpoint_failure: str = ""
    """Why the agent is left open until the run is resumed: a model endpoint is gone."""
    awaited_by: list[asyncio.Future[None]] = field(default_factory=list)
    """Wake these if the agent is left open."""


@dataclass(slots=True)
class AgentFiles:
    """Where an agent works, and what stands between its work and its parent's files."""

    tree: FileTree
    recorder: ChangeRecorder | None = None
    """Records changes of the user's own files; None if the agent cannot change them."""
    conflicts: tuple[Conflict, ...] = ()
    to_resolve: tuple[str, ...] = ()
    """Paths with conflict markers in its copy, from the kept work that it continues."""
    send_changes: Callable[[str], Awaitable[None]] | None = None
    """On a host without the disk of the run: sends the changed files to the run."""


async def copy_snapshot(tree: FileTree) -> str:
    """The commit with the files of a copy as they are now, from which a run can be forked.

    "" for the user's own files, whose changes are recorded one by one, or if git fails.
    """
    if tree.location.folder:
        with suppress(WorkspaceError):
            return await tree.snapshot(None)
    return ""


class RemoteControl(Protocol):
    """Passes on to a host what happens to an agent whose attempts run there."""

    def message(self, source: str, text: str) -> None: ...

    def stop(self, reason: str) -> None: ...


class Agent:
    """One agent of a run, from its contract to its closing."""

    def __init__(
        self,
        state: AgentState,
        contract: Contract,
        parent: Agent | None,
        *,
        account: Account,
        tree: FileTree,
        cache_key: str | None,
        journal: AgentJournal,
        clock: Clock,
        suspension: Suspension,
        remote_answers: RemoteAnswers,
        on_progress: Callable[[str, str, str, str], None] | None = None,
    ) -> None:
        self.id: Final = state.id
        self.path: Final = state.path
        self.depth: Final = state.depth
        self.contract: Final = contract
        self.parent: Final = parent
        self.cache_key: Final = cache_key
        self.account: Final = account
        self.suspension: Final = suspension
        self.remote_answers: Final = remote_answers
        self.state: Final = state
        now = clock.monotonic()
        self.activity: Final = Activity(now, now)
        self.files: Final = AgentFiles(tree)
        self.inbox: list[tuple[str, str]] = []
        """Messages for the agent's next turn, each with its source."""
        self.is_ending = state.state is State.WAITING_FOR_MERGE
        """Whether the conversation is over, so that messages are not read any more."""
        self.last_text = ""
        """Last text of the model in this attempt; the response if the attempt ends early."""
        self.convert_output: Callable[[Any], Any] | None = None
        """Further check of an answer that fits the output schema; see `RequestedOutput`."""
        self.earlier_tool_limits: tuple[tuple[str, ...], ...] = ()
        """For the root of a fork, `tool_limits` of the root that it continues."""
        self.result: Result | None = None
        self.child_names: Final[dict[str, int]] = {}
        """Number of children by name, for their paths."""
        self.resume_point: ResumePoint | None = None
        """Where an earlier process left the agent, until this process has resumed it."""
        self.created: Event | None = None
        """The event of its creation; None if an earlier process has created it."""
        self.remote: RemoteControl | None = None
        """The host that runs its attempts; None if this process runs them."""
        self._ancestors: tuple[Agent, ...] = () if parent is None else (parent, *parent._ancestors)
        self._journal = journal
        self._clock = clock
        self._on_progress = on_progress

    @property
    def role(self) -> str:
        return self.contract.execution.role

    @property
    def stop_reason(self) -> str | None:
        return self.activity.stop_reason

    @property
    def inherited_stop_reason(self) -> str | None:
        """Why the agent or one of its ancestors was stopped; None if they were not."""
        reasons = (node.activity.stop_reason for node in (self, *self._ancestors))
        return next((reason for reason in reasons if reason is not None), None)

    def touch(self) -> None:
        """Note a sign of life. The watchdog counts it for the ancestors that wait for the agent."""
        self.activity.last_seen = self._clock.monotonic()

    def report_progress(self, tool: str, text: str) -> None:
        """Say how far long work for the agent is, which is a sign of life. `tool` may be ""."""
        self.touch()
        if self._on_progress is not None:
            self._on_progress(self.contract.parent.run_id, self.id, tool, text)

    def stop(self, reason: str) -> None:
        """Stop the agent for good: end its attempt now and allow no other."""
        activity = self.activity
        if activity.stop_reason is None and self.result is None:
            activity.stop_reason = reason
            if activity.deadline is not None:
                activity.deadline.reschedule(asyncio.get_running_loop().time())
            if self.remote is not None:
                self.remote.stop(reason)

    def leave_open(self, reason: str) -> None:
        """Wait for a model endpoint, without a task, until the run is resumed."""
        self.activity.endpoint_failure = reason
        for waiter in self.activity.awaited_by:
            if not waiter.done():
                waiter.set_result(None)

    async def pause(self) -> None:
        """Wait until this task is cancelled, because the run is being suspended.

        Raises RunSuspended instead if nothing would cancel the task.
        """
        self.activity.paused = True
        self.suspension.check_idle()
        if self.suspension.raises:
            reason = self.suspension.reason or ""
            raise RunSuspended(reason, run_id=self.contract.parent.run_id)
        with self.waiting():
            await asyncio.Event().wait()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Pause the watchdog for this agent and its ancestors."""
        for node in (self, *self._ancestors):
            node.activity.waits += 1
        try:
            yield
        finally:
            for node in (self, *self._ancestors):
                node.activity.waits -= 1
            self.touch()

    @contextmanager
    def waiting_for_person(self) -> Iterator[None]:
        """Like `waiting`, and stop the time limits of this agent's and its ancestors' attempts."""
        activities = [node.activity for node in (self, *self._ancestors)]
        for activity in activities:
            activity.questions += 1
            if activity.questions == 1:
                activity.asked_at = self._clock.monotonic()
                if activity.deadline is not None:
                    activity.release_deadline = self._clock.hold(activity.deadline)
        try:
            with self.waiting():
                yield
        finally:
            for activity in activities:
                activity.questions -= 1
                if activity.questions:
                    continue
                activity.asked_s += self._clock.monotonic() - activity.asked_at
                if activity.release_deadline is not None:
                    activity.release_deadline()
                    activity.release_deadline = None

    def record(self, fact: Fact, *, attempt: int | None = None) -> Event:
        """Record an event of this agent and apply it to its state."""
        self.touch()
        state = self.state
        number = state.attempt if attempt is None else attempt
        event = self._journal.record(fact, self.id, state.parent_id, number)
        state.apply(event, fact)
        return event

    def durable(self) -> Awaitable[None]:
        """Wait until everything that was recorded so far is written. Raises StoreError."""
        return self._journal.durable()

    def restore(self, resume_point: ResumePoint) -> None:
        """Continue where an earlier process left the agent."""
        self.resume_point = resume_point
        self.account.charge(self.state.spent)
        self.last_text = self.state.last_text
        self.inbox = [(FROM_PARENT, text) for text in resume_point.unread]

    def receive(self, text: str, *, source: str) -> None:
        """Take a message for the next turn. Raises UsageError if there is none."""
        if self.is_ending:
            raise UsageError(READS_NO_MORE.format(agent=self.id))
        self.inbox.append((source, text))
        if self.remote is not None:
            self.remote.message(source, text)

    @property
    def unread_messages(self) -> tuple[str, ...]:
        """Messages of the user or the parent that were part of no turn."""
        return tuple(text for source, text in self.inbox if source in (FROM_PARENT, FROM_USER))

    def next_child_path(self, name: str) -> str:
        """The path of the next child with that name, such as `root/tester.2`."""
        number = self.child_names[name] = self.child_names.get(name, 0) + 1
        return f"{self.path}/{name}.{number}"

    @property
    def step_path(self) -> str:
        """Step numbers from below the root: `3`, or `3.0` for the first child of step 3."""
        own = str(self.contract.parent.step_idx)
        parent = self.parent
        return own if parent is None or parent.depth == 0 else f"{parent.step_path}.{own}"
