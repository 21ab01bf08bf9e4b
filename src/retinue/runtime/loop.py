"""The agent loop."""

from __future__ import annotations

import msgspec

from retinue.runtime.mind import Mind
from retinue.runtime.toolbox import Toolbox


class Answer(msgspec.Struct, frozen=True):
    """How a conversation ended: the last text, and the limit that ended it, if one did."""

    text: str
    limit: str | None = None


async def converse(mind: Mind, toolbox: Toolbox) -> Answer:
    """Ask the model, run its tool calls, append, check limits, repeat."""
    while True:
        limit = "max_tool_calls" if toolbox.exhausted else mind.limit()
        reply = await mind.ask(limit=limit)
        if limit or not reply.message.calls:
            return Answer(reply.message.content, limit)
        for answer in await toolbox.run(reply.message.calls):
            mind.conversation.add(answer)
