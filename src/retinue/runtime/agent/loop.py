"""The agent loop."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec

from retinue.domain.messages import AssistantMessage
from retinue.domain.report import job_block, report_cap
from retinue.errors import BudgetExceeded, ModelError
from retinue.runtime.agent.agent import Agent
from retinue.runtime.agent.children import LOOSE_ENDS, Children
from retinue.runtime.agent.conversation import room_for_news
from retinue.runtime.agent.model_turn import ModelSession
from retinue.runtime.agent.output_schema import OutputSchema
from retinue.runtime.agent.tool_calls import ToolCalls
from retinue.runtime.agent.transcript import Transcript

SCHEMA = "schema"  # who tells an agent that its answer does not fit
STOP = "stop"  # … that its run is being stopped
STOPPED = (
    "The user stops the work here; it may go on later. Say in a few words what you have. No tools."
)
GO_ON = "The work goes on where it was stopped. Go on with your task."


class Answer(msgspec.Struct, frozen=True):
    """How a conversation ended: the last text, the value in it, and the limit that ended it."""

    text: str
    limit: str | None = None
    data: Any = None
    problem: str | None = None
    """Why the text is not the data that was asked for."""


async def converse(
    agent: Agent,
    mind: ModelSession,
    toolbox: ToolCalls,
    staff: Children | None,
    shape: OutputSchema | None,
    transcript: Transcript | None = None,
) -> Answer:
    """Ask the model, run its tool calls, append, check limits, repeat.

    With `transcript`, go on with a conversation that another process has begun.
    """
    mended = misfit = told = False
    limit: str | None = None
    reply: AssistantMessage | None = None
    if transcript is not None:
        mended, limit, told = (
            SCHEMA in transcript.sources,
            transcript.limit,
            transcript.limit is not None,
        )
        misfit = transcript.last_source == SCHEMA and transcript.last_reply is None
        reply = await _taken_up(mind, toolbox, transcript)
    while True:
        if reply is None:
            if agent.suspension.reason is not None:
                await _pause(agent, mind)
            if not told:
                _hear(agent, mind, staff)
                limit = "max_tool_calls" if toolbox.exhausted else mind.limit()
                if limit is None and mind.crowded:
                    limit = await mind.make_room()
            # What does not fit is a finished answer in the wrong form. Without tools beside it,
            # more servers can hold a model to a schema.
            reply = (await mind.ask(limit=limit, told=told, tools=not misfit)).message
            misfit = False
        text, calls, reply = reply.content, reply.calls, None
        if calls and not limit:
            answers = await toolbox.run(calls)
            mind.conversation.answer(answers, mind.fit(answers))
        elif limit or not (_addressed(agent) or _reminded(mind, staff)):
            data, problem = (None, None) if shape is None else shape.check(text)
            if problem is None or limit or mended:
                return Answer(text, limit, data, problem)
            mended = misfit = True
            mind.tell(f"That does not fit: {problem}. Send only the right JSON.", source=SCHEMA)


async def _taken_up(
    mind: ModelSession, toolbox: ToolCalls, transcript: Transcript
) -> AssistantMessage | None:
    """Bring a conversation to where the model can be asked; or its last reply, if it has ended."""
    toolbox.exhausted = transcript.calls_exhausted
    reply = transcript.last_reply
    if reply is not None and (
        transcript.limit or not (reply.calls or transcript.last_source == STOP)
    ):
        return AssistantMessage(reply.content, reply.calls, reply.thoughts)
    if reply is not None:
        await toolbox.finish(transcript)
        transcript.add_answers(mind.fit(transcript.last_answers))
    if transcript.last_source == STOP:
        mind.tell(GO_ON, source="resume")
    return None


async def _pause(agent: Agent, mind: ModelSession) -> None:
    """Let the model say what it has, if it can still say something afterwards; and do no more."""
    if mind.asked and mind.limit() is None:
        mind.tell(STOPPED, source=STOP)
        # Whatever is wrong with the model, it can be tried again when the run goes on.
        with suppress(ModelError, BudgetExceeded):
            await mind.ask(tools=False)
    await agent.pause()


def _hear(agent: Agent, mind: ModelSession, staff: Children | None) -> None:
    """What has arrived since the last turn: messages, and the ends of background children."""
    while agent.inbox:
        source, words = agent.inbox.pop(0)
        mind.tell(words, source=source)
    news = [] if staff is None else list(staff.news())
    for job in news:
        room = room_for_news(agent.contract)
        cap = report_cap(agent.contract, room // len(news))
        report = job_block(job.outcome, cap_tokens=cap)
        mind.tell(f"A background job has ended.\n{report}", source="staff", about=(job.id,))


def _addressed(agent: Agent) -> bool:
    """Has anybody said something while it was answering? Then that was not its last word."""
    return any(source in ("parent", "user") for source, _ in agent.inbox)


def _reminded(mind: ModelSession, staff: Children | None) -> bool:
    """Has the model been told of loose ends, so that it may want another turn?"""
    if staff is None:
        return False
    if any(job.done and not job.delivered for job in staff.background):
        return True  # `_hear` will tell of them.
    running = staff.loose_ends()
    if running:
        names = ", ".join(f"{job.id} ({job.agent.contract.step.title})" for job in running)
        mind.tell(
            f"Still running in the background: {names}. Wait for them with spawn_await, stop them"
            " with agent_cancel, or answer again to end without them.",
            source=LOOSE_ENDS,
            about=tuple(job.id for job in running),
        )
    return bool(running)
