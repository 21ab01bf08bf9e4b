"""The attempts of an agent: run each one to its outcome, and retry where that may help."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass

from retinue.domain.approval import agent_label
from retinue.domain.budget import MIN_TIMEOUT_S
from retinue.domain.events import AgentStarted, AttemptStarted
from retinue.domain.lifecycle import State
from retinue.domain.messages import Message
from retinue.domain.result import Status
from retinue.domain.resume_point import ResumePoint
from retinue.errors import (
    ApprovalNeeded,
    BudgetExceeded,
    EndpointUnusable,
    ModelError,
    RunSuspended,
)
from retinue.runtime.agent.agent import Agent
from retinue.runtime.agent.agent_services import AgentServices
from retinue.runtime.agent.conversation import correction, opening
from retinue.runtime.agent.hook_calls import HookCalls
from retinue.runtime.agent.loop import AttemptOutcome, converse, outcome_of
from retinue.runtime.agent.model_turn import ModelSession
from retinue.runtime.agent.output_schema import OutputSchema
from retinue.runtime.agent.tool_calls import ToolCalls


async def run_attempts(agent: Agent, services: AgentServices) -> AttemptOutcome:
    """Run the attempts of `agent`.

    Raises RunSuspended if its model endpoint, or that of a descendant, is gone. Otherwise only a
    cancellation or a broken store raises.
    """
    # The contract is on record before any work is done under it.
    await agent.durable()
    is_new = agent.state.state is State.CREATED
    if is_new:
        agent.record(AgentStarted(sub_agent_id=agent.id))
    if services.hooks.events:
        blocked = await _call_start_hooks(agent, services, is_new=is_new)
        if blocked:
            return AttemptOutcome(Status.REJECTED, "", blocked)
    if (reason := agent.inherited_stop_reason) is not None:
        return AttemptOutcome(Status.CANCELLED, "", reason)
    attempts = agent.contract.execution.max_retries + 1
    because, dialogue = "", _Dialogue()
    for number in range(max(1, agent.state.attempt), attempts + 1):
        outcome = await _attempt(agent, services, number, attempts, because, dialogue)
        if number == attempts:
            return outcome
        if outcome.status is Status.COMPLETED and services.check_work is not None:
            because = dialogue.correction = await services.check_work()
            if not because:
                return outcome
            if (reason := agent.inherited_stop_reason) is not None:
                return AttemptOutcome(Status.CANCELLED, outcome.text, reason)
        elif outcome.retryable:
            because, dialogue = outcome.reason, _Dialogue()
        else:
            return outcome
    raise AssertionError("the last attempt returns")


async def _call_start_hooks(agent: Agent, services: AgentServices, *, is_new: bool) -> str:
    """Run the hooks for the beginning of an agent. Return why its prompt is blocked, or ""."""
    hooks = HookCalls(agent, services)
    if services.only_summarize:
        return (await hooks.before_compact("manual", services.earlier_messages)).blocked
    if is_new:
        return (await hooks.start()).blocked
    if agent.parent is None:
        await hooks.start_session("resume")
    return ""


@dataclass(slots=True)
class _Dialogue:
    """The conversation of an attempt, for an attempt that continues it after a failed check."""

    model: ModelSession | None = None
    tool_calls: ToolCalls | None = None
    correction: str = ""
    """Why the work has to be corrected; "" in an attempt with a conversation of its own."""


async def _attempt(
    agent: Agent,
    services: AgentServices,
    number: int,
    attempts: int,
    because: str,
    dialogue: _Dialogue,
) -> AttemptOutcome:
    """Run one attempt: from an empty conversation, the resume point, or the one to correct."""
    continued = bool(dialogue.correction)
    timeout_s = agent.contract.execution.attempt_timeout_ms / 1000
    resume_point, agent.resume_point = agent.resume_point, None
    left_s = timeout_s
    if resume_point is not None and resume_point.opening is not None:
        messages = resume_point.opening
        left_s = max(MIN_TIMEOUT_S, timeout_s - resume_point.attempt_time.seconds)
    else:
        resume_point = None
        if continued:
            messages = (correction(agent.state.checks[-1], because),)
        else:
            messages = opening(
                agent.contract,
                services.ctx.directory,
                images=agent.state.images,
                because=because,
                since=services.changes_since,
            )
        agent.record(
            AttemptStarted(
                number=number,
                of=attempts,
                timeout_s=timeout_s,
                opening=messages,
                because=because,
                continued=continued,
            ),
            attempt=number,
        )
    activity = agent.activity
    activity.silent_s, activity.given_up = None, False
    activity.deadline = services.clock.timeout(left_s)
    try:
        async with activity.deadline:
            children = services.children
            async with (
                nullcontext()
                if children is None
                else children.attempt(resume_point, continued=continued)
            ):
                return await _converse(agent, services, messages, resume_point, dialogue)
    except TimeoutError:
        if activity.stop_reason is not None:
            return AttemptOutcome(Status.CANCELLED, agent.last_text, activity.stop_reason)
        reason = f"timeout after {timeout_s:g} s"
        if activity.given_up:
            reason = f"stopped after {activity.silent_s:.0f} s without a sign of life"
        return AttemptOutcome(Status.TIMEOUT, agent.last_text, reason, retryable=True)
    except BudgetExceeded as error:
        return AttemptOutcome(Status.BUDGET_EXCEEDED, agent.last_text, str(error))
    except ApprovalNeeded as error:
        return AttemptOutcome(Status.REJECTED, agent.last_text, str(error))
    except ModelError as error:
        return AttemptOutcome(Status.ERROR, agent.last_text, str(error), retryable=error.retryable)
    finally:
        activity.deadline = None
        agent.account.release_kept()
        services.reservations.notify_released()


async def _converse(
    agent: Agent,
    services: AgentServices,
    messages: tuple[Message, ...],
    resume_point: ResumePoint | None,
    dialogue: _Dialogue,
) -> AttemptOutcome:
    schema = agent.contract.outputs.output_schema
    output_schema = None if schema is None else OutputSchema(schema, agent.convert_output)
    model, tool_calls = dialogue.model, dialogue.tool_calls
    if model is None or tool_calls is None:
        tool_calls = dialogue.tool_calls = ToolCalls(agent, services)
        model = dialogue.model = ModelSession(agent, services, tool_calls.offered, messages)
    else:
        for message in messages:
            model.conversation.add(message)
    transcript = None if resume_point is None else model.restore(resume_point.conversation)
    if resume_point is not None and resume_point.asking:
        model.charge_lost_call()
    agent.is_ending = False
    try:
        if services.only_summarize:
            summary = None if transcript is None else transcript.summary
            return outcome_of(agent, await model.summarize() if summary is None else summary)
        outcome = await converse(agent, services, model, tool_calls, output_schema, transcript)
        agent.is_ending = True
        return outcome
    except ModelError as error:
        if not _is_gone(error, agent):
            raise
        suspended = RunSuspended(
            f"{agent_label(agent.path)} waits for {agent.contract.execution.model}: {error}",
            run_id=agent.contract.parent.run_id,
        )
    except RunSuspended as error:  # Of a child.
        suspended = RunSuspended(str(error), run_id=error.run_id)
    if agent.activity.deadline is not None:
        # Other children of the agent may take longer than is left of the attempt.
        services.clock.hold(agent.activity.deadline)
    raise suspended


def _is_gone(error: ModelError, agent: Agent) -> bool:
    """Whether the model endpoint of `agent` is gone, so that the agent waits for it.

    A key or a model name that was refused from the beginning is a mistake in the settings, and the
    agent fails.
    """
    model = agent.contract.execution.model
    return error.endpoint_failed and (
        not isinstance(error, EndpointUnusable) or model in agent.suspension.answered_models
    )
