"""The life of an agent from its first attempt to its closing.

An agent proposes (`live`); the parent's side integrates, completes or fails it, and always closes
it (`close`).
"""

from __future__ import annotations

import msgspec

from retinue.domain.events import (
    AgentAttempted,
    AgentClosed,
    AgentCompleted,
    AgentFailed,
    AgentStarted,
    AgentWaiting,
)
from retinue.domain.result import Result, Status, cap
from retinue.errors import ApprovalNeeded, BudgetExceeded, ModelError
from retinue.ports import Approve, Clock, Hands, Model
from retinue.runtime.agent import Agent
from retinue.runtime.allowance import Allowance
from retinue.runtime.context import opening
from retinue.runtime.loop import converse
from retinue.runtime.mind import Mind, OnText
from retinue.runtime.toolbox import Toolbox, Tools


class Means(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent lives by: all that its loop needs besides its contract."""

    model: Model
    tools: Tools
    hands: Hands
    approve: Approve
    allowance: Allowance
    clock: Clock
    on_text: OnText | None = None


class Ending(msgspec.Struct, frozen=True):
    """How an attempt ended. `again` says whether another attempt could do better."""

    status: Status
    text: str
    reason: str = ""
    again: bool = False


async def live(agent: Agent, means: Means) -> Ending:
    """Run the attempts of `agent`. Only a cancellation or a broken store raises."""
    # The contract is on record before any work is done under it.
    await agent.durable()
    agent.record(AgentStarted(sub_agent_id=agent.id))
    return await _attempts(agent, means)


async def _attempts(agent: Agent, means: Means) -> Ending:
    tries = agent.contract.execution.max_retries + 1
    because = ""
    for number in range(1, tries + 1):
        agent.attempt = number
        ending = await _attempt(agent, means, number, tries, because)
        if not ending.again or number == tries:
            return ending
        because = ending.reason
    raise AssertionError("the last try returns")


async def _attempt(agent: Agent, means: Means, number: int, tries: int, because: str) -> Ending:
    """One try at the contract, from an empty conversation."""
    timeout_s = agent.contract.execution.attempt_timeout_ms / 1000
    messages = opening(agent.contract, means.hands.workspace.root, because=because)
    agent.record(
        AgentAttempted(
            number=number, of=tries, timeout_s=timeout_s, opening=messages, because=because
        )
    )
    toolbox = Toolbox(agent, means.tools, means.hands, means.approve)
    mind = Mind(
        agent,
        means.model,
        toolbox.offered,
        opening=messages,
        allowance=means.allowance,
        clock=means.clock,
        on_text=means.on_text,
    )
    try:
        async with means.clock.timeout(timeout_s):
            answer = await converse(mind, toolbox)
    except TimeoutError:
        return Ending(Status.TIMEOUT, agent.last_text, f"timeout after {timeout_s:g} s", again=True)
    except BudgetExceeded as error:
        return Ending(Status.BUDGET_EXCEEDED, agent.last_text, str(error))
    except ApprovalNeeded as error:
        return Ending(Status.REJECTED, agent.last_text, str(error))
    except ModelError as error:
        return Ending(Status.ERROR, agent.last_text, str(error), again=error.retryable)
    if answer.limit is not None:
        limit = f"{answer.limit} {getattr(agent.contract.execution, answer.limit):,}"
        return Ending(Status.BUDGET_EXCEEDED, answer.text, f"{limit} reached")
    if not answer.text.strip():
        return Ending(Status.ERROR, agent.last_text, "the model answered nothing", again=True)
    return Ending(Status.COMPLETED, answer.text)


def close(agent: Agent, ending: Ending, *, duration_s: float = 0.0) -> Result:
    """Write how `agent` ended and close it. Synchronous, so that a cancelled task can do it too."""
    text = ending.text
    if ending.status is Status.COMPLETED:
        changed = tuple(agent.files_modified.values())
        agent.record(AgentWaiting(sub_agent_id=agent.id, response=text, files_modified=changed))
        agent.record(AgentCompleted(sub_agent_id=agent.id))
    else:
        agent.record(
            AgentFailed(
                sub_agent_id=agent.id, status=ending.status, reason=ending.reason, response=text
            )
        )
    agent.record(
        AgentClosed(
            sub_agent_id=agent.id,
            step_idx=agent.contract.parent.step_idx,
            final_status="completed" if ending.status is Status.COMPLETED else "failed",
            close_reason=ending.reason or "done",
        )
    )
    summary, _ = cap(text, agent.contract.outputs.result_cap_tokens)
    return Result(
        status=ending.status,
        agent_id=agent.id,
        run_id=agent.contract.parent.run_id,
        role=agent.role,
        task=agent.contract.step.description,
        summary=summary,
        response=text,
        error=None if ending.status is Status.COMPLETED else ending.reason,
        usage=agent.spent(duration_s),
        attempts=agent.attempt,
        files_read=tuple(agent.files_read),
        files_modified=tuple(agent.files_modified.values()),
        receipts=tuple(agent.receipts),
    )
