"""Fork points: moments of an agent that another run can start from.

A fork needs the conversation and the files of the agent, which are known when each of its calls has
an answer and none of its children is at work. The files of a copy are on record after each call
that may change them. The user's own files follow from the recorded changes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from retinue.domain.agent_state import ROOT_ID, AgentState
from retinue.domain.budget import Budget, least
from retinue.domain.chain import verify
from retinue.domain.contract import Contract, decode_contract
from retinue.domain.events import (
    AgentClosed,
    AgentCreated,
    AttemptStarted,
    CachedResultUsed,
    ChangesRedone,
    ChangesUndone,
    ContextCompacted,
    Event,
    FilesChanged,
    LimitReached,
    MessageReceived,
    ModelReplied,
    ResultProposed,
    ToolDenied,
    ToolFinished,
    TurnStarted,
    WorktreeCreated,
    WorktreeMerged,
)
from retinue.domain.run_state import RunState, fold
from retinue.errors import RecoveryError, UsageError, WorkspaceError
from retinue.ports.file_tree import ChangeHistory
from retinue.ports.store import Store
from retinue.runtime.agent.conversation import INTERRUPTED, SUMMARIZING
from retinue.runtime.history.audit import contract_json, read_all
from retinue.runtime.history.recovery import check_sealed

_TURN = re.compile(r"t(\d+)")


class CopiedFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The files of a copy at some moment."""

    base: str
    """The commit that the copy was made of."""
    commit: str
    """The commit with the files; "" if they are not on record."""


class ForkPoint(msgspec.Struct, frozen=True, kw_only=True):
    """A moment of an agent that can be forked."""

    run_id: str
    agent: AgentState
    seq: int
    hash: str
    contract: Contract
    """The agent's contract."""
    directory: str | None
    """The folder that it worked in, if that is not the run's."""
    budget_left: Budget
    applied: frozenset[int]
    """Numbers of the changes that were in the user's files."""
    own: frozenset[int]
    """Numbers of the changes among `applied` that the agent and its descendants had made."""
    copied: CopiedFiles | None
    """The files, if the agent did not work in the user's own; `base` is "" in a copy of another."""


async def find_fork_point(store: Store, run_id: str, agent: str, at: int | str | None) -> ForkPoint:
    """The moment `at` of an agent, by id or path, or the last one that can be forked.

    Raises RunError, with the nearest moment that can be forked if there is one, and UsageError.
    """
    row = await store.run(run_id)
    check_sealed(row)
    if row.pruned:
        raise RecoveryError(
            f"The journal of run {row.id} was cleaned away; no moment of it can be forked."
        )
    events = [event for event in await read_all(store, row.id) if event.seq <= row.head_seq]
    verify(events, head_seq=row.head_seq, head_hash=row.head_hash)
    chosen = fold(events).agent(agent)
    moments, obstacles = _moments(events, chosen.id)
    if not moments:
        raise RecoveryError(_no_moment(events, chosen, row.id, at))
    seq = _chosen(row.id, chosen, at, moments, obstacles, events)
    taken = [event for event in events if event.seq <= seq]
    state = fold(taken)
    rows = {one.id: one for one in await store.agents(row.id)}
    created = {e.agent_id: e.seq for e in taken if isinstance(e.fact, AgentCreated)}

    def contract(one: AgentState) -> Contract:
        return decode_contract(contract_json(one, rows.get(one.id), created[one.id]))

    lineage = _lineage(state, chosen.id)
    files = _Files()
    for event in taken:
        files.apply(event)
    below = {one.id for one in (lineage[0], *state.descendants(lineage[0]))}
    applied = _applied(taken)
    contracts = {one.id: contract(one) for one in lineage}
    directories = [one.execution.working_directory for one in contracts.values()]
    return ForkPoint(
        run_id=row.id,
        agent=lineage[0],
        seq=seq,
        hash=taken[-1].hash,
        contract=contracts[chosen.id],
        directory=None if directories[0] == directories[-1] else directories[0],
        budget_left=_budget_left(state, contracts),
        applied=frozenset(applied),
        own=frozenset(number for number, id in applied.items() if id in below),
        copied=files.of(chosen.id),
    )


async def files_at(history: ChangeHistory, point: ForkPoint) -> tuple[str, str]:
    """The commit with the files, and the one that the agent's work is counted from, or "".

    In the user's files, the later changes of the run are reverted; edits of the user and changes of
    other runs stay. Raises WorkspaceError.
    """
    if (copied := point.copied) is not None:
        await history.check_kept([commit for commit in (copied.commit, copied.base) if commit])
        return copied.commit, "" if copied.base == copied.commit else copied.base
    changes = await history.changes(point.run_id)

    async def restored(kept: frozenset[int]) -> str:
        return await history.restored(
            [c for c in changes if c.kind in ("steps", "made") and c.number not in kept],
            [c for c in changes if c.kind == "undone" and c.number in kept],
        )

    files = await restored(point.applied)
    if not point.own:
        return files, ""
    try:
        base = await restored(point.applied - point.own)
    except WorkspaceError:  # The user has edited what it had changed: its later work counts.
        return files, ""
    return files, "" if base == files else base


def _chosen(
    run_id: str,
    agent: AgentState,
    at: int | str | None,
    moments: Mapping[int, int],
    obstacles: Mapping[int, str],
    events: Sequence[Event],
) -> int:
    """The number of the event that `at` names."""
    if at is None:
        return max(moments)
    name = f"Run {run_id}" if agent.id == ROOT_ID else f"{agent.id} of run {run_id}"
    if isinstance(at, str) and (turn := _TURN.fullmatch(at)):
        ends = [seq for seq, turns in moments.items() if turns == int(turn[1])]
        if ends:
            return max(ends)
        known = ", ".join(f"t{n}" for n in sorted(set(moments.values())))
        raise RecoveryError(f"{name} cannot be forked at {at}; it can at: {known}.")
    seq = _number(at)
    if seq in moments:
        return seq
    last, nearest = events[-1].seq, _nearest(moments, seq)
    why = obstacles.get(seq, "it had ended") if 1 <= seq <= last else f"it has {last} events"
    raise RecoveryError(
        f"{name} cannot be forked at event {seq}: {why}. The nearest moment that can:"
        f" --at {nearest}."
    )


def _number(at: int | str) -> int:
    try:
        return int(at)
    except ValueError:
        raise UsageError(
            f"{at!r} names no moment; write the number of an event, or t3 for the end of turn 3."
        ) from None


def _nearest(moments: Mapping[int, int], seq: int) -> int:
    return min(moments, key=lambda one: (abs(one - seq), one))


def _no_moment(
    events: Sequence[Event], agent: AgentState, run_id: str, at: int | str | None
) -> str:
    """Why no moment of an agent can be forked, and what can be instead."""
    facts = (event.fact for event in events if event.agent_id == agent.id)
    if source := next((fact for fact in facts if isinstance(fact, CachedResultUsed)), None):
        return (
            f"{agent.id} of run {run_id} has not worked: its result is that of an earlier agent."
            f" Fork that one: retinue fork {source.run_id} {source.agent_id}"
        )
    if agent.id != ROOT_ID:
        return f"{agent.id} of run {run_id} has no moment that can be forked: it has not begun."
    begun = [e for e in events if isinstance(e.fact, AttemptStarted)]
    if any(event.agent_id == ROOT_ID for event in begun) or not begun:
        return f"Run {run_id} has no moment that can be forked: no agent has begun its work."
    seq = events[-1].seq if at is None or str(at).startswith("t") else _number(at)
    # The agent that was at work there, or the one that began last before.
    earlier = [event for event in begun if event.seq <= seq] or begun[:1]
    for event in reversed(earlier):
        if moments := _moments(events, event.agent_id)[0]:
            moment = "" if at is None else f" --at {_nearest(moments, seq)}"
            return (
                f"Run {run_id} is led by a program, and has no conversation to continue. Its agents"
                f" can be forked: retinue fork {run_id} {event.agent_id}{moment}"
            )
    return f"Run {run_id} has no moment that can be forked."


class _Files:
    """The files of the copies of a run, from its events."""

    def __init__(self) -> None:
        self._trees: dict[str, str | None] = {}
        """For each agent, whose copy it works in; "" for the user's files, None if unknown."""
        self._copies: dict[str, CopiedFiles] = {}
        self._parents: dict[str, str | None] = {}
        self._continues: set[str] = set()

    def apply(self, event: Event) -> None:
        agent = event.agent_id
        match event.fact:
            case AgentCreated() as fact:
                self._parents[agent] = parent = event.parent_agent_id
                # Without a key, it resolves a conflict in a copy that is not on record.
                known = parent is None or fact.origin_key
                self._trees[agent] = self._trees.get(parent or "", "") if known else None
                if fact.continues:
                    self._continues.add(agent)
            case WorktreeCreated(base=base, content=content):
                # Earlier versions do not say what an updated copy has, nor one with kept work.
                is_known = self._trees[agent] != agent and agent not in self._continues
                self._trees[agent] = agent
                self._set(agent, content or (base if is_known else ""), base=base)
            case ToolFinished() as fact:
                if fact.snapshot:
                    self._set(self._trees[agent], fact.snapshot)
                elif fact.receipt.changed or fact.content == INTERRUPTED:
                    self._set(self._trees[agent], "")
            case WorktreeMerged(snapshot=snapshot):
                parent = self._parents[agent]
                self._set(None if parent is None else self._trees[parent], snapshot)
            case ResultProposed(commit=commit) if commit:
                self._set(agent, commit)

    def _set(self, owner: str | None, commit: str, *, base: str = "") -> None:
        if owner:
            base = base or self._copies[owner].base
            self._copies[owner] = CopiedFiles(base=base, commit=commit)

    def are_known(self, agent_id: str) -> bool:
        owner = self._trees.get(agent_id)
        return owner == "" or (owner is not None and bool(self._copies[owner].commit))

    def of(self, agent_id: str) -> CopiedFiles | None:
        """None for the user's files."""
        owner = self._trees[agent_id]
        if not owner:
            return None
        copied = self._copies[owner]
        # Changes in the copy of another agent are not its work alone.
        return copied if owner == agent_id else msgspec.structs.replace(copied, base="")


def _moments(events: Sequence[Event], agent_id: str) -> tuple[dict[int, int], dict[int, str]]:
    """Events after which an agent can be forked, with how many replies it then had; and why not
    after the others, until it ended."""
    moments, obstacles = dict[int, int](), dict[int, str]()
    turns, waiting, working, below = 0, dict[str, str](), set[str](), {agent_id}
    begun = limited = summarizing = False
    files = _Files()
    for event in events:
        fact, is_own = event.fact, event.agent_id == agent_id
        files.apply(event)
        match fact:
            case AgentCreated() if event.parent_agent_id in below:
                below.add(event.agent_id)
                working.add(event.agent_id)
            case AgentClosed():
                working.discard(event.agent_id)
            case AttemptStarted() if is_own:
                begun, limited, summarizing = True, False, False
                waiting.clear()
            case TurnStarted() if is_own:
                limited |= fact.last
            case ModelReplied() if is_own:
                turns += 1
                waiting = {call.id: call.name for call in fact.calls}
            case ToolFinished() | ToolDenied() if is_own:
                waiting.pop(fact.call_id, None)
            case MessageReceived() if is_own:
                summarizing = fact.source == SUMMARIZING
            case ContextCompacted() if is_own:
                summarizing = False
            case LimitReached() if is_own:
                limited = True
        if not begun:
            obstacles[event.seq] = "it had not begun"
        elif waiting:
            obstacles[event.seq] = f"its call of {next(iter(waiting.values()))} has no answer yet"
        elif working:
            obstacles[event.seq] = f"its child {min(working)} is at work there"
        elif limited:
            obstacles[event.seq] = "it has been told that this is its last turn"
        elif summarizing:
            obstacles[event.seq] = "its conversation is being summed up"
        elif not files.are_known(agent_id):
            obstacles[event.seq] = "its files at that moment are not on record"
        else:
            moments[event.seq] = turns
        if is_own and isinstance(fact, AgentClosed) and agent_id != ROOT_ID:
            break
    return moments, obstacles


def _applied(events: Sequence[Event]) -> dict[int, str]:
    """The changes of the user's files that were in them, and who had made them."""
    made: dict[int, str] = {}
    applied: set[int] = set()
    for event in events:
        match event.fact:
            case FilesChanged(number=number):
                made[number] = event.agent_id
                applied.add(number)
            case ChangesUndone(numbers=numbers):
                applied.difference_update(numbers)
            case ChangesRedone(numbers=numbers):
                applied.update(numbers)
    return {number: made[number] for number in applied if number in made}


def _lineage(state: RunState, agent_id: str) -> list[AgentState]:
    """An agent and its ancestors."""
    found = [state.agents[agent_id]]
    while found[-1].parent_id is not None:
        found.append(state.agents[found[-1].parent_id])
    return found


def _budget_left(state: RunState, contracts: Mapping[str, Contract]) -> Budget:
    """The rest of an agent's limits, and of the limits of its ancestors, which it shared.

    `contracts` has those of the agent and of its ancestors, upward. At least 1 of each is left.
    """
    found: Budget | None = None
    for agent_id, contract in contracts.items():
        budget, agent = contract.execution.budget, state.agents[agent_id]
        used = sum((one.usage for one in state.descendants(agent)), agent.usage)
        spent = {"max_tokens": used.tokens, "max_billed_tokens": used.billed_tokens}
        if found is None:
            spent |= {"max_tool_calls": agent.spent.tool_calls, "max_turns": agent.spent.turns}
        left = {
            name: max(1, limit - spent[name])
            for name in spent
            if (limit := getattr(budget, name)) is not None
        }
        if budget.max_cost_usd is not None:
            cost = used.cost_microusd / 1_000_000
            left["max_cost_usd"] = max(0.000_001, budget.max_cost_usd - cost)
        if found is None:
            found = msgspec.structs.replace(budget, **left)
        else:
            found = least(found, msgspec.structs.replace(found, **left))
    assert found is not None, "the agent has a contract"
    return found
