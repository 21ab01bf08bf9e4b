"""Pruning: one event with the outcome of a run replaces the journal of the run."""

from __future__ import annotations

from retinue.domain.agent_state import AgentState
from retinue.domain.events import AgentRecord, RunPruned
from retinue.domain.run_state import RunState, fold
from retinue.ports.clock import Clock
from retinue.ports.store import Store
from retinue.runtime.core.journal import record_in_stopped_run
from retinue.runtime.history.audit import audit, read_all


async def prune_journal(store: Store, clock: Clock, run_id: str) -> None:
    """Replace the journal of a run by one event of the same chain. No process may use the run.

    ChainBroken if the journal was altered: the new event would confirm an altered journal.
    """
    await audit(store, run_id)
    row = await store.run(run_id)
    outcome = pruned_event(fold(await read_all(store, row.id)), row.head_seq, row.head_hash)
    await record_in_stopped_run(store, clock, row.id, outcome)


def pruned_event(state: RunState, head_seq: int, head_hash: str) -> RunPruned:
    return RunPruned(
        events=head_seq,
        head_hash=head_hash,
        kind=state.kind,
        task=state.task,
        directory=state.directory,
        model=state.model,
        mode=state.mode,
        sandbox=state.sandbox,
        started_at=state.started_at,
        finished_at=state.finished_at,
        idle_s=state.idle_s,
        status=state.status,
        reason=state.reason,
        earlier=state.earlier_runs,
        usage=state.usage,
        rewritten=tuple(state.undo_history),
        agents=tuple(map(_pruned_agent, state.agents.values())),
    )


def _pruned_agent(agent: AgentState) -> AgentRecord:
    return AgentRecord(**{name: getattr(agent, name) for name in AgentRecord.__struct_fields__})
