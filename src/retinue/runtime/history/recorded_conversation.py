"""Conversations that journals hold, for agents that start from one.

An agent that continues another records only the other's name (`AgentCreated.continues`). Its
messages are read back from the journal, byte for byte, so that the model server's prefix cache
hits; a resumed run reads them again.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from retinue.domain.agent_state import ROOT_ID, AgentState, plain_id
from retinue.domain.contract import Contract, decode_contract
from retinue.domain.events import CachedResultUsed
from retinue.domain.lifecycle import State
from retinue.domain.messages import Message, SystemMessage
from retinue.domain.plural import listed
from retinue.domain.resume_point import ResumePoint
from retinue.domain.run_state import RunState, fold, fold_agent
from retinue.errors import UsageError
from retinue.ports.store import RunRow, Store
from retinue.runtime.agent.conversation import Conversation
from retinue.runtime.agent.transcript import replay
from retinue.runtime.history.audit import contract_json, read_all
from retinue.runtime.history.recovery import NOT_YOURS

SHOWN = 10


class RecordedConversation(msgspec.Struct, frozen=True, kw_only=True):
    """The conversation of an agent that has ended."""

    reference: str
    """The agent, as `RUN/AGENT`."""
    agent: AgentState
    contract: Contract
    messages: tuple[Message, ...]
    """All messages but the system message, which the contract of the next agent has."""


def rebuild(
    point: ResumePoint | None, *, earlier: Sequence[Message] = (), exact: bool = False
) -> Conversation:
    """The conversation of an attempt that has ended, after the `earlier` one that it continued.

    With `exact`, every byte is as it was; otherwise notes about the budget are left out.
    """
    opening = None if point is None else point.opening
    conversation = Conversation(opening or (SystemMessage(""),), (), earlier=earlier)
    facts = () if point is None else point.conversation
    replay(facts, conversation, exact=exact).add_answers()
    return conversation


async def load_conversation(
    store: Store, reference: str, *, agent: AgentState | None = None
) -> RecordedConversation:
    """The conversation of the ended agent `RUN/AGENT`. Raises UsageError or UnknownRun.

    `agent` is its whole state (`find_ended`). The agent's own events do not say what its children
    have read.
    """
    row = await _check_kept(store, reference)
    agent_id = reference.partition("/")[2]
    events = await store.agent_events(row.id, agent_id)
    point = fold_agent(events)
    agent = agent or point.agent
    rows = {one.id: one for one in await store.agents(row.id)}
    contract = decode_contract(contract_json(agent, rows.get(agent_id), events[0].seq))
    messages: tuple[Message, ...] = ()
    cached = next((f for e in events if isinstance(f := e.fact, CachedResultUsed)), None)
    if point.opening is not None:
        if agent.continues:
            messages = (await load_conversation(store, agent.continues)).messages
        messages = tuple(rebuild(point, earlier=messages, exact=True).messages[1:])
    elif cached is not None:
        source = await load_conversation(store, f"{cached.run_id}/{cached.agent_id}")
        messages = source.messages
    else:
        raise UsageError(f"{row.id}/{agent_id} never began; spawn an agent with its task instead.")
    return RecordedConversation(
        reference=f"{row.id}/{agent_id}", agent=agent, contract=contract, messages=messages
    )


async def find_ended(store: Store, reference: str) -> tuple[str, AgentState]:
    """The agent that `RUN/AGENT` names, by id or path, and its full reference.

    Raises UsageError if it cannot be continued, with the agents that can, and UnknownRun.
    """
    row = await _check_kept(store, reference)
    run = fold(await read_all(store, row.id))
    agent = _ended(run, plain_id(reference.partition("/")[2]))
    return f"{row.id}/{agent.id}", agent


async def _check_kept(store: Store, reference: str) -> RunRow:
    """The run of `RUN/AGENT`. Raises UsageError if its journal is gone or not the user's."""
    run_id, _, name = reference.partition("/")
    if not name:
        raise UsageError(f"{reference!r} names no agent; write RUN/AGENT, such as k3v9/a3.")
    row = await store.run(run_id)
    if not row.sealed:
        raise UsageError(NOT_YOURS.format(run_id=row.id))
    if row.pruned:
        raise UsageError(
            f"The journal of run {row.id} was cleaned away, with the conversation of {name}."
            f" {await _other_runs(store)}"
        )
    return row


def _ended(run: RunState, name: str) -> AgentState:
    """The child with this id or path. Raises UsageError unless it has ended."""
    found = next((a for a in run.agents.values() if name in (a.id, a.path)), None)
    if found is None:
        raise UsageError(f"Run {run.id} has no agent {name!r}. {_choices(run)}")
    if found.id == ROOT_ID:
        raise UsageError(
            f'{name} is the root of its run; to continue it: retinue run -r {run.id} "…".'
            f" {_choices(run)}"
        )
    if found.state is not State.CLOSED:
        raise UsageError(
            f"{name} has not ended; wait for it, or if its process is gone: retinue resume"
            f" {run.id}. {_choices(run)}"
        )
    return found


def _choices(run: RunState) -> str:
    children = [a for a in run.agents.values() if a.id != ROOT_ID and a.state is State.CLOSED]
    return continuable([f"{agent.id} ({agent.path})" for agent in children])


async def _other_runs(store: Store) -> str:
    rows = [row for row in await store.runs() if row.sealed and not row.pruned and row.last_child]
    return continuable([f"agents of {row.id}" for row in rows])


def continuable(names: Sequence[str]) -> str:
    """A sentence that says which agents can be continued."""
    return f"Can be continued: {listed(names, SHOWN) or 'none'}."
