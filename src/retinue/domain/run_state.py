"""`fold(events)`: the state of a run. Interfaces, resume and sessions all read it from here.

Nothing but the journal is state. A `RunState` is built by applying its events in order. It is
mutable (a fan-out has ten thousand agents; copying them for each event would be quadratic), and
changes only through `apply`.

With `detailed`, the state also holds what only another process needs to continue the run: a
`ResumePoint` for each agent, the plan and the tasks of a program. Live views do without these, to
stay small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from retinue.domain import events as ev
from retinue.domain import permissions
from retinue.domain.agent_state import AgentState, plain_id
from retinue.domain.messages import Usage
from retinue.domain.plan.plan_state import PlanState
from retinue.domain.result import Status
from retinue.domain.resume_point import ResumePoint, WorkTime
from retinue.errors import UsageError

MESSAGE_TOOL = "agent_message"


@dataclass(slots=True)
class RunState:
    """One run, as far as its events tell. It changes only by `apply`; `fold` makes it.

    `agents` has the agents by id; the root is `a0`.

    ```python
    run = await rt.run("Look around.")
    state = retinue.fold([event async for event in rt.events(run.id)])
    assert (state.task, state.status) == ("Look around.", retinue.Status.COMPLETED)
    ```
    """

    detailed: bool = False
    id: str = ""
    started: ev.RunStarted | None = None
    """None if the journal was cleaned away."""
    kind: str = ""
    task: str = ""
    directory: str = ""
    model: str = ""
    mode: str = ""
    sandbox: str = ""
    earlier_runs: tuple[str, ...] = ()
    started_at: float = 0.0
    finished_at: float | None = None
    status: Status | None = None
    reason: str = ""
    suspend_reason: str | None = None
    """Why the run is suspended; None if it is not."""
    pruned: int = 0
    """How many of its events were cleaned away; one event with their outcome is left."""
    last_seq: int = 0
    last_at: float = 0.0
    """Time of the last event."""
    idle_s: float = 0.0
    """Seconds in which no process worked on the run, or the run waited for a person."""
    usage: Usage = field(default_factory=Usage)
    """Usage of all agents together."""
    undo_history: list[tuple[float, str]] = field(default_factory=list)
    """When the user has undone or redone changes, and which."""
    agents: dict[str, AgentState] = field(default_factory=dict)
    """Agents by id, in the order of their creation."""
    resume_points: dict[str, ResumePoint] = field(default_factory=dict)
    tasks: list[ev.TasksSubmitted] = field(default_factory=list)
    given_tasks: int = 0
    """Number of tasks that a program has given, started or not."""
    plan: PlanState | None = None
    file_changes: list[tuple[AgentState, ev.FilesChanged]] = field(default_factory=list)
    """Changes of the user's files, and who made them."""
    work_time: WorkTime = field(default_factory=WorkTime)

    @property
    def duration_s(self) -> float | None:
        """Time that processes worked on the run; None before its end."""
        if self.finished_at is None:
            return None
        return max(0.0, self.finished_at - self.started_at - self.idle_s)

    @property
    def is_open(self) -> bool:
        """Whether the run is neither over nor suspended: a process works on it, or was killed."""
        return self.status is None and self.suspend_reason is None and not self.pruned

    @property
    def root(self) -> AgentState | None:
        """The root agent; None before its creation."""
        return next(iter(self.agents.values()), None)

    def descendants(self, agent: AgentState) -> list[AgentState]:
        """The children of an agent, their children, and so on."""
        below = f"{agent.path}/"
        return [one for one in self.agents.values() if one.path.startswith(below)]

    def agent(self, name: str) -> AgentState:
        """The agent of that id or path. Raises UsageError."""
        for agent in self.agents.values():
            if name in (agent.id, agent.path):
                return agent
        known = ", ".join(f"{a.id} ({a.path})" for a in list(self.agents.values())[:10])
        raise UsageError(f"No agent {name!r} in run {self.id}; there are: {known}.")

    def apply(self, event: ev.Event) -> RunState:
        """Apply the next event. An illegal transition of an agent raises."""
        self.last_seq = event.seq
        if self.detailed:
            self.work_time.add(event)
        fact = event.fact
        change = CHANGES.get(type(fact))
        if change is not None:
            change(self, event, fact)
        else:
            self._change_agent(event, fact)
        self.last_at = event.time
        return self

    def _change_agent(self, event: ev.Event, fact: ev.Fact) -> None:
        agent = self.agents[event.agent_id]
        match fact:
            case ev.ModelReplied() | ev.ModelFailed():
                self.usage += fact.usage
            case ev.ToolFinished(tool=tool) if tool == MESSAGE_TOOL and not fact.failed:
                if (call := agent.pending_calls.get(fact.call_id)) is not None:
                    self._send(agent, call)
            case ev.ApprovalRequested() | ev.ToolStarted(tool=permissions.ASK_USER):
                self._change_questions(agent, 1, event.time)
            case ev.ToolFinished(tool=permissions.ASK_USER):
                self._change_questions(agent, -1, event.time)
            case ev.ApprovalDecided() if fact.request in agent.requests:
                self._change_questions(agent, -1, event.time)
            case ev.AgentClosed() | ev.AttemptStarted():  # Nobody answers these any more.
                self._change_questions(agent, -agent.questions, event.time)
            case ev.AgentPlaced():
                self._change_questions(agent, -len(agent.requests), event.time)
        agent.apply(event, fact)
        if isinstance(fact, ev.AgentClosed) and agent.parent_id is not None:
            self.agents[agent.parent_id].child_closed(agent)
        if self.detailed:
            point = self.resume_points[agent.id]
            point.apply(event, fact)
            match fact:
                case ev.AgentClosed() if agent.parent_id is not None:
                    # Only the root's conversation is read from here: `fold_agent` has a child's.
                    point.conversation.clear()
                case ev.FilesChanged():
                    self.file_changes.append((agent, fact))
                case ev.PlanAdopted() | ev.PlanStepStarted() | ev.PlanStepFinished():
                    self.plan = self.plan or PlanState()
                    self.plan.apply(fact)

    def _change_questions(self, agent: AgentState, by: int, now: float) -> None:
        """Count questions to a person. Durations of the agent and its ancestors leave them out."""
        lineage = [agent]
        while by and lineage[-1].parent_id is not None:
            lineage.append(self.agents[lineage[-1].parent_id])
        for one in lineage if by else ():
            one.questions = max(0, one.questions + by)
            if one.questions and one.asked_at is None:
                one.asked_at = now
            elif not one.questions and one.asked_at is not None:
                waited_s, one.asked_at = max(0.0, now - one.asked_at), None
                # A later start, so that the duration leaves out the wait.
                one.started_at = None if one.started_at is None else one.started_at + waited_s
                if one.parent_id is None:
                    self.idle_s += waited_s

    def _close_questions(self, now: float) -> None:
        for agent in reversed(self.agents.values()):  # Children before their parents.
            self._change_questions(agent, -agent.questions, now)

    def _send(self, sender: AgentState, call: ev.ToolStarted) -> None:
        message = msgspec.json.decode(call.arguments, type=_Message)
        child = self.agents.get(plain_id(message.id))
        if child is not None:
            child.message_from(sender)
            if self.detailed:
                self.resume_points[child.id].unread.append(message.text)

    def _start(self, event: ev.Event, fact: ev.RunStarted) -> None:
        self.id, self.started_at, self.started = event.run_id, event.time, fact
        self.kind, self.task, self.directory = fact.kind, fact.task, fact.directory
        self.model, self.mode, self.sandbox = fact.model, fact.mode, fact.sandbox
        self.earlier_runs = fact.earlier

    def _finish(self, event: ev.Event, fact: ev.RunFinished) -> None:
        self.status, self.reason, self.finished_at = fact.status, fact.reason, event.time

    def _suspend(self, event: ev.Event, fact: ev.RunSuspended) -> None:
        self.suspend_reason = fact.reason
        self._pause(event.time)

    def _pause(self, now: float) -> None:
        self._close_questions(now)
        for agent in self.agents.values():
            agent.paused_at = now if agent.closed_at is None else None

    def _resume(self, event: ev.Event, fact: ev.RunResumed) -> None:
        self.suspend_reason = None
        idle_s = event.time - self.last_at
        self.idle_s += idle_s
        # A killed process left its questions open. They ended with it, at the latest sign of it.
        self._close_questions(self.last_at)
        for agent in self.agents.values():
            agent.paused_at = None
            agent.requests.clear()  # The questions are put again.
            # Later times, so that no duration includes the time without a process.
            agent.created_at += idle_s
            agent.started_at = None if agent.started_at is None else agent.started_at + idle_s
            agent.closed_at = None if agent.closed_at is None else agent.closed_at + idle_s

    def _skip_time(self, event: ev.Event, fact: ev.ClockGapDetected) -> None:
        lost_s = fact.stalled_s + fact.jumped_s
        self.work_time.subtract(lost_s)
        for agent in self.agents.values():
            if agent.closed_at is None:
                if agent.started_at is not None:
                    agent.started_at += fact.jumped_s
                if self.detailed:
                    point = self.resume_points[agent.id]
                    point.lifetime.subtract(lost_s)
                    point.attempt_time.subtract(lost_s)

    def _prune(self, event: ev.Event, fact: ev.RunPruned) -> None:
        self.id, self.pruned = event.run_id, fact.events
        self.kind, self.task, self.directory = fact.kind, fact.task, fact.directory
        self.model, self.mode, self.sandbox = fact.model, fact.mode, fact.sandbox
        self.earlier_runs, self.usage = fact.earlier, fact.usage
        self.started_at, self.finished_at = fact.started_at, fact.finished_at
        self.idle_s = fact.idle_s
        self.status, self.reason = fact.status, fact.reason
        self.undo_history = list(fact.rewritten)
        self.agents = {left.id: AgentState(**msgspec.structs.asdict(left)) for left in fact.agents}
        for agent in self.agents.values():
            if agent.parent_id is not None:
                self.agents[agent.parent_id].children.append(agent.id)

    def _give_tasks(self, event: ev.Event, fact: ev.TasksSubmitted) -> None:
        self.given_tasks += len(fact.tasks)
        if self.detailed:
            self.tasks.append(fact)

    def _rewrite_files(self, event: ev.Event, fact: ev.ChangesUndone | ev.ChangesRedone) -> None:
        self.undo_history.append((event.time, event.summary))

    def _create_agent(self, event: ev.Event, fact: ev.AgentCreated) -> None:
        agent = self.agents[event.agent_id] = AgentState.created(event, fact)
        if agent.parent_id is not None:
            self.agents[agent.parent_id].add_child(agent)
        elif self.started is not None:
            agent.tainted = self.started.tainted
            agent.read_untrusted = self.started.read_untrusted
        if self.detailed:
            point = self.resume_points[agent.id] = ResumePoint(agent)
            point.lifetime.add(event)
            if agent.parent_id is not None:
                self.resume_points[agent.parent_id].children.append(agent.id)


CHANGES: Mapping[type[ev.Fact], Callable[[RunState, ev.Event, Any], None]] = {
    ev.RunStarted: RunState._start,
    ev.RunFinished: RunState._finish,
    ev.RunSuspended: RunState._suspend,
    ev.RunResumed: RunState._resume,
    ev.ClockGapDetected: RunState._skip_time,
    ev.RunPruned: RunState._prune,
    ev.TasksSubmitted: RunState._give_tasks,
    ev.ChangesUndone: RunState._rewrite_files,
    ev.ChangesRedone: RunState._rewrite_files,
    ev.AgentCreated: RunState._create_agent,
}


class _Message(msgspec.Struct):
    """The arguments of a call of `agent_message`."""

    id: str
    text: str


def fold(events: Iterable[ev.Event], *, detailed: bool = False) -> RunState:
    """The state after `events`: all events of a run, or only the events of its root.

    ```python
    run = await rt.run("Look around.")
    state = retinue.fold([event async for event in rt.events(run.id)])
    print(state.status, state.usage.tokens, [agent.path for agent in state.agents.values()])
    ```
    """
    state = RunState(detailed=detailed)
    for event in events:
        state.apply(event)
    return state


def abandon(state: RunState) -> None:
    """Pause the agents at the last event: the run is not over, but nobody here works on it."""
    state._pause(state.last_at)


def fold_agent(events: Sequence[ev.Event]) -> ResumePoint:
    """One agent from its own events only: what its children did is left out."""
    created = events[0].fact
    assert isinstance(created, ev.AgentCreated), "the events of a child begin with its creation"
    point = ResumePoint(AgentState.created(events[0], created))
    for event in events[1:]:
        point.agent.apply(event, event.fact)
        point.apply(event, event.fact)
    return point
