"""The life of an agent from its first attempt to its closing.

An agent proposes (`live`); the parent's side integrates, completes or fails it, and always closes
it (`close`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from retinue.domain import agent_state
from retinue.domain.agent_state import TAINTED
from retinue.domain.approval import Rules
from retinue.domain.budget import MIN_TIMEOUT_S
from retinue.domain.contract import Contract
from retinue.domain.events import (
    AgentClosed,
    AgentCompleted,
    AgentFailed,
    AgentStarted,
    AttemptStarted,
    ResultProposed,
)
from retinue.domain.evidence import unverified
from retinue.domain.lifecycle import State
from retinue.domain.messages import Message
from retinue.domain.price import PoolPrice, Price
from retinue.domain.result import Result, Status, cap
from retinue.domain.resume_point import ResumePoint
from retinue.errors import ApprovalNeeded, BudgetExceeded, ModelError, ModelStuck
from retinue.ports.clock import Clock
from retinue.ports.delegation import Delegation
from retinue.ports.model import Model
from retinue.ports.person import Approve
from retinue.ports.tool import ToolContext
from retinue.runtime.agent.agent import Agent
from retinue.runtime.agent.children import Children
from retinue.runtime.agent.conversation import opening
from retinue.runtime.agent.loop import Answer, converse
from retinue.runtime.agent.model_turn import ModelSession, OnText
from retinue.runtime.agent.output_schema import OutputSchema
from retinue.runtime.agent.tool_calls import NO_RULES, ToolCalls, Tools
from retinue.runtime.core.reservations import Reservations
from retinue.runtime.core.task_group import TaskGroup
from retinue.runtime.policy import Breaker

DONE = "its parent is done"


class AgentServices(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent lives by: all that its loop needs besides its contract."""

    model: Model
    tools: Tools
    ctx: ToolContext
    approve: Approve
    reservations: Reservations
    clock: Clock
    staff: Callable[[Agent, TaskGroup, ResumePoint | None], Children]
    desk: Callable[[Agent, Children], Delegation]
    at_once: int
    """How many of its calls that may run side by side do so."""
    window: int | None = None
    """The tokens that a call may have, if the server tells."""
    price: Price | PoolPrice | None = None
    breaker: Breaker | None = None
    rules: Rules = NO_RULES
    on_text: OnText | None = None
    before: tuple[Message, ...] = ()
    """What was said earlier in the session."""
    sums_up: bool = False
    """Whether to write down what was said is all there is to do."""


class AttemptOutcome(msgspec.Struct, frozen=True):
    """How an attempt ended. `again` says whether another attempt could do better."""

    status: Status
    text: str
    reason: str = ""
    again: bool = False
    data: Any = None
    cached: bool = False
    proposed: bool = False
    """Whether it is on record already that it waits to be integrated."""
    stranded: bool = False
    """Whether all that it lacks is a model that answers, so that it can go on when there is one."""


async def live(agent: Agent, means: AgentServices) -> AttemptOutcome:
    """Run the attempts of `agent`. Only a cancellation or a broken store raises."""
    # The contract is on record before any work is done under it.
    await agent.durable()
    if agent.past is None or agent.past.agent.state is State.CREATED:
        agent.record(AgentStarted(sub_agent_id=agent.id))
    if (why := agent.why_stopped) is not None:
        return AttemptOutcome(Status.CANCELLED, "", why)
    tries = agent.contract.execution.max_retries + 1
    because = ""
    for number in range(max(1, agent.attempt), tries + 1):
        agent.attempt = number
        ending = await _attempt(agent, means, number, tries, because)
        if not ending.again or number == tries or ending.stranded:
            return ending
        because = ending.reason
    raise AssertionError("the last try returns")


async def _attempt(
    agent: Agent, means: AgentServices, number: int, tries: int, because: str
) -> AttemptOutcome:
    """One try at the contract, from an empty conversation, or from where it was left."""
    timeout_s = agent.contract.execution.attempt_timeout_ms / 1000
    past, agent.past = agent.past, None
    left_s = timeout_s
    if past is not None and past.opening is not None:
        messages = past.opening
        left_s = max(MIN_TIMEOUT_S, timeout_s - past.attempt_time.seconds)
    else:
        past = None
        messages = opening(agent.contract, means.ctx.directory, because=because)
        agent.record(
            AttemptStarted(
                number=number, of=tries, timeout_s=timeout_s, opening=messages, because=because
            )
        )
    agent.silent_s, agent.given_up = None, False
    agent.deadline = means.clock.timeout(left_s)
    try:
        async with agent.deadline:
            answer = await _work(agent, means, messages, past)
    except TimeoutError:
        if agent.stop_reason is not None:
            return AttemptOutcome(Status.CANCELLED, agent.last_text, agent.stop_reason)
        why = f"timeout after {timeout_s:g} s"
        if agent.given_up:
            why = f"stopped after {agent.silent_s:.0f} s without a sign of life"
        return AttemptOutcome(Status.TIMEOUT, agent.last_text, why, again=True)
    except BudgetExceeded as error:
        return AttemptOutcome(Status.BUDGET_EXCEEDED, agent.last_text, str(error))
    except ApprovalNeeded as error:
        return AttemptOutcome(Status.REJECTED, agent.last_text, str(error))
    except ModelError as error:
        stranded = strands(agent, error)
        return AttemptOutcome(
            Status.ERROR, agent.last_text, str(error), again=error.retryable, stranded=stranded
        )
    finally:
        agent.deadline = None
    return _ending(agent, answer)


async def _work(
    agent: Agent, means: AgentServices, messages: tuple[Message, ...], past: ResumePoint | None
) -> Answer:
    grant, schema = agent.contract.permissions, agent.contract.outputs.output_schema
    shape = None if schema is None else OutputSchema(schema)
    if not grant.can_spawn_children:
        return await _converse(agent, means, messages, means.ctx, None, shape, past)
    async with TaskGroup() as tasks:
        staff = means.staff(agent, tasks, past)
        ctx = msgspec.structs.replace(means.ctx, delegation=means.desk(agent, staff))
        answer = await _converse(agent, means, messages, ctx, staff, shape, past)
        await staff.dismiss(DONE)
    return answer


async def _converse(
    agent: Agent,
    means: AgentServices,
    messages: tuple[Message, ...],
    ctx: ToolContext,
    staff: Children | None,
    shape: OutputSchema | None,
    past: ResumePoint | None,
) -> Answer:
    toolbox = ToolCalls(
        agent,
        means.tools,
        ctx,
        means.approve,
        means.breaker,
        at_once=means.at_once,
        rules=means.rules,
    )
    mind = ModelSession(
        agent,
        means.model,
        toolbox.offered,
        opening=messages,
        before=means.before,
        reservations=means.reservations,
        clock=means.clock,
        window=means.window,
        price=means.price,
        on_text=means.on_text,
    )
    transcript = None if past is None else mind.replay(past.conversation)
    if means.sums_up:
        known = None if transcript is None else transcript.summary
        return Answer(await mind.sum_up() if known is None else known)
    try:
        return await converse(agent, mind, toolbox, staff, shape, transcript)
    except ModelError as error:
        if strands(agent, error):
            # Before its children are cancelled: they are left as they are.
            agent.suspension.request(str(error), is_busy=lambda: False)
        raise


def strands(agent: Agent, error: ModelError) -> bool:
    """Is the run to be left as it is? A root has nobody who could do without it.

    Where nothing was said yet, there is nothing to go on from.
    """
    began = agent.account.spent.turns > 0
    return agent.parent is None and began and not isinstance(error, ModelStuck)


def _ending(agent: Agent, answer: Answer) -> AttemptOutcome:
    if answer.limit is not None:
        limit = f"{answer.limit} {getattr(agent.contract.execution, answer.limit):,}"
        return AttemptOutcome(
            Status.BUDGET_EXCEEDED, answer.text, f"{limit} reached", data=answer.data
        )
    if not answer.text.strip():
        return AttemptOutcome(
            Status.ERROR, agent.last_text, "the model answered nothing", again=True
        )
    if answer.problem is not None:
        why = f"the answer does not fit the output schema: {answer.problem}"
        return AttemptOutcome(Status.ERROR, answer.text, why)
    return AttemptOutcome(Status.COMPLETED, answer.text, data=answer.data)


def conclude(agent: Agent, past: ResumePoint) -> None:
    """Write the rest of an ending that is on record in part."""
    if past.agent.state is State.WAITING_FOR_MERGE:
        agent.record(AgentCompleted(sub_agent_id=agent.id))
    failed = past.agent.state is State.FAILED
    agent.record(
        AgentClosed(
            sub_agent_id=agent.id,
            step_idx=agent.contract.parent.step_idx,
            final_status="failed" if failed else "completed",
            close_reason=past.agent.error if failed else "done",
            unverified=past.agent.claim,
        )
    )


def recovered_result(past: ResumePoint, contract: Contract) -> Result:
    """The result of an agent whose ending another process has put on record."""
    state = past.agent
    completed = state.status in (None, Status.COMPLETED)
    return agent_state.result_of(
        state,
        run_id=contract.parent.run_id,
        task=contract.step.description,
        summary_tokens=contract.outputs.result_cap_tokens,
        duration_s=past.lifetime.seconds,
        data=data_in(state.response, contract) if completed else None,
    )


def proposed_outcome(past: ResumePoint, contract: Contract) -> AttemptOutcome:
    """The outcome of an agent that waits to be merged."""
    text = past.agent.response
    return AttemptOutcome(Status.COMPLETED, text, data=data_in(text, contract), proposed=True)


def data_in(response: str, contract: Contract) -> Any:
    """The value in a response, if the contract has an output schema."""
    schema = contract.outputs.output_schema
    return None if schema is None else OutputSchema(schema).check(response)[0]


def close(agent: Agent, ending: AttemptOutcome, *, duration_s: float = 0.0) -> Result:
    """Write how `agent` ended and close it. Synchronous, so that a cancelled task can do it too."""
    text = ending.text
    claim = unverified(text, tested=agent.tested)
    if ending.status is Status.COMPLETED:
        if not ending.proposed:
            changed = tuple(agent.files_modified.values())
            agent.record(
                ResultProposed(sub_agent_id=agent.id, response=text, files_modified=changed)
            )
        agent.record(AgentCompleted(sub_agent_id=agent.id))
    else:
        agent.record(
            AgentFailed(
                sub_agent_id=agent.id,
                status=ending.status,
                reason=ending.reason,
                response=text,
                conflicts=agent.conflicts,
            )
        )
    agent.record(
        AgentClosed(
            sub_agent_id=agent.id,
            step_idx=agent.contract.parent.step_idx,
            final_status="completed" if ending.status is Status.COMPLETED else "failed",
            close_reason=ending.reason or "done",
            unverified=claim,
        )
    )
    return result_of(agent, ending, duration_s=duration_s, claim=claim)


def result_of(
    agent: Agent, ending: AttemptOutcome, *, duration_s: float, claim: str = ""
) -> Result:
    text = ending.text
    summary, _ = cap(text, agent.contract.outputs.result_cap_tokens)
    return Result(
        status=ending.status,
        agent_id=agent.id,
        run_id=agent.contract.parent.run_id,
        role=agent.role,
        task=agent.contract.step.description,
        summary=summary,
        response=text,
        data=ending.data,
        error=None if ending.status is Status.COMPLETED else ending.reason,
        cached=ending.cached,
        notes=(*agent.notes, *((TAINTED,) if agent.tainted else ())),
        usage=agent.spent(duration_s),
        attempts=agent.attempt,
        files_read=tuple(agent.files_read),
        files_modified=tuple(agent.files_modified.values()),
        receipts=tuple(agent.receipts),
        tainted=agent.tainted,
        checks=tuple(agent.checks),
        conflicts=agent.conflicts,
        kept=agent.kept,
        unverified=claim,
    )
