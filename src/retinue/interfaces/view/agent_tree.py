"""The agents of runs as the rows of a tree.

A row stands for an agent, or for several siblings that look alike: finished with the same role,
waiting for their turn, or ended for the same reason. Only where a parent has many children are they
folded, and a failure is never hidden: what failed has a row of its own, or is counted in the row
that hides it.

Applying an event costs the same however many agents there are, and drawing costs as much as there
are rows to see: ten thousand finished children are one row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

import msgspec

from retinue.domain.agent_state import AgentState
from retinue.domain.events import AgentCreated, Event, ToolStarted
from retinue.domain.lifecycle import State
from retinue.domain.result import Status
from retinue.domain.run_state import RunState
from retinue.interfaces.view.formatting import one_line, some
from retinue.interfaces.view.tool_calls import call_text

PAUSED = "paused"
SPAWN = "spawn_agent"
# Events of which the fact counts, and those that concern every agent.
_COUNTED = ("tool.started", "agent.subagent_created")
_OF_ALL = ("run.suspended", "run.resumed")
# Tools whose caller waits for children.
WAITS = (SPAWN, "spawn_await", "delegate_task")
# Up to so many children stand below their parent in the order of their making, each by itself.
SMALL_FAMILY = 6
# So many that look alike become one row.
ALIKE = 3


class Mark(StrEnum):
    """How it is with an agent, in one word. The order is that of the rows in a large family."""

    FAILED = "failed"
    RUNNING = "running"
    STOPPED = "stopped"
    WAITING = "waiting"
    DONE = "done"


AT_WORK = (Mark.RUNNING, Mark.WAITING)


class Row(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    key: str
    """The same for as long as the row means the same."""
    run_id: str
    agent_id: str
    """The agent, or the first of those that are folded."""
    path: str = ""
    """Where the agent is in its tree; nothing for those that are folded."""
    mark: Mark
    depth: int
    name: str
    count: int = 1
    """How many agents it stands for."""
    task: str = ""
    doing: str = ""
    """What it does now, or why it ended without success."""
    turn: int = 0
    max_turns: int = 0
    tool_calls: int = 0
    tokens: int = 0
    cost_usd: float = 0.0
    seconds: float = 0.0
    below: int = 0
    """How many rows would stand below it; or how many agents, for those that are folded."""
    failed_below: int = 0
    open: bool = False
    cached: bool = False


class _Kind(NamedTuple):
    """What siblings have in common that fold."""

    mark: Mark
    role: str
    text: str


@dataclass(slots=True)
class _Group:
    """Siblings of one kind, in the order in which they became so, and what they used together."""

    members: dict[str, None] = field(default_factory=dict)
    tool_calls: int = 0
    tokens: int = 0
    cost_usd: float = 0.0
    seconds: float = 0.0
    failed_below: int = 0


class Tree:
    """The rows of one run. Change it through `apply` and `set_open` only."""

    def __init__(self) -> None:
        self.run = RunState()
        self.counts = dict.fromkeys(Mark, 0)
        """The children by how it is with them; the root is not among them."""
        self.failures: list[str] = []
        """Who failed, in the order of failing: causes come before what they caused."""
        self._kinds: dict[str, _Kind] = {}
        self._families: dict[str, dict[Mark, dict[_Kind, _Group]]] = {}
        self._failed_below: dict[str, int] = {}
        self._at_work_below: dict[str, int] = {}
        self._unserved: dict[str, set[str]] = {}
        """The calls of an agent for a child that is not made yet; some may be answered."""
        self._opened: dict[str, bool] = {}
        self._away = False

    def apply(self, event: Event) -> None:
        """Take one more event in. Events come in order."""
        self.run.apply(event)
        # To read a fact costs more than all the rest, so only of these it is read once more.
        if event.type in _COUNTED:
            self._count(event)
        if event.type in _OF_ALL:
            changed = list(self.run.agents)
        else:
            changed = [event.agent_id] if event.agent_id in self.run.agents else []
        for agent_id in changed:
            self._classify(self.run.agents[agent_id])

    def _count(self, event: Event) -> None:
        fact = event.fact
        if isinstance(fact, ToolStarted) and fact.tool == SPAWN:
            self._unserved.setdefault(event.agent_id, set()).add(fact.call_id)
        elif isinstance(fact, AgentCreated) and event.parent_agent_id is not None:
            # An errand is a call of a turn.
            call_id = fact.origin_key.partition(":")[2]
            self._unserved.get(event.parent_agent_id, set()).discard(call_id)

    def set_open(self, key: str, open: bool) -> None:
        """Show what stands below a row, or hide it."""
        self._opened[key] = open

    def reveal(self, agent_id: str) -> str:
        """See to it that an agent has a row of its own; answers its key."""
        agent = self.run.agents[agent_id]
        while agent.parent_id is not None:
            parent = self.run.agents[agent.parent_id]
            self._opened[self._key(parent.id)] = True
            self._opened[self._group_key(parent.id, self._kinds[agent.id])] = True
            agent = parent
        return self._key(agent_id)

    def rows(self, now: float) -> list[Row]:
        """All that is to be seen, in order. `now` is the time for what still runs."""
        root = self.run.root
        return [] if root is None else list(self._branch(root, 0, now))

    @property
    def at_work(self) -> bool:
        """Does anybody work? A program that leads does not count."""
        root = self.run.root
        leads = root is not None and is_open(root) and self.run.kind != "program"
        return leads or bool(self.counts[Mark.RUNNING] or self.counts[Mark.WAITING])

    @property
    def is_led(self) -> bool:
        """Does a model lead it, and no program or plan?"""
        return self.run.kind == "run"

    def put_away(self) -> None:
        """Fold it up while nobody works, unless the user says otherwise."""
        self._away = True

    def unmade(self, agent: AgentState) -> int:
        """How many children it waits for that have no slot yet, and so are calls and no agents."""
        if not is_open(agent) or not agent.pending or not _only_waits(agent):
            return 0
        return len(self._unserved.get(agent.id, set()) & agent.pending.keys()) + agent.queued

    @property
    def waiting(self) -> int:
        """How many children have no slot, made or not."""
        unmade = sum(self.unmade(agent) for agent in self.run.agents.values() if agent.pending)
        return self.counts[Mark.WAITING] + unmade

    # Inside

    def _key(self, agent_id: str) -> str:
        return f"{self.run.id} {agent_id}"

    def _group_key(self, parent: str, kind: _Kind) -> str:
        return f"{self._key(parent)} {kind.mark} {kind.role} {kind.text}"

    def _classify(self, agent: AgentState) -> None:
        """Put an agent among its siblings of the kind that it is now."""
        parent = agent.parent_id
        mark, before = mark_of(agent), self._kinds.get(agent.id)
        if before is not None and before.mark is mark:
            return
        after = self._kinds[agent.id] = self._kind(agent, mark)
        if mark is Mark.FAILED:
            self._count_failure(agent)
        if parent is None:
            return
        self.counts[mark] += 1
        family = self._families.setdefault(parent, {mark: {} for mark in Mark})
        at_work = (mark in AT_WORK) - (before is not None and before.mark in AT_WORK)
        self._at_work_below[parent] = self._at_work_below.get(parent, 0) + at_work
        if before is not None:
            self.counts[before.mark] -= 1
            group = family[before.mark][before]
            del group.members[agent.id]
            group.failed_below -= self._failed_below.get(agent.id, 0)
            if not group.members:
                del family[before.mark][before]
        group = family[mark].setdefault(after, _Group())
        group.members[agent.id] = None
        group.failed_below += self._failed_below.get(agent.id, 0)
        if agent.state is State.CLOSED:
            group.tool_calls += agent.tool_calls
            group.tokens += agent.usage.tokens
            group.cost_usd += agent.usage.cost_usd
            group.seconds = max(group.seconds, agent.duration_s)

    def _kind(self, agent: AgentState, mark: Mark) -> _Kind:
        match mark:
            case Mark.FAILED | Mark.STOPPED:
                return _Kind(mark, agent.role, reason_of(agent))
            case Mark.RUNNING:
                return _Kind(mark, agent.role, agent.title)
            case Mark.WAITING:
                return _Kind(mark, agent.role, "")
            case Mark.DONE:
                # Those with a failure below are told apart from those without.
                return _Kind(mark, agent.role, "!" if self._failed_below.get(agent.id) else "")

    def _count_failure(self, agent: AgentState) -> None:
        self.failures.append(agent.id)
        while agent.parent_id is not None:
            agent = self.run.agents[agent.parent_id]
            self._failed_below[agent.id] = self._failed_below.get(agent.id, 0) + 1
            if agent.parent_id is not None:
                kind = self._kinds[agent.id]
                self._families[agent.parent_id][kind.mark][kind].failed_below += 1

    def _branch(self, agent: AgentState, depth: int, now: float) -> Iterator[Row]:
        row = self._row(agent, depth, now)
        yield row
        if not row.open:
            return
        if len(agent.children) <= SMALL_FAMILY:
            for child in agent.children:
                yield from self._branch(self.run.agents[child], depth + 1, now)
            return
        family = self._families[agent.id]
        for mark in Mark:
            for kind, group in family[mark].items():
                if len(group.members) < ALIKE:
                    yield from self._members(group, depth + 1, now)
                    continue
                folded = self._folded(agent.id, kind, group, depth + 1, now)
                yield folded
                if folded.open:
                    yield from self._members(group, depth + 2, now)

    def _members(self, group: _Group, depth: int, now: float) -> Iterator[Row]:
        for member in group.members:
            yield from self._branch(self.run.agents[member], depth, now)

    def _row(self, agent: AgentState, depth: int, now: float) -> Row:
        key, mark = self._key(agent.id), self._kinds[agent.id].mark
        # A program that leads waits for what comes next; only its children can be at work.
        idle = agent.parent_id is None and self.run.kind == "program"
        if idle and mark is Mark.RUNNING and not self._at_work_below.get(agent.id):
            mark = Mark.WAITING
        failed_below = self._failed_below.get(agent.id, 0)
        # What is done, and all is well below it, is not in the way.
        usual = mark is not Mark.DONE or failed_below > 0
        if agent.parent_id is None:
            usual = not self._away or self.at_work
        return Row(
            key=key,
            run_id=self.run.id,
            agent_id=agent.id,
            path=agent.path,
            mark=mark,
            depth=depth,
            name=agent.path.rpartition("/")[2] if agent.parent_id else agent.role,
            task=one_line(agent.title),
            doing=self._doing(agent, mark),
            turn=agent.turn if mark is Mark.RUNNING else agent.turns,
            max_turns=agent.max_turns,
            tool_calls=agent.tool_calls,
            tokens=agent.usage.tokens,
            cost_usd=agent.usage.cost_usd,
            seconds=0.0 if idle else seconds(agent, now),
            below=len(agent.children),
            failed_below=failed_below,
            open=bool(agent.children) and self._opened.get(key, usual),
            cached=agent.cached,
        )

    def _doing(self, agent: AgentState, mark: Mark) -> str:
        at_work = self._at_work_below.get(agent.id, 0)
        if mark is Mark.RUNNING and at_work and _only_waits(agent):
            left = at_work + self.unmade(agent)
            everybody = some(len(agent.children) - at_work + left, "agent")
            return f"waits for {left:,} of {everybody}"
        return doing(agent, mark)

    def _folded(self, parent: str, kind: _Kind, group: _Group, depth: int, now: float) -> Row:
        key = self._group_key(parent, kind)
        first = self.run.agents[next(iter(group.members))]
        sums = group
        if kind.mark is Mark.RUNNING:  # These still change, so nothing was added up.
            running = [self.run.agents[member] for member in group.members]
            sums = _Group(
                tool_calls=sum(a.tool_calls for a in running),
                tokens=sum(a.usage.tokens for a in running),
                cost_usd=sum(a.usage.cost_usd for a in running),
                seconds=max(seconds(a, now) for a in running),
            )
        return Row(
            key=key,
            run_id=self.run.id,
            agent_id=first.id,
            mark=kind.mark,
            depth=depth,
            name=kind.role,
            count=len(group.members),
            task=one_line(first.title) if kind.mark is Mark.RUNNING else "",
            doing=kind.text if kind.mark in (Mark.FAILED, Mark.STOPPED) else "",
            tool_calls=sums.tool_calls,
            tokens=sums.tokens,
            cost_usd=sums.cost_usd,
            seconds=sums.seconds,
            below=len(group.members),
            failed_below=group.failed_below,
            open=self._opened.get(key, False),
        )


class Forest:
    """The trees of several runs: those of a conversation, in the order in which they began."""

    def __init__(self) -> None:
        self.trees: dict[str, Tree] = {}

    def apply(self, event: Event) -> Tree:
        """Take one more event in; answers the tree that it belongs to."""
        tree = self.trees.get(event.run_id)
        if tree is None:
            for earlier in self.trees.values():
                if not earlier.at_work:
                    earlier.put_away()
            tree = self.trees[event.run_id] = Tree()
        tree.apply(event)
        return tree

    def rows(self, now: float) -> list[Row]:
        """Those at work first, then the latest; of the earlier ones, those that had children."""
        latest_first = list(reversed(self.trees.values()))
        at_work = [tree for tree in latest_first if tree.at_work]
        over = [
            tree
            for tree in latest_first
            if not tree.at_work and (tree is latest_first[0] or len(tree.run.agents) > 1)
        ]
        return [row for tree in (*at_work, *over) for row in tree.rows(now)]


def fit(rows: list[Row], height: int) -> tuple[list[Row], int]:
    """The rows that matter most, in their order, where only `height` are to be seen; and how many
    are left out.

    What failed comes before what runs, that before what is over, and the first before the last.
    """
    if len(rows) <= height:
        return rows, 0
    weights = {Mark.FAILED: 0, Mark.RUNNING: 1, Mark.WAITING: 2, Mark.STOPPED: 2, Mark.DONE: 2}

    def weight(index: int) -> int:
        row = rows[index]
        # A root, and a row that counts many, tell of more than themselves.
        return 0 if row.depth == 0 or row.count > 1 or row.failed_below else weights[row.mark]

    kept = sorted(sorted(range(len(rows)), key=weight)[: max(0, height)])
    return [rows[index] for index in kept], len(rows) - len(kept)


def grown(events: Iterable[Event]) -> Tree:
    """The tree of a run that is on record."""
    tree = Tree()
    for event in events:
        tree.apply(event)
    return tree


def is_open(agent: AgentState) -> bool:
    """Is it at work, or about to be?"""
    return agent.closed_at is None and agent.paused_at is None


def mark_of(agent: AgentState) -> Mark:
    if agent.paused_at is not None:
        return Mark.STOPPED
    if agent.status is None:
        return Mark.WAITING if agent.state is State.CREATED else Mark.RUNNING
    if agent.state is not State.CLOSED:
        return Mark.RUNNING  # Its end is decided, and not yet told.
    if agent.status is Status.COMPLETED:
        return Mark.DONE
    return Mark.STOPPED if agent.status is Status.CANCELLED else Mark.FAILED


def reason_of(agent: AgentState) -> str:
    """Why an agent ended without success, on one line."""
    if agent.paused_at is not None:
        return PAUSED
    status, reason = str(agent.status).replace("_", " "), one_line(agent.error)
    if not reason or reason.startswith(status):
        return reason or status
    # That it is an error, its mark says.
    return reason if agent.status is Status.ERROR else f"{status}: {reason}"


def _only_waits(agent: AgentState) -> bool:
    """Is it for children alone that an agent waits?"""
    return all(call.tool in WAITS for call in agent.pending.values())


def doing(agent: AgentState, mark: Mark) -> str:
    """What an agent does now, or why it ended without success; nothing where all is well."""
    match mark:
        case Mark.FAILED | Mark.STOPPED:
            return reason_of(agent)
        case Mark.RUNNING if agent.pending:
            latest = next(reversed(agent.pending.values()))
            more = len(agent.pending) - 1
            return call_text(latest.tool, latest.arguments) + (f" (+{more})" if more else "")
        case Mark.RUNNING:
            return agent.setback or ("thinking" if agent.turn else "")
        case _:
            return ""


def seconds(agent: AgentState, now: float) -> float:
    """How long it has been at work."""
    if agent.started_at is None:
        return 0.0
    ended_at = agent.paused_at if agent.closed_at is None else agent.closed_at
    return (now if ended_at is None else ended_at) - agent.started_at
