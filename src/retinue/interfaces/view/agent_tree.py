"""Agents of one or more runs as the rows of a tree.

A row stands for one agent, or for a group of siblings that look alike: finished with the same role,
waiting for a slot, or ended for the same reason. Siblings are grouped only where a parent has many
children. A failure is never hidden: a failed agent has a row of its own, or the row that hides the
agent counts it.

Applying an event takes the same time for any number of agents. Drawing takes time in proportion to
the visible rows: ten thousand finished children are one row.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

import msgspec

from retinue.domain.agent_state import AgentState
from retinue.domain.events import AgentCreated, Event, ToolFinished, ToolStarted
from retinue.domain.lifecycle import State
from retinue.domain.plural import plural
from retinue.domain.result import Status
from retinue.domain.run_state import RunState, abandon
from retinue.interfaces.view.formatting import one_line
from retinue.interfaces.view.tool_calls import call_text

PAUSED = "paused"
THINKING = "thinking"
MERGING = "checks and merge"
SPAWN_TOOL = "spawn_agent"
# Tools whose caller waits for children.
WAITING_TOOLS = (SPAWN_TOOL, "spawn_await", "delegate_task", "race_agents")
# Up to this number, children are listed one by one in the order in which they were created.
MAX_UNGROUPED_CHILDREN = 6
MIN_GROUP_SIZE = 3
_SPAWN_EVENTS = ("tool.started", "agent.subagent_created")
_RUN_WIDE_EVENTS = ("run.suspended", "run.resumed")


class DisplayState(StrEnum):
    """State of an agent in one word. The order is the order of the groups below a parent."""

    FAILED = "failed"
    RUNNING = "running"
    STOPPED = "stopped"
    WAITING = "waiting"
    DONE = "done"


ACTIVE_STATES = (DisplayState.RUNNING, DisplayState.WAITING)
UNSUCCESSFUL_STATES = (DisplayState.FAILED, DisplayState.STOPPED)
STATE_SYMBOLS = {
    DisplayState.FAILED: "✗",
    DisplayState.RUNNING: "●",
    DisplayState.STOPPED: "■",
    DisplayState.WAITING: "○",
    DisplayState.DONE: "✓",
}
# Order of the counts in one line about a run.
COUNT_ORDER = (
    DisplayState.RUNNING,
    DisplayState.WAITING,
    DisplayState.DONE,
    DisplayState.STOPPED,
    DisplayState.FAILED,
)
SPINNER_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


class TreeRow(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    key: str
    """Identifies the agent or group that the row stands for, across redraws."""
    run_id: str
    agent_id: str
    """The agent, or the first agent of a group."""
    path: str = ""
    """Path of the agent; empty for a group."""
    state: DisplayState
    depth: int
    name: str
    count: int = 1
    """Number of agents that the row stands for."""
    task: str = ""
    activity: str = ""
    """What the agent does now, or why it ended without success."""
    turn: int = 0
    max_turns: int = 0
    tool_calls: int = 0
    tokens: int = 0
    cost_usd: float = 0.0
    elapsed_s: float = 0.0
    child_count: int = 0
    """Number of children of the agent, or of members of the group."""
    failed_descendants: int = 0
    expanded: bool = False
    cached: bool = False

    @property
    def label(self) -> str:
        """`researcher.2`, or `12× researcher` for a group."""
        return f"{self.count:,}× {self.name}" if self.count > 1 else self.name

    @property
    def hidden_children(self) -> int:
        return 0 if self.expanded or self.count > 1 else self.child_count


class _GroupKey(NamedTuple):
    """Siblings with the same key share a group."""

    state: DisplayState
    role: str
    text: str


@dataclass(slots=True)
class _Group:
    """Siblings with one key, in the order in which they joined the group, and their total usage."""

    members: dict[str, None] = field(default_factory=dict)
    tool_calls: int = 0
    tokens: int = 0
    cost_usd: float = 0.0
    elapsed_s: float = 0.0
    failed_descendants: int = 0


class AgentTree:
    """Rows of one run. Only `apply`, `abandon`, `report` and `set_expanded` change the tree."""

    def __init__(self) -> None:
        self.run = RunState()
        self.counts = dict.fromkeys(DisplayState, 0)
        """Number of agents in each state, without the root."""
        self.failures: list[str] = []
        """Ids of failed agents in the order in which they failed: causes come before effects."""
        self._group_keys: dict[str, _GroupKey] = {}
        self._groups: dict[str, dict[DisplayState, dict[_GroupKey, _Group]]] = {}
        self._failed_descendants: Counter[str] = Counter()
        self._active_children: Counter[str] = Counter()
        self._spawn_calls: defaultdict[str, set[str]] = defaultdict(set)
        """Per agent, ids of spawn calls that have not created a child. Some may have finished."""
        self._progress: dict[str, str] = {}
        """Per agent, what it has reported about long work since its latest event."""
        self._expanded: dict[str, bool] = {}
        self._collapsed_when_idle = False

    def apply(self, event: Event) -> None:
        """Apply the next event of the run. Events arrive in order."""
        self.run.apply(event)
        self._progress.pop(event.agent_id, None)
        # Decoding a fact costs more than all the rest, so it is decoded again for few types only.
        if event.type in _SPAWN_EVENTS:
            self._track_spawn(event)
        if event.type in _RUN_WIDE_EVENTS:
            self._regroup_all()
        elif event.agent_id in self.run.agents:
            self._regroup(self.run.agents[event.agent_id])

    def abandon(self) -> None:
        """Show the agents that have not ended as stopped: nobody here works on the run."""
        abandon(self.run)
        self._regroup_all()

    def report(self, agent_id: str, text: str) -> None:
        """Show how far an agent's work is, until its next event."""
        self._progress[agent_id] = one_line(text)

    def progress(self, agent_id: str) -> str:
        return self._progress.get(agent_id, "")

    def _track_spawn(self, event: Event) -> None:
        fact = event.fact
        if isinstance(fact, ToolStarted) and fact.tool == SPAWN_TOOL:
            self._spawn_calls[event.agent_id].add(fact.call_id)
        elif isinstance(fact, AgentCreated) and event.parent_agent_id is not None:
            # The origin key of a spawned child is "TURN:CALL_ID".
            call_id = fact.origin_key.partition(":")[2]
            self._spawn_calls[event.parent_agent_id].discard(call_id)

    def failed_to_spawn(self, agent_id: str, call: ToolFinished) -> bool:
        """Whether that call of the agent has just ended without a child."""
        return not call.receipt.ok and call.call_id in self._spawn_calls[agent_id]

    def set_expanded(self, key: str, expanded: bool) -> None:
        """Show or hide the rows below the row with this key."""
        self._expanded[key] = expanded

    def rows(self, now: float) -> list[TreeRow]:
        """All visible rows in order. `now` is the current time, for agents that still run."""
        root = self.run.root
        return [] if root is None else list(self._subtree_rows(root, 0, now))

    @property
    def active(self) -> bool:
        """Whether an agent runs or waits. A program that leads the run does not count."""
        root = self.run.root
        root_active = root is not None and is_active(root) and self.run.kind != "program"
        return root_active or any(self.counts[state] for state in ACTIVE_STATES)

    @property
    def is_model_led(self) -> bool:
        """Whether a model leads the run, rather than a program or a plan."""
        return self.run.kind == "run"

    def collapse_when_idle(self) -> None:
        """Collapse the root while no agent is active, unless the user expands it."""
        self._collapsed_when_idle = True

    def unspawned_children(self, agent: AgentState) -> int:
        """Number of children that an agent has called for and that have no slot yet."""
        if not is_active(agent) or not agent.pending_calls or not _waits_for_children(agent):
            return 0
        unspawned = self._spawn_calls[agent.id] & agent.pending_calls.keys()
        return len(unspawned) + agent.queued_calls

    def current_counts(self) -> dict[DisplayState, int]:
        """Like `counts`, where children that are not spawned yet count as waiting."""
        unspawned = sum(
            self.unspawned_children(a) for a in self.run.agents.values() if a.pending_calls
        )
        waiting = self.counts[DisplayState.WAITING] + unspawned
        return {**self.counts, DisplayState.WAITING: waiting}

    def _row_key(self, agent_id: str) -> str:
        return f"{self.run.id} {agent_id}"

    def _regroup_all(self) -> None:
        for agent in self.run.agents.values():
            self._regroup(agent)

    def _regroup(self, agent: AgentState) -> None:
        """Move an agent into the group of its current state."""
        parent = agent.parent_id
        state, before = display_state(agent), self._group_keys.get(agent.id)
        if before is not None and before.state is state:
            return
        after = self._group_keys[agent.id] = self._group_key(agent, state)
        if state is DisplayState.FAILED:
            self._count_failure(agent)
        if parent is None:
            return
        self.counts[state] += 1
        groups = self._groups.setdefault(parent, {state: {} for state in DisplayState})
        change = (state in ACTIVE_STATES) - (before is not None and before.state in ACTIVE_STATES)
        self._active_children[parent] += change
        if before is not None:
            self.counts[before.state] -= 1
            group = groups[before.state][before]
            del group.members[agent.id]
            group.failed_descendants -= self._failed_descendants[agent.id]
            if not group.members:
                del groups[before.state][before]
        group = groups[state].setdefault(after, _Group())
        group.members[agent.id] = None
        group.failed_descendants += self._failed_descendants[agent.id]
        if agent.state is State.CLOSED:
            group.tool_calls += agent.tool_calls
            group.tokens += agent.usage.tokens
            group.cost_usd += agent.usage.cost_usd
            group.elapsed_s = max(group.elapsed_s, agent.duration_s)

    def _group_key(self, agent: AgentState, state: DisplayState) -> _GroupKey:
        text = ""
        if state in UNSUCCESSFUL_STATES:
            text = failure_reason(agent)
        elif state is DisplayState.RUNNING:
            text = agent.title
        elif state is DisplayState.DONE and self._failed_descendants[agent.id]:
            text = "!"  # Agents with a failed descendant get a group of their own.
        return _GroupKey(state, agent.role, text)

    def _count_failure(self, agent: AgentState) -> None:
        self.failures.append(agent.id)
        while agent.parent_id is not None:
            agent = self.run.agents[agent.parent_id]
            self._failed_descendants[agent.id] += 1
            if agent.parent_id is not None:
                key = self._group_keys[agent.id]
                self._groups[agent.parent_id][key.state][key].failed_descendants += 1

    def _subtree_rows(self, agent: AgentState, depth: int, now: float) -> Iterator[TreeRow]:
        row = self._agent_row(agent, depth, now)
        yield row
        if not row.expanded:
            return
        if len(agent.children) <= MAX_UNGROUPED_CHILDREN:
            for child in agent.children:
                yield from self._subtree_rows(self.run.agents[child], depth + 1, now)
            return
        groups = self._groups[agent.id]
        for state in DisplayState:
            for key, group in groups[state].items():
                if len(group.members) < MIN_GROUP_SIZE:
                    yield from self._member_rows(group, depth + 1, now)
                    continue
                group_row = self._group_row(agent.id, key, group, depth + 1, now)
                yield group_row
                if group_row.expanded:
                    yield from self._member_rows(group, depth + 2, now)

    def _member_rows(self, group: _Group, depth: int, now: float) -> Iterator[TreeRow]:
        for member in group.members:
            yield from self._subtree_rows(self.run.agents[member], depth, now)

    def _agent_row(self, agent: AgentState, depth: int, now: float) -> TreeRow:
        key, state = self._row_key(agent.id), self._group_keys[agent.id].state
        # A program that leads a run is idle between its calls; only its children can run.
        is_program = agent.parent_id is None and self.run.kind == "program"
        if is_program and state is DisplayState.RUNNING and not self._active_children[agent.id]:
            state = DisplayState.DONE if agent.children else DisplayState.WAITING
        failed_descendants = self._failed_descendants[agent.id]
        expanded = state is not DisplayState.DONE or failed_descendants > 0
        if agent.parent_id is None:
            expanded = not self._collapsed_when_idle or self.active
        return TreeRow(
            key=key,
            run_id=self.run.id,
            agent_id=agent.id,
            path=agent.path,
            state=state,
            depth=depth,
            name=_row_name(agent, state),
            task=one_line(agent.title),
            activity=self._activity(agent, state),
            turn=agent.turn if state is DisplayState.RUNNING else agent.turns,
            max_turns=agent.max_turns,
            tool_calls=agent.tool_calls,
            tokens=agent.usage.tokens,
            cost_usd=agent.usage.cost_usd,
            elapsed_s=0.0 if is_program else elapsed_s(agent, now),
            child_count=len(agent.children),
            failed_descendants=failed_descendants,
            expanded=bool(agent.children) and self._expanded.get(key, expanded),
            cached=agent.cached,
        )

    def _activity(self, agent: AgentState, state: DisplayState) -> str:
        active = self._active_children[agent.id]
        if state is DisplayState.RUNNING and active and _waits_for_children(agent):
            unspawned = self.unspawned_children(agent)
            total = plural(len(agent.children) + unspawned, "agent")
            finished = len(agent.children) > active
            return f"waiting for {f'{active + unspawned:,} of ' if finished else ''}{total}"
        progress = "" if state in UNSUCCESSFUL_STATES else self.progress(agent.id)
        return progress or current_activity(agent, state)

    def _group_row(
        self, parent: str, key: _GroupKey, group: _Group, depth: int, now: float
    ) -> TreeRow:
        row_key = f"{self._row_key(parent)} {key.state} {key.role} {key.text}"
        first = self.run.agents[next(iter(group.members))]
        usage = group
        if key.state is DisplayState.RUNNING:  # Totals of a group cover closed agents only.
            running = [self.run.agents[member] for member in group.members]
            usage = _Group(
                tool_calls=sum(a.tool_calls for a in running),
                tokens=sum(a.usage.tokens for a in running),
                cost_usd=sum(a.usage.cost_usd for a in running),
                elapsed_s=max(elapsed_s(a, now) for a in running),
            )
        return TreeRow(
            key=row_key,
            run_id=self.run.id,
            agent_id=first.id,
            state=key.state,
            depth=depth,
            name=key.role,
            count=len(group.members),
            task=one_line(first.title) if key.state is DisplayState.RUNNING else "",
            activity=key.text if key.state in UNSUCCESSFUL_STATES else "",
            tool_calls=usage.tool_calls,
            tokens=usage.tokens,
            cost_usd=usage.cost_usd,
            elapsed_s=usage.elapsed_s,
            child_count=len(group.members),
            failed_descendants=group.failed_descendants,
            expanded=self._expanded.get(row_key, False),
        )


class Forest:
    """Trees of the runs of one conversation, in the order in which the runs started."""

    def __init__(self) -> None:
        self.trees: dict[str, AgentTree] = {}

    def apply(self, event: Event) -> AgentTree:
        """Apply an event to the tree of its run. Returns that tree."""
        tree = self.trees.get(event.run_id)
        if tree is None:
            for earlier in self.trees.values():
                if not earlier.active:
                    earlier.collapse_when_idle()
            tree = self.trees[event.run_id] = AgentTree()
        tree.apply(event)
        return tree

    def rows(self, now: float) -> list[TreeRow]:
        """Rows of active runs, then of the latest run, then of earlier runs that had children."""
        latest_first = list(reversed(self.trees.values()))
        active = [tree for tree in latest_first if tree.active]
        finished = [
            tree
            for tree in latest_first
            if not tree.active and (tree is latest_first[0] or len(tree.run.agents) > 1)
        ]
        return [row for tree in (*active, *finished) for row in tree.rows(now)]


def fit_rows(rows: list[TreeRow], height: int) -> tuple[list[TreeRow], int]:
    """The `height` most important rows in their order, and the number of rows left out.

    Failed agents come before running ones, running ones before the others, and earlier rows before
    later ones.
    """
    if len(rows) <= height:
        return rows, 0

    def rank(index: int) -> int:
        row = rows[index]
        # A root, a group and a row with failures below it say more than other rows.
        if row.depth == 0 or row.count > 1 or row.failed_descendants:
            return 0
        return {DisplayState.FAILED: 0, DisplayState.RUNNING: 1}.get(row.state, 2)

    kept = sorted(sorted(range(len(rows)), key=rank)[: max(0, height)])
    return [rows[index] for index in kept], len(rows) - len(kept)


def short_name(agent: AgentState) -> str:
    """Last part of the agent's path: `researcher.2`."""
    return agent.path.rpartition("/")[2]


def short_names(agents: Sequence[AgentState], most: int) -> str:
    """`tester.1, tester.2, …`"""
    names = [*map(short_name, agents[:most]), *(["…"] if len(agents) > most else [])]
    return ", ".join(names) or "none"


def is_active(agent: AgentState) -> bool:
    """Whether the agent runs or is going to run."""
    return agent.closed_at is None and agent.paused_at is None


def display_state(agent: AgentState) -> DisplayState:
    if agent.paused_at is not None:
        return DisplayState.STOPPED
    if agent.status is None:
        return DisplayState.WAITING if agent.state is State.CREATED else DisplayState.RUNNING
    if agent.state is not State.CLOSED:
        return DisplayState.RUNNING  # Its parent has not received the result yet.
    if agent.status is Status.COMPLETED:
        return DisplayState.DONE
    return DisplayState.STOPPED if agent.status is Status.CANCELLED else DisplayState.FAILED


def failure_reason(agent: AgentState) -> str:
    """Why an agent ended without success, on one line."""
    if agent.paused_at is not None:
        return PAUSED
    status, reason = str(agent.status).replace("_", " "), one_line(agent.error)
    if not reason or reason.startswith(status):
        return reason or status
    # The symbol of the row already says that it is an error.
    return reason if agent.status is Status.ERROR else f"{status}: {reason}"


def _row_name(agent: AgentState, state: DisplayState) -> str:
    """`researcher.2`; `researcher.2@local-1` while it runs on a host."""
    name = short_name(agent) if agent.parent_id else agent.role
    return f"{name}@{agent.host}" if agent.host and state is DisplayState.RUNNING else name


def _waits_for_children(agent: AgentState) -> bool:
    """Whether an agent waits for children and for nothing else."""
    return all(call.tool in WAITING_TOOLS for call in agent.pending_calls.values())


def current_activity(agent: AgentState, state: DisplayState) -> str:
    """What an agent does now, or why it ended without success; empty for other agents."""
    match state:
        case DisplayState.FAILED | DisplayState.STOPPED:
            return failure_reason(agent)
        case DisplayState.RUNNING if agent.pending_calls:
            latest = next(reversed(agent.pending_calls.values()))
            more = len(agent.pending_calls) - 1
            return call_text(latest.tool, latest.arguments) + (f" (+{more})" if more else "")
        case DisplayState.RUNNING if agent.state is State.WAITING_FOR_MERGE:
            return MERGING
        case DisplayState.RUNNING:
            return agent.model_error or (THINKING if agent.turn else "")
        case _:
            return ""


def elapsed_s(agent: AgentState, now: float) -> float:
    """Time since the agent started, up to its end, without the time that a question is open."""
    if agent.started_at is None:
        return 0.0
    now = now if agent.asked_at is None else agent.asked_at
    ended_at = agent.paused_at if agent.closed_at is None else agent.closed_at
    return (now if ended_at is None else ended_at) - agent.started_at
