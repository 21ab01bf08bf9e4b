"""Reads the journal of a run that another process has left, so that the run can be resumed.

A journal may be cut off anywhere. Everything in it happened, in this order; its consequences
outside of it may or may not have happened.
"""

from __future__ import annotations

from typing import Any

import msgspec

from retinue.domain.agent_state import ROOT_ID
from retinue.domain.chain import verify
from retinue.domain.contract import Contract, decode_contract
from retinue.domain.events import FilesChanged, RunStarted
from retinue.domain.run_state import RunState, fold
from retinue.errors import RecoveryError
from retinue.ports.store import RunRow, Store
from retinue.runtime.history.audit import contract_json, read_all

NOT_YOURS = (
    "Run {run_id} was not started by you in this directory, so it can be shown and nothing else; if"
    " it is yours (from an earlier version, or a copied project), `retinue trust --journal` accepts"
    " all runs here."
)
MIN_EVENTS = 2
"""A run has begun when its first event and its root are on record."""


class RecoveredRun(msgspec.Struct, frozen=True):
    """A run that can be resumed: its state, and the contracts of its agents by their ids."""

    row: RunRow
    started: RunStarted
    state: RunState
    contracts: dict[str, Contract]
    last_change: int
    """The highest number of a change of the user's files."""
    unrecorded: tuple[tuple[str, FilesChanged], ...] = ()
    """Changes of the user's files that the journal lacks, with the ids of their agents."""


async def recover(store: Store, run_id: str) -> RecoveredRun:
    """Read what a run was doing. No process may be writing its journal.

    Raises UnknownRun; RunError if it is over; ChainBroken if the journal was changed.
    """
    row = await store.run(run_id)
    check_sealed(row)
    check_journal(row)
    if row.status is not None:
        raise RecoveryError(
            f"Run {row.id} is over ({row.status}); there is nothing to resume."
            + ("" if row.session is None else f' To continue from it: retinue run -r {row.id} "…"')
        )
    events = await read_all(store, row.id)
    verify(events, head_seq=row.head_seq, head_hash=row.head_hash)
    if len(events) < MIN_EVENTS:
        raise RecoveryError(f"Run {row.id} ended before it had begun; there is nothing to resume.")
    state = fold(events, detailed=True)
    assert state.started is not None, "a journal begins with run.started"
    rows = {agent.id: agent for agent in await store.agents(row.id)}
    created = {e.agent_id: e.seq for e in events if e.type == "agent.subagent_created"}
    contracts = {
        id: decode_contract(contract_json(agent, rows.get(id), created[id]))
        for id, agent in state.agents.items()
    }
    last_change = max((fact.number for _, fact in state.file_changes), default=0)
    return RecoveredRun(row, state.started, state, contracts, last_change)


async def recorded_options(store: Store, row: RunRow, agent: str = ROOT_ID) -> dict[str, Any]:
    """The model, mode and hosts of a run, or of one of its agents. Raises RecoveryError.

    They are options of `open_runtime`, for the process that resumes the run or forks the agent.
    """
    check_sealed(row)
    check_journal(row)
    events, agents = await store.events(row.id, limit=1), await store.agents(row.id)
    try:
        started = fold(events)
        options: dict[str, Any] = {"model": started.model, "mode": started.mode, "web_hosts": None}
        for one in agents:
            if agent in (one.id, one.path):
                contract = decode_contract(one.context_json)
                options["web_hosts"] = contract.permissions.web_hosts or None
                if one.id != ROOT_ID:
                    options["model"] = contract.execution.model
                    options["mode"] = contract.permissions.mode
    except (msgspec.MsgspecError, LookupError) as error:
        raise RecoveryError(
            f"The journal of run {row.id} was changed ({error}): retinue audit {row.id}"
        ) from error
    return options


def check_journal(row: RunRow) -> None:
    """RunError if only the outcome of a run is left."""
    if row.pruned:
        raise RecoveryError(
            f"The journal of run {row.id} was cleaned away; there is nothing left to resume."
        )


def check_sealed(row: RunRow) -> None:
    """RunError if another user has started the run, or the same user in another project."""
    if not row.sealed:
        raise RecoveryError(NOT_YOURS.format(run_id=row.id))
