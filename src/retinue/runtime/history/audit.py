"""Audits a run: the hash chain of its journal, its contracts, and its rows in the database."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import msgspec

from retinue.domain.agent_state import AgentState
from retinue.domain.chain import verify
from retinue.domain.events import Event
from retinue.domain.lifecycle import State
from retinue.domain.run_state import RunState
from retinue.errors import ChainBroken, IllegalTransition, UnknownRun
from retinue.ports.store import AgentRow, RunRow, Store

_BELOW_ALL = -(2**63)


class Audit(msgspec.Struct, frozen=True, kw_only=True):
    """What a successful audit has verified."""

    run_id: str
    events: int
    agents: int
    head_hash: str
    pruned: int = 0
    """How many events were cleaned away before. The rest is as it was written."""
    origin: str = ""
    """For a fork, the run that it starts from, whose event has the hash that the fork names."""


async def audit(store: Store, run_id: str) -> Audit:
    """Verify the chain, and every contract and row against it. Raises ChainBroken."""
    row, events, agents = await _snapshot(store, run_id)
    count = verify(events, head_seq=row.head_seq, head_hash=row.head_hash)
    # Readers start at event 1, so an event with a lower number could hide.
    first = next(iter(await store.events(row.id, after=_BELOW_ALL, limit=1)), None)
    if first is None:
        raise ChainBroken("Event 1 is missing: the journal is empty.", seq=1)
    if first.seq != 1 and first.type != "run.pruned":
        raise ChainBroken(f"Event {first.seq} was added before the first.", seq=first.seq)
    state = _fold(events)
    if not state.pruned:
        _check_agents(state, agents, events)
    elif agents:
        raise ChainBroken(f"Agent {agents[0].id} has a row, and was cleaned away.", seq=first.seq)
    _check_run(state, row)
    origin = await _check_origin(store, state)
    return Audit(
        run_id=row.id,
        events=count,
        agents=len(state.agents),
        head_hash=row.head_hash,
        pruned=state.pruned,
        origin=origin,
    )


async def _check_origin(store: Store, state: RunState) -> str:
    """The run that a fork starts from; "" if this store does not have the event any more."""
    origin = None if state.started is None else state.started.origin
    if origin is None:
        return ""
    try:
        row = await store.run(origin.run_id)
    except UnknownRun:
        return ""
    if row.pruned:
        return ""
    found = await store.events(row.id, after=origin.seq - 1, limit=1)
    if not found or found[0].seq != origin.seq or found[0].hash != origin.hash:
        raise ChainBroken(
            f"The run was forked from event {origin.seq} of run {row.id}, and that event is not"
            " the one that the fork names.",
            seq=1,
        )
    return row.id


async def read_all(store: Store, run_id: str, *, after: int = 0) -> list[Event]:
    """The events of a run with numbers above `after`, read page by page."""
    found: list[Event] = []
    while page := await store.events(run_id, after=found[-1].seq if found else after):
        found += page
    return found


async def _snapshot(store: Store, run_id: str) -> tuple[RunRow, list[Event], Sequence[AgentRow]]:
    """The row, events and agents of a run at one moment, although a process may be writing it."""
    row = await store.run(run_id)
    events: list[Event] = []
    while True:
        events += await read_all(store, row.id, after=events[-1].seq if events else 0)
        agents = await store.agents(row.id)
        again = await store.run(row.id)
        # Every write moves the head. If the head has not moved, nothing was written.
        if again.head_seq == row.head_seq:
            return again, events, agents
        row = again


def _fold(events: Iterable[Event]) -> RunState:
    state = RunState()
    for event in events:
        try:
            state.apply(event)
        except (IllegalTransition, KeyError, msgspec.DecodeError) as error:
            raise ChainBroken(
                f"Event {event.seq} ({event.type}) does not follow from those before it: {error}",
                seq=event.seq,
            ) from error
    return state


def _check_agents(state: RunState, agents: Sequence[AgentRow], events: Sequence[Event]) -> None:
    created = {e.agent_id: e.seq for e in events if e.type == "agent.subagent_created"}
    rows = {agent.id: agent for agent in agents}
    # In the order of their creation, so that the error names the first one.
    for agent_id in state.agents | rows:
        folded, row, seq = state.agents.get(agent_id), rows.get(agent_id), created.get(agent_id, 0)
        if folded is None:
            raise ChainBroken(f"Agent {agent_id} has a row, and no event created it.", seq=seq)
        if row is None:
            raise ChainBroken(f"Event {seq} created agent {agent_id}; its row is gone.", seq=seq)
        contract_json(folded, row, seq)
        if (row.state, row.path, row.role, row.parent_agent_id) != (
            folded.state,
            folded.path,
            folded.role,
            folded.parent_id,
        ):
            raise ChainBroken(
                f"The row of agent {agent_id} ({row.path}, {row.state}) disagrees with its events"
                f" ({folded.path}, {folded.state}).",
                seq=seq,
            )


def contract_json(agent: AgentState, row: AgentRow | None, seq: int) -> str:
    """The stored contract of an agent. ChainBroken if event `seq` created it with another one."""
    digest = None if row is None else hashlib.sha256(row.context_json.encode()).hexdigest()
    if row is None or digest != agent.contract_sha256:
        raise ChainBroken(
            f"The contract of agent {agent.id} is not the one that event {seq} created.", seq=seq
        )
    return row.context_json


def _check_run(state: RunState, row: RunRow) -> None:
    if (row.status, row.task, row.kind, row.started_at, row.finished_at) != (
        state.status,
        state.task,
        state.kind,
        state.started_at,
        state.finished_at,
    ):
        raise ChainBroken(
            f"The row of run {row.id} ({row.status or 'not finished'}) disagrees with its events"
            f" ({state.status or 'not finished'}).",
            seq=state.last_seq,
        )
    if row.status is not None:
        for agent in state.agents.values():
            if agent.state is not State.CLOSED:
                raise ChainBroken(
                    f"The run is finished, but agent {agent.id} is {agent.state}.",
                    seq=state.last_seq,
                )
