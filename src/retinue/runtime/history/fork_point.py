"""Fork points: moments of a run that another run can start from.

Between two tool calls, the conversation and the files of a root are known: every call has its
answer, and no child is at work. The files follow from the recorded changes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import msgspec

from retinue.domain.agent_state import ROOT_ID
from retinue.domain.budget import Budget
from retinue.domain.chain import verify
from retinue.domain.contract import Contract, decode_contract
from retinue.domain.events import (
    AgentClosed,
    AgentCreated,
    AttemptStarted,
    ChangesRedone,
    ChangesUndone,
    ContextCompacted,
    Event,
    FilesChanged,
    LimitReached,
    MessageReceived,
    ModelReplied,
    ToolDenied,
    ToolFinished,
    TurnStarted,
)
from retinue.domain.run_state import RunState, fold
from retinue.errors import RecoveryError, UsageError
from retinue.ports.file_tree import ChangeHistory
from retinue.ports.store import Store
from retinue.runtime.agent.conversation import SUMMARIZING
from retinue.runtime.history.audit import contract_json, read_all
from retinue.runtime.history.recovery import check_sealed

_TURN = re.compile(r"t(\d+)")


class ForkPoint(msgspec.Struct, frozen=True, kw_only=True):
    """A moment that can be forked."""

    run_id: str
    seq: int
    hash: str
    contract: Contract
    """That of the root."""
    budget_left: Budget
    applied: frozenset[int]
    """Numbers of the changes that were in the user's files."""
    snapshot: str
    """The commit with the files, if the run is a fork itself; otherwise ""."""


async def find_fork_point(store: Store, run_id: str, at: int | str | None) -> ForkPoint:
    """The moment `at` of a run, or the last one that can be forked.

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
    moments = dict(_moments(events))
    if not moments:
        raise RecoveryError(
            f"Run {row.id} has no moment that can be forked: no model leads it, or it has not"
            " begun its work."
        )
    seq = _chosen(row.id, at, moments, last=events[-1].seq)
    taken = [event for event in events if event.seq <= seq]
    state = fold(taken, detailed=True)
    root = state.agents[ROOT_ID]
    rows = {agent.id: agent for agent in await store.agents(row.id)}
    contract = decode_contract(contract_json(root, rows.get(ROOT_ID), taken[1].seq))
    return ForkPoint(
        run_id=row.id,
        seq=seq,
        hash=taken[-1].hash,
        contract=contract,
        budget_left=_budget_left(contract, state),
        applied=_applied(taken),
        snapshot=_snapshot(state, taken),
    )


async def files_at(history: ChangeHistory, point: ForkPoint) -> str:
    """Commit the user's files without the later changes of the run. Raises WorkspaceError.

    Edits of the user and changes of other runs stay.
    """
    changes = await history.changes(point.run_id)
    without = [c for c in changes if c.kind == "made" or (c.kind == "steps" and not _in(c, point))]
    added = [c for c in changes if c.kind == "undone" and _in(c, point)]
    return await history.restored(without, added)


def _in(change: object, point: ForkPoint) -> bool:
    return getattr(change, "number", None) in point.applied


def _chosen(run_id: str, at: int | str | None, moments: dict[int, int], *, last: int) -> int:
    """The number of the event that `at` names."""
    if at is None:
        return max(moments)
    if isinstance(at, str) and (turn := _TURN.fullmatch(at)):
        ends = [seq for seq, turns in moments.items() if turns == int(turn[1])]
        if ends:
            return max(ends)
        known = ", ".join(f"t{n}" for n in sorted(set(moments.values())))
        raise RecoveryError(f"Run {run_id} cannot be forked at {at}; it can at: {known}.")
    try:
        seq = int(at)
    except ValueError:
        raise UsageError(
            f"{at!r} names no moment; write the number of an event, or t3 for the end of turn 3."
        ) from None
    if seq in moments:
        return seq
    nearest = min(moments, key=lambda one: (abs(one - seq), one))
    why = f"it has {last} events" if not 1 <= seq <= last else "a call or a child is at work there"
    raise RecoveryError(
        f"Run {run_id} cannot be forked at event {seq}: {why}. The nearest moment that can:"
        f" --at {nearest}."
    )


def _moments(events: Sequence[Event]) -> Iterator[tuple[int, int]]:
    """Events after which the root can be forked, and how many replies it then had."""
    turns, waiting, working = 0, set[str](), set[str]()
    begun = limited = summarizing = False
    for event in events:
        fact, of_root = event.fact, event.agent_id == ROOT_ID
        match fact:
            case AgentCreated() if not of_root:
                working.add(event.agent_id)
            case AgentClosed():
                working.discard(event.agent_id)
            case AttemptStarted() if of_root:
                begun, limited, summarizing = True, False, False
                waiting.clear()
            case TurnStarted() if of_root:
                limited |= fact.last
            case ModelReplied() if of_root:
                turns += 1
                waiting = {call.id for call in fact.calls}
            case ToolFinished() | ToolDenied() if of_root:
                waiting.discard(fact.call_id)
            case MessageReceived() if of_root:
                summarizing = fact.source == SUMMARIZING
            case ContextCompacted() if of_root:
                summarizing = False
            case LimitReached() if of_root:
                limited = True
        if begun and not (waiting or working or limited or summarizing):
            yield event.seq, turns


def _applied(events: Sequence[Event]) -> frozenset[int]:
    found: set[int] = set()
    for event in events:
        match event.fact:
            case FilesChanged(number=number):
                found.add(number)
            case ChangesUndone(numbers=numbers):
                found.difference_update(numbers)
            case ChangesRedone(numbers=numbers):
                found.update(numbers)
    return frozenset(found)


def _snapshot(state: RunState, events: Sequence[Event]) -> str:
    """The files of a fork at its last event, which its root has in a copy."""
    assert state.started is not None, "a journal begins with run.started"
    origin = state.started.origin
    if origin is None:
        return ""
    if any(agent.background for agent in state.agents.values()):
        raise RecoveryError(
            f"Run {state.id} is a fork with background children; when they changed its files is not"
            " recorded, so it cannot be forked after their start."
        )
    taken = [f.snapshot for e in events if isinstance(f := e.fact, ToolFinished) and f.snapshot]
    return taken[-1] if taken else origin.files


def _budget_left(contract: Contract, state: RunState) -> Budget:
    """What was left of the root's limits; at least 1 of each."""
    budget, root = contract.execution.budget, state.agents[ROOT_ID]
    spent = {
        "max_tool_calls": root.spent.tool_calls,
        "max_turns": root.spent.turns,
        "max_tokens": state.usage.tokens,
        "max_billed_tokens": state.usage.billed_tokens,
    }
    left = {
        name: max(1, limit - spent[name])
        for name in spent
        if (limit := getattr(budget, name)) is not None
    }
    if budget.max_cost_usd is not None:
        used = state.usage.cost_microusd / 1_000_000
        left["max_cost_usd"] = max(0.000_001, budget.max_cost_usd - used)
    return msgspec.structs.replace(budget, **left)
