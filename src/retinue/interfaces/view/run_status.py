"""Status words for runs and agents, as `runs`, `tasks` and `show` print them."""

from __future__ import annotations

import time
from collections import defaultdict

from retinue.config.model_routes import parse_route
from retinue.domain.agent_state import AgentState
from retinue.domain.lifecycle import State
from retinue.domain.run_state import RunState
from retinue.ports.store import RunRow, Store

RUNNING, WAITING = "running", "waiting"
ABANDONED, INTERRUPTED = "abandoned", "interrupted"
PRUNED = "cleaned away"
RESUMABLE = (ABANDONED, INTERRUPTED)
RECENT_S = 300 * 24 * 3600


async def row_status(store: Store, row: RunRow, *, active: bool) -> str:
    """The status of a run in a list. `active`: a process works on it."""
    if row.status is not None:
        return row.status
    if row.pruned:
        return PRUNED
    if active:
        return RUNNING
    last = await store.events(row.id, after=row.head_seq - 1)
    return INTERRUPTED if last and last[0].type == "run.suspended" else ABANDONED


def run_status(view: RunState, *, active: bool) -> str:
    """The status of a run whose events were read."""
    if view.status is not None:
        return view.status
    return RUNNING if active else _unfinished_status(view)


def agent_status(view: RunState, agent: AgentState, *, active: bool) -> str:
    """The status of an agent of that run."""
    if agent.status is not None:
        return agent.status
    if not active:
        return _unfinished_status(view)
    return WAITING if agent.state is State.CREATED else RUNNING


def _unfinished_status(view: RunState) -> str:
    """Why a run without an outcome has no process."""
    if view.pruned:
        return PRUNED
    return ABANDONED if view.suspend_reason is None else INTERRUPTED


def local_time(timestamp: float) -> str:
    """Day and minute; the date alone if it is long ago."""
    recent = time.time() - timestamp < RECENT_S
    return time.strftime("%b %d %H:%M" if recent else "%Y-%m-%d", time.localtime(timestamp))


def abandoned_message(run_id: str) -> str:
    return (
        f"Run {run_id} is not finished, and its process is gone."
        f" Resume it with: retinue resume {run_id}"
    )


def candidate_models(run: RunState) -> dict[str, str]:
    """The models of the candidates of races, by id, if a race has several; the rest has none."""
    candidates = [agent for agent in run.agents.values() if agent.race]
    models = {agent.id: agent.model or run.model for agent in candidates}
    by_race = defaultdict[tuple[str | None, str], set[str]](set)
    for agent in candidates:
        by_race[agent.parent_id, agent.race].add(models[agent.id])
    mixed = {
        agent.id: models[agent.id]
        for agent in candidates
        if len(by_race[agent.parent_id, agent.race]) > 1
    }
    short = {model: parse_route(model).model or model for model in mixed.values()}
    is_clear = len(set(short.values())) == len(short)
    return {agent_id: short[model] if is_clear else model for agent_id, model in mixed.items()}
