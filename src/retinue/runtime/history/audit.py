"""Checking a run's journal: is it what was written, and do the rows say the same?"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import msgspec

from retinue.domain.agent_state import AgentState
from retinue.domain.chain import verify
from retinue.domain.events import Event
from retinue.domain.lifecycle import State
from retinue.domain.run_state import RunState
from retinue.errors import ChainBroken, IllegalTransition
from retinue.ports.store import AgentRow, RunRow, Store

_BELOW_ALL = -(2**63)


class Audit(msgspec.Struct, frozen=True, kw_only=True):
    run_id: str
    events: int
    agents: int
    head_hash: str
    pruned: int = 0
    """How many events were cleaned away. Of what is left, all is as it was written."""


async def audit(store: Store, run_id: str) -> Audit:
    """Verify the chain, then every contract and every row against it; else raise ChainBroken."""
    row, events, agents = await _snapshot(store, run_id)
    count = verify(events, head_seq=row.head_seq, head_hash=row.head_hash)
    # Nobody reads from below 1, so that an event could hide there.
    first = next(iter(await store.events(row.id, after=_BELOW_ALL, limit=1)), None)
    if first is None:
        raise ChainBroken("Event 1 is missing: the journal is empty.", seq=1)
    if first.seq != 1 and first.type != "run.pruned":
        raise ChainBroken(f"Event {first.seq} was added before the first.", seq=first.seq)
    view = _folded(events)
    if not view.pruned:
        _check_agents(view, agents, events)
    elif agents:
        raise ChainBroken(f"Agent {agents[0].id} has a row, and was cleaned away.", seq=first.seq)
    _check_run(view, row)
    return Audit(
        run_id=row.id,
        events=count,
        agents=len(view.agents),
        head_hash=row.head_hash,
        pruned=view.pruned,
    )


async def read_all(store: Store, run_id: str, *, after: int = 0) -> list[Event]:
    """The events behind a cursor, page by page."""
    found: list[Event] = []
    while page := await store.events(run_id, after=found[-1].seq if found else after):
        found += page
    return found


async def _snapshot(store: Store, run_id: str) -> tuple[RunRow, list[Event], Sequence[AgentRow]]:
    """Everything of a run as it was at one moment, although somebody may be writing it."""
    row = await store.run(run_id)
    events: list[Event] = []
    while True:
        events += await read_all(store, row.id, after=events[-1].seq if events else 0)
        agents = await store.agents(row.id)
        again = await store.run(row.id)
        # Whatever is written moves the end: if that has not moved, nothing has.
        if again.head_seq == row.head_seq:
            return again, events, agents
        row = again


def _folded(events: Iterable[Event]) -> RunState:
    view = RunState()
    for event in events:
        try:
            view.apply(event)
        except (IllegalTransition, KeyError, msgspec.DecodeError) as error:
            raise ChainBroken(
                f"Event {event.seq} ({event.type}) does not follow from those before it: {error}",
                seq=event.seq,
            ) from error
    return view


def _check_agents(view: RunState, agents: Sequence[AgentRow], events: Sequence[Event]) -> None:
    new_agent = {e.agent_id: e.seq for e in events if e.type == "agent.subagent_created"}
    rows = {agent.id: agent for agent in agents}
    # In order of birth, so that the first one is named.
    for agent_id in view.agents | rows:
        folded, row, seq = view.agents.get(agent_id), rows.get(agent_id), new_agent.get(agent_id, 0)
        if folded is None:
            raise ChainBroken(f"Agent {agent_id} has a row, and no event created it.", seq=seq)
        if row is None:
            raise ChainBroken(f"Event {seq} created agent {agent_id}; its row is gone.", seq=seq)
        if hashlib.sha256(row.context_json.encode()).hexdigest() != folded.contract_sha256:
            raise ChainBroken(
                f"The contract of agent {agent_id} is not the one that event {seq} created.",
                seq=seq,
            )
        if not _agree(row, folded):
            raise ChainBroken(
                f"The row of agent {agent_id} ({row.path}, {row.state}) disagrees with its events"
                f" ({folded.path}, {folded.state}).",
                seq=seq,
            )


def _agree(row: AgentRow, folded: AgentState) -> bool:
    return (row.state, row.path, row.role, row.parent_agent_id) == (
        folded.state,
        folded.path,
        folded.role,
        folded.parent_id,
    )


def _check_run(view: RunState, row: RunRow) -> None:
    if (row.status, row.task, row.kind, row.started_at, row.finished_at) != (
        view.status,
        view.task,
        view.kind,
        view.started_at,
        view.finished_at,
    ):
        raise ChainBroken(
            f"The row of run {row.id} ({row.status or 'not finished'}) disagrees with its events"
            f" ({view.status or 'not finished'}).",
            seq=view.last_seq,
        )
    if row.status is not None:
        for agent in view.agents.values():
            if agent.state is not State.CLOSED:
                raise ChainBroken(
                    f"The run is finished, but agent {agent.id} is {agent.state}.",
                    seq=view.last_seq,
                )
