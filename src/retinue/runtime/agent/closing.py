"""Close an agent: record how it ended, and make its result."""

from __future__ import annotations

from typing import Any

import msgspec

from retinue.domain.agent_state import result_of
from retinue.domain.contract import Contract
from retinue.domain.events import AgentClosed, AgentCompleted, AgentFailed, ResultProposed
from retinue.domain.lifecycle import State
from retinue.domain.result import Result, Status, cap
from retinue.domain.resume_point import ResumePoint
from retinue.runtime.agent.agent import Agent
from retinue.runtime.agent.lifecycle import AttemptOutcome
from retinue.runtime.agent.output_schema import OutputSchema


def close(agent: Agent, outcome: AttemptOutcome) -> None:
    """Record how `agent` ended, and close it. Synchronous, so that a cancelled task can call it."""
    state = agent.state
    if outcome.status is Status.COMPLETED:
        if not outcome.proposed:
            changed = tuple(state.files_modified.values())
            agent.record(
                ResultProposed(sub_agent_id=agent.id, response=outcome.text, files_modified=changed)
            )
        agent.record(AgentCompleted(sub_agent_id=agent.id))
    else:
        agent.record(
            AgentFailed(
                sub_agent_id=agent.id,
                status=outcome.status,
                reason=outcome.reason,
                response=outcome.text,
                conflicts=agent.files.conflicts,
            )
        )
    _record_closed(agent, outcome.reason or "done")


def finish_closing(agent: Agent) -> None:
    """Record the rest of an ending that an earlier process recorded in part."""
    if agent.state.state is State.WAITING_FOR_MERGE:
        agent.record(AgentCompleted(sub_agent_id=agent.id))
    failed = agent.state.state is State.FAILED
    _record_closed(agent, agent.state.error if failed else "done")


def _record_closed(agent: Agent, reason: str) -> None:
    state = agent.state
    agent.record(
        AgentClosed(
            sub_agent_id=agent.id,
            step_idx=agent.contract.parent.step_idx,
            final_status="failed" if state.state is State.FAILED else "completed",
            close_reason=reason,
            unverified=state.claim,
        )
    )


def closed_result(agent: Agent, *, duration_s: float, data: Any = None) -> Result:
    """The result of a closed agent."""
    contract = agent.contract
    return result_of(
        agent.state,
        run_id=contract.parent.run_id,
        task=contract.step.description,
        summary_tokens=contract.outputs.result_cap_tokens,
        duration_s=duration_s,
        data=data,
    )


def recovered_result(agent: Agent, resume_point: ResumePoint) -> Result:
    """The result of an agent whose ending an earlier process recorded."""
    state = agent.state
    completed = state.status in (None, Status.COMPLETED)
    data = output_data(state.response, agent.contract) if completed else None
    return closed_result(agent, duration_s=resume_point.lifetime.seconds, data=data)


def unfinished_result(agent: Agent, outcome: AttemptOutcome, *, duration_s: float) -> Result:
    """The result of a root that is not closed, because its run can be resumed."""
    summary, _ = cap(outcome.text, agent.contract.outputs.result_cap_tokens)
    return msgspec.structs.replace(
        closed_result(agent, duration_s=duration_s),
        status=outcome.status,
        error=outcome.reason,
        response=outcome.text,
        summary=summary,
    )


def proposed_outcome(agent: Agent) -> AttemptOutcome:
    """The outcome of a restored agent that waits to be merged."""
    text = agent.state.response
    data = output_data(text, agent.contract)
    return AttemptOutcome(Status.COMPLETED, text, data=data, proposed=True)


def output_data(response: str, contract: Contract) -> Any:
    """The value in a response, if the contract has an output schema."""
    schema = contract.outputs.output_schema
    return None if schema is None else OutputSchema(schema).check(response)[0]
