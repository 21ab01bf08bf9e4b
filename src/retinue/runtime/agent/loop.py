"""The agent loop: ask the model, run its tool calls, check limits, repeat."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec

from retinue.domain.agent_state import ABOUT_FAILURES, CONDENSING
from retinue.domain.events import HookFinished
from retinue.domain.framing import one_line
from retinue.domain.hook import MAX_STOP_BLOCKS, HookOutcome
from retinue.domain.messages import AssistantMessage, Finish, estimate_tokens
from retinue.domain.report import job_block, report_cap
from retinue.domain.result import NOT_AS_SCHEMA, Status
from retinue.domain.resume_point import FROM_CHILDREN
from retinue.errors import BudgetExceeded, ModelError
from retinue.runtime.agent.agent import Agent
from retinue.runtime.agent.agent_services import AgentServices, ChildJobs
from retinue.runtime.agent.conversation import max_new_tokens
from retinue.runtime.agent.hook_calls import HookCalls
from retinue.runtime.agent.model_turn import ModelSession, limit_value
from retinue.runtime.agent.output_schema import OutputSchema
from retinue.runtime.agent.tool_calls import ToolCalls
from retinue.runtime.agent.transcript import Transcript

# Sources of messages to the model. They are stored in the journal.
WRONG_SCHEMA = "schema"
RUN_SUSPENDED = "stop"
RUN_RESUMED = "resume"
CHILDREN_RUNNING = "loose ends"
STOP_BLOCKED = "stop hook"
STOPPED = (
    "The user stops the work here; it may go on later. Say in a few words what you have. No tools."
)
SHOWN_FAILURES = 5
SETTLE = (
    "Continue it or replace it (spawn_agent with continues or replaces), or answer again and say"
    " why it no longer matters."
)
GO_ON = "The work goes on where it was stopped. Go on with your task."


class AttemptOutcome(msgspec.Struct, frozen=True):
    """How an attempt ended."""

    status: Status
    text: str
    reason: str = ""
    retryable: bool = False
    """Whether another attempt may do better."""
    data: Any = None
    proposed: bool = False
    """Whether the event that the work waits to be merged is already on record."""


async def converse(
    agent: Agent,
    services: AgentServices,
    model: ModelSession,
    tool_calls: ToolCalls,
    output_schema: OutputSchema | None,
    transcript: Transcript | None = None,
) -> AttemptOutcome:
    """Run the loop until the model gives its last answer.

    With `transcript`, continue a conversation that an earlier process began.
    """
    children, stop_blocks = services.children, 0
    was_corrected = was_condensed = expects_json = knows_limit = was_cut = False
    limit: str | None = None
    reply: AssistantMessage | None = None
    if transcript is not None:
        was_corrected = WRONG_SCHEMA in transcript.sources
        stop_blocks = transcript.sources.count(STOP_BLOCKED)
        was_condensed = transcript.last_source == CONDENSING
        limit, knows_limit = transcript.limit, transcript.limit is not None
        expects_json = transcript.last_source == WRONG_SCHEMA and transcript.last_reply is None
        reply = await _resume(model, tool_calls, transcript)
    while True:
        if reply is None:
            if agent.suspension.reason is not None:
                await _pause(agent, model)
            reader = agent.suspension.reader_has_room
            if reader is not None and not reader.is_set():
                with agent.waiting_for_person():
                    await reader.wait()
            if not knows_limit:
                if agent.inbox or children is not None:
                    await _deliver_messages(agent, model, children)
                limit = "max_tool_calls" if tool_calls.exhausted else model.limit()
                if limit is None and model.exceeds_window:
                    limit = await model.make_room()
            # After an answer in the wrong form, offer no tools: more servers can then hold a model
            # to a schema.
            asked = await model.ask(limit=limit, knows_limit=knows_limit, tools=not expects_json)
            reply, expects_json = asked.message, False
            was_cut = asked.finish is Finish.LENGTH
            limit = limit or model.reached_limit
        text, calls, reply = reply.content, reply.calls, None
        if calls and not limit:
            answers = await tool_calls.run(calls)
            model.conversation.answer(answers, model.fit(answers))
            if was_cut:
                model.ask_for_missing_calls()
        elif (
            limit
            or not model.has_turns
            or not (
                _has_new_message(agent)
                or await _remind_of_children(model, children)
                or _remind_of_failures(model, children)
            )
        ):
            if limit is None and services.hooks.events and stop_blocks <= MAX_STOP_BLOCKS:
                blocked = await _call_stop_hooks(agent, services, model, text, stop_blocks)
                if blocked:
                    stop_blocks += 1
                    continue
                if model.has_turns and _has_new_message(agent):
                    continue
            data, problem = (None, None) if output_schema is None else output_schema.check(text)
            if problem is None or limit or was_corrected:
                if limit is None and output_schema is None and not was_condensed:
                    await _condense(agent, model, text)
                return outcome_of(agent, text, limit, data, problem)
            was_corrected = expects_json = True
            model.tell(
                f"That does not fit: {problem}. Send only the right JSON.", source=WRONG_SCHEMA
            )


def outcome_of(
    agent: Agent,
    text: str,
    limit: str | None = None,
    data: Any = None,
    problem: str | None = None,
) -> AttemptOutcome:
    """The outcome of a conversation that ended with `text`, because of `limit` if there is one.

    `problem` says why the text does not fit the output schema.
    """
    if limit is not None:
        reason = f"{limit} {limit_value(agent, limit)} reached"
        return AttemptOutcome(Status.BUDGET_EXCEEDED, text, reason, data=data)
    if not text.strip():
        reason = "the model answered nothing"
        return AttemptOutcome(Status.ERROR, agent.last_text, reason, retryable=True)
    if problem is not None:
        reason = f"{NOT_AS_SCHEMA}: {problem}"
        return AttemptOutcome(Status.ERROR, text, reason)
    return AttemptOutcome(Status.COMPLETED, text, data=data)


async def _resume(
    model: ModelSession, tool_calls: ToolCalls, transcript: Transcript
) -> AssistantMessage | None:
    """Complete the last turn of an earlier process.

    Return the last reply if it ended the conversation; None if the model has to be asked again.
    """
    tool_calls.exhausted = transcript.calls_exhausted
    reply, suspended = transcript.last_reply, transcript.last_source == RUN_SUSPENDED
    if transcript.last_source == CONDENSING:
        return AssistantMessage(transcript.uncondensed)
    if reply is not None and (transcript.limit or not (reply.calls or suspended)):
        return AssistantMessage(transcript.text, reply.calls, reply.thoughts)
    if reply is not None:
        await tool_calls.finish(transcript)
        transcript.add_answers(model.fit(transcript.last_answers))
        if reply.calls and reply.finish == Finish.LENGTH:
            model.ask_for_missing_calls()
    if suspended:
        model.tell(GO_ON, source=RUN_RESUMED)
    return None


async def _call_stop_hooks(
    agent: Agent, services: AgentServices, model: ModelSession, text: str, blocks: int
) -> bool:
    """Run the hooks for the end of an agent. Return whether one sends the model on."""
    hooks, messages = HookCalls(agent, services), model.conversation.messages
    answer = await hooks.stop(text, messages, again=blocks > 0)
    if not answer.blocked or answer.stop:
        return False
    if blocks == MAX_STOP_BLOCKS:
        # The hook may block for ever.
        ignored = f"blocked {blocks} times before, so the agent ends all the same"
        agent.record(
            HookFinished(event="Stop", hook="", outcome=HookOutcome.FAILED, detail=ignored)
        )
        return False
    model.tell(answer.blocked, source=STOP_BLOCKED)
    return True


async def _condense(agent: Agent, model: ModelSession, text: str) -> None:
    """Have a child write a shorter version of an answer that is too long for its parent."""
    most = agent.contract.outputs.result_cap_tokens
    if agent.parent is not None and estimate_tokens(text) > most:
        await model.condense(most)


async def _pause(agent: Agent, model: ModelSession) -> None:
    """Let the model say what it has, if a turn is left after that; then wait to be cancelled."""
    if model.asked and model.limit() is None:
        model.tell(STOPPED, source=RUN_SUSPENDED)
        # If the model fails, it is asked again when the run is resumed.
        with suppress(ModelError, BudgetExceeded):
            await model.ask(tools=False)
    await agent.pause()


async def _deliver_messages(agent: Agent, model: ModelSession, children: ChildJobs | None) -> None:
    """Tell the model what arrived since its last turn: messages, results of background children."""
    while agent.inbox:
        source, text = agent.inbox.pop(0)
        model.tell(text, source=source)
    ended = () if children is None else await children.take_ended()
    for result in ended:
        cap = report_cap(agent.contract, max_new_tokens(agent.contract) // len(ended))
        text = f"A background job has ended.\n{job_block(result, cap_tokens=cap)}"
        model.tell(text, source=FROM_CHILDREN, about=(result.agent_id,))


def _has_new_message(agent: Agent) -> bool:
    """Whether a message arrived while the model was answering, so that it gets another turn."""
    return bool(agent.unread_messages)


def _remind_of_failures(model: ModelSession, children: ChildJobs | None) -> bool:
    """Tell a root about failed children once. Return whether it gets another turn."""
    failed = () if children is None else children.take_failed()
    if failed:
        lines = [f"{failure}: {one_line(failure.error)}" for failure in failed[:SHOWN_FAILURES]]
        if (more := len(failed) - len(lines)) > 0:
            lines.append(f"{more:,} more failed.")
        lines.append(SETTLE)
        about = tuple(failure.agent_id for failure in failed)
        model.tell("\n".join(lines), source=ABOUT_FAILURES, about=about)
    return bool(failed)


async def _remind_of_children(model: ModelSession, children: ChildJobs | None) -> bool:
    """Tell the model about background children once. Return whether it gets another turn."""
    if children is None:
        return False
    if await children.has_news():
        return True  # `_deliver_messages` delivers their results.
    running = await children.take_running()
    if running:
        names = ", ".join(f"{child.id} ({child.title})" for child in running)
        model.tell(
            f"Still running in the background: {names}. Wait for them with spawn_await, stop them"
            " with agent_cancel, or answer again to end without them.",
            source=CHILDREN_RUNNING,
            about=tuple(child.id for child in running),
        )
    return bool(running)
