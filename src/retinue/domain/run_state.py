"""`fold(events)`: the view of a run that every interface draws. Nothing else is state.

A view is built by applying events in order. It is mutable inside (a fan-out has ten thousand
agents; copying them for each event would be quadratic) and is only ever changed through `apply`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import assert_never

from msgspec import structs

from retinue.domain import events as ev
from retinue.domain.lifecycle import State, move
from retinue.domain.messages import Timing, Usage
from retinue.domain.result import Check, Conflict, FileChange, Receipt, Status
from retinue.errors import UsageError


@dataclass(slots=True)
class AgentState:
    id: str
    parent_id: str | None
    path: str
    role: str
    title: str
    depth: int
    step_idx: int
    contract_sha256: str
    created_at: float
    state: State = State.CREATED
    started_at: float | None = None
    closed_at: float | None = None
    paused_at: float | None = None
    """When its run was suspended, until somebody goes on with it."""
    attempt: int = 0
    turn: int = 0
    max_turns: int = 0
    turns: int = 0
    """The replies that it got, over all attempts."""
    tool_calls: int = 0
    pending: dict[str, ev.ToolStarted] = field(default_factory=dict)
    """The calls under way, by their id."""
    queued: int = 0
    """The calls of the last reply that have not begun: of many spawns, those without a slot."""
    setback: str = ""
    """What went wrong with the model last, until it replies."""
    usage: Usage = field(default_factory=Usage)
    timing: Timing = field(default_factory=Timing)
    models: dict[str, None] = field(default_factory=dict)
    """Of a pool, those that have answered."""
    doing: str = ""
    said: str = ""
    """What its model said last, until it is closed."""
    status: Status | None = None
    error: str = ""
    response: str = ""
    close_reason: str = ""
    cached: bool = False
    notes: tuple[str, ...] = ()
    files_read: dict[str, None] = field(default_factory=dict)
    files_modified: dict[str, FileChange] = field(default_factory=dict)
    receipts: list[Receipt] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    conflicts: tuple[Conflict, ...] = ()
    steps: list[int] = field(default_factory=list)
    """The numbers of its changes of the user's files."""
    kept: tuple[FileChange, ...] = ()
    """What it had changed, and was not integrated."""
    unverified: str = ""
    """What it claims in its answer, and nothing that was seen bears out."""
    children: list[str] = field(default_factory=list)

    @property
    def duration_s(self) -> float:
        if self.started_at is None or self.closed_at is None:
            return 0.0
        # A clock that was set back has measured nothing.
        return max(0.0, self.closed_at - self.started_at)


@dataclass(slots=True)
class RunState:
    id: str = ""
    kind: str = ""
    task: str = ""
    directory: str = ""
    model: str = ""
    mode: str = ""
    sandbox: str = ""
    earlier: tuple[str, ...] = ()
    started_at: float = 0.0
    finished_at: float | None = None
    status: Status | None = None
    reason: str = ""
    suspended: str | None = None
    """Why the work has stopped that can go on."""
    pruned: int = 0
    """How many of its events were cleaned away; the rest is one that says what they were."""
    last_seq: int = 0
    usage: Usage = field(default_factory=Usage)
    """Of all agents together."""
    rewritten: list[tuple[float, str]] = field(default_factory=list)
    """When the user has undone or redone what."""
    agents: dict[str, AgentState] = field(default_factory=dict)

    @property
    def root(self) -> AgentState | None:
        return next(iter(self.agents.values()), None)

    def agent(self, name: str) -> AgentState:
        """The agent of that id or path. Raises UsageError."""
        for agent in self.agents.values():
            if name in (agent.id, agent.path):
                return agent
        known = ", ".join(f"{a.id} ({a.path})" for a in list(self.agents.values())[:10])
        raise UsageError(f"No agent {name!r} in run {self.id}; there are: {known}.")

    def apply(self, event: ev.Event) -> RunState:
        """Take one more event in. Events come in order; an illegal move of an agent raises."""
        self.last_seq = event.seq
        fact = event.fact
        match fact:
            case ev.RunStarted():
                self.id, self.started_at = event.run_id, event.time
                self.kind, self.task, self.directory = fact.kind, fact.task, fact.directory
                self.model, self.mode, self.sandbox = fact.model, fact.mode, fact.sandbox
                self.earlier = fact.earlier
            case ev.RunFinished():
                self.status, self.reason, self.finished_at = fact.status, fact.reason, event.time
            case ev.RunSuspended():
                self.suspended = fact.reason
                for agent in self.agents.values():
                    agent.paused_at = event.time if agent.closed_at is None else None
            case ev.RunResumed():
                self.suspended = None
                for agent in self.agents.values():
                    agent.paused_at = None
            case ev.RunLapsed():
                for agent in self.agents.values():
                    if agent.closed_at is None and agent.started_at is not None:
                        agent.started_at += fact.jumped_s
            case ev.RunPruned():
                self._leave(event, fact)
            case ev.TasksGiven():
                pass
            case ev.StepsUndone() | ev.StepsRedone():
                self.rewritten.append((event.time, event.summary))
            case ev.AgentCreated():
                self._create(event, fact)
            case _:
                self._change(self.agents[event.agent_id], event, fact)
        return self

    def _leave(self, event: ev.Event, fact: ev.RunPruned) -> None:
        self.id, self.pruned = event.run_id, fact.events
        self.kind, self.task, self.directory = fact.kind, fact.task, fact.directory
        self.model, self.mode, self.sandbox = fact.model, fact.mode, fact.sandbox
        self.earlier, self.usage = fact.earlier, fact.usage
        self.started_at, self.finished_at = fact.started_at, fact.finished_at
        self.status, self.reason = fact.status, fact.reason
        self.rewritten = list(fact.rewritten)
        self.agents = {left.id: AgentState(**structs.asdict(left)) for left in fact.agents}
        for agent in self.agents.values():
            if agent.parent_id is not None:
                self.agents[agent.parent_id].children.append(agent.id)

    def _create(self, event: ev.Event, fact: ev.AgentCreated) -> None:
        self.agents[event.agent_id] = AgentState(
            id=event.agent_id,
            parent_id=event.parent_agent_id,
            path=fact.path,
            role=fact.role,
            title=fact.title,
            depth=fact.depth,
            step_idx=fact.step_idx,
            contract_sha256=fact.contract_sha256,
            created_at=event.time,
            notes=fact.notes,
        )
        if event.parent_agent_id is not None:
            self.agents[event.parent_agent_id].children.append(event.agent_id)

    def _change(
        self,
        agent: AgentState,
        event: ev.Event,
        fact: ev.AgentStarted
        | ev.AgentAttempted
        | ev.TurnStarted
        | ev.ModelReplied
        | ev.ModelFailed
        | ev.ToolStarted
        | ev.ToolFinished
        | ev.ToolDenied
        | ev.ApprovalDecided
        | ev.AgentTold
        | ev.ContextCompacted
        | ev.AgentSilent
        | ev.AgentCached
        | ev.BreakerTripped
        | ev.LimitReached
        | ev.WorktreeCreated
        | ev.WorktreeMerged
        | ev.CheckFinished
        | ev.FilesChanged
        | ev.WorkKept
        | ev.AgentWaiting
        | ev.AgentCompleted
        | ev.AgentFailed
        | ev.AgentClosed
        | ev.PlanAdopted
        | ev.StepStarted
        | ev.StepFinished,
    ) -> None:
        agent.doing = event.summary
        match fact:
            case ev.AgentStarted():
                agent.state, agent.started_at = move(agent.state, State.RUNNING), event.time
            case ev.AgentAttempted():
                agent.attempt, agent.turn = fact.number, 0
            case ev.TurnStarted():
                agent.turn, agent.max_turns, agent.queued = fact.turn, fact.of, 0
            case ev.ModelReplied():
                agent.usage += fact.usage
                self.usage += fact.usage
                agent.turns, agent.setback = agent.turns + 1, ""
                agent.said = fact.content.strip() or agent.said
                agent.queued = len(fact.calls)
                agent.timing += fact.timing
                if fact.model:
                    agent.models[fact.model] = None
            case ev.ModelFailed():
                agent.usage += fact.usage
                self.usage += fact.usage
                agent.setback = event.summary
            case ev.AgentCached():
                agent.cached = True
            case (
                ev.LimitReached()
                | ev.ApprovalDecided()
                | ev.AgentTold()
                | ev.ContextCompacted()
                | ev.AgentSilent()
                | ev.BreakerTripped()
                | ev.WorktreeCreated()
                | ev.WorktreeMerged()
                | ev.PlanAdopted()
                | ev.StepStarted()
                | ev.StepFinished()
            ):
                pass
            case ev.CheckFinished():
                agent.checks.append(fact.check)
            case ev.FilesChanged():
                agent.steps.append(fact.step)
            case ev.WorkKept():
                agent.kept = fact.files
            case ev.ToolStarted():
                agent.tool_calls += 1
                agent.queued = max(0, agent.queued - 1)
                agent.pending[fact.call_id] = fact
            case ev.ToolDenied():
                agent.tool_calls += fact.counted
                agent.queued = max(0, agent.queued - 1)
            case ev.ToolFinished():
                agent.pending.pop(fact.call_id, None)
                agent.receipts.append(fact.receipt)
                agent.files_read.update(dict.fromkeys(fact.receipt.read))
                for change in fact.receipt.changed:
                    agent.files_modified[change.path] = merged(
                        agent.files_modified.get(change.path), change
                    )
            case ev.AgentWaiting():
                agent.state = move(agent.state, State.WAITING_FOR_MERGE)
                agent.response = fact.response
                # Of a copy it is known what has really changed in it, by whatever means.
                agent.files_modified = {change.path: change for change in fact.files_modified}
            case ev.AgentCompleted():
                agent.state, agent.status = move(agent.state, State.COMPLETED), Status.COMPLETED
            case ev.AgentFailed():
                agent.state, agent.status = move(agent.state, State.FAILED), fact.status
                agent.error, agent.conflicts = fact.reason, fact.conflicts
                agent.response = fact.response or agent.response
            case ev.AgentClosed():
                agent.state, agent.closed_at = move(agent.state, State.CLOSED), event.time
                agent.close_reason, agent.doing, agent.said = fact.close_reason, "", ""
                agent.unverified = fact.unverified
                agent.pending.clear()
            case _:
                assert_never(fact)


def fold(events: Iterable[ev.Event]) -> RunState:
    view = RunState()
    for event in events:
        view.apply(event)
    return view


def merged(earlier: FileChange | None, later: FileChange) -> FileChange:
    """Two changes to one file as one."""
    if earlier is None:
        return later
    return FileChange(
        path=later.path,
        added=earlier.added + later.added,
        removed=earlier.removed + later.removed,
        new=earlier.new or later.new,
        gone=later.gone,
        before_sha256=earlier.before_sha256,
        after_sha256=later.after_sha256,
    )
