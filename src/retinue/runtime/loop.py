"""The agent loop."""

from __future__ import annotations

from typing import Any

import msgspec

from retinue.domain.report import job_block
from retinue.runtime.agent import Agent
from retinue.runtime.mind import Mind
from retinue.runtime.shape import Shape
from retinue.runtime.staff import Staff
from retinue.runtime.toolbox import Toolbox


class Answer(msgspec.Struct, frozen=True):
    """How a conversation ended: the last text, the value in it, and the limit that ended it."""

    text: str
    limit: str | None = None
    data: Any = None
    problem: str | None = None
    """Why the text is not the data that was asked for."""


async def converse(
    agent: Agent, mind: Mind, toolbox: Toolbox, staff: Staff | None, shape: Shape | None
) -> Answer:
    """Ask the model, run its tool calls, append, check limits, repeat."""
    mended = misfit = False
    while True:
        _hear(agent, mind, staff)
        limit = "max_tool_calls" if toolbox.exhausted else mind.limit()
        if limit is None and mind.crowded:
            limit = await mind.make_room()
        # What does not fit is a finished answer in the wrong form. Without tools beside it, more
        # servers can hold a model to a schema.
        reply = await mind.ask(limit=limit, tools=not misfit)
        misfit = False
        text = reply.message.content
        if reply.message.calls and not limit:
            for answer in await toolbox.run(reply.message.calls):
                mind.conversation.add(answer)
        elif limit or not (_addressed(agent) or _reminded(mind, staff)):
            data, problem = (None, None) if shape is None else shape.check(text)
            if problem is None or limit or mended:
                return Answer(text, limit, data, problem)
            mended = misfit = True
            mind.tell(f"That does not fit: {problem}. Send only the right JSON.", source="schema")


def _hear(agent: Agent, mind: Mind, staff: Staff | None) -> None:
    """What has arrived since the last turn: messages, and the ends of background children."""
    while agent.inbox:
        source, words = agent.inbox.pop(0)
        mind.tell(words, source=source)
    for job in staff.news() if staff is not None else ():
        cap = agent.contract.outputs.result_cap_tokens
        report = job_block(job.outcome, cap_tokens=cap)
        mind.tell(f"A background job has ended.\n{report}", source="staff", about=(job.id,))


def _addressed(agent: Agent) -> bool:
    """Has anybody said something while it was answering? Then that was not its last word."""
    return any(source in ("parent", "user") for source, _ in agent.inbox)


def _reminded(mind: Mind, staff: Staff | None) -> bool:
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
            source="staff",
            about=tuple(job.id for job in running),
        )
    return bool(running)
