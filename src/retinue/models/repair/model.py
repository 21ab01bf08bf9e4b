"""A model whose replies are repaired: calls that are broken, misnamed or written as text.

A well-formed reply comes back as the same object, for a microsecond or two. A call that cannot be
repaired without guessing is left alone: the tool's own answer says what to send instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from retinue.domain.messages import AssistantMessage, Message, Reply, Request, ToolCall, ToolSpec
from retinue.models.repair.quick_checks import THOUGHT, is_encodable, may_hold_calls
from retinue.models.repair.tool_index import index_tools
from retinue.ports.model import Model

_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class RepairedModel:
    """A model whose replies are repaired. Text that is streamed is passed on as it comes."""

    def __init__(self, model: Model) -> None:
        self.name = model.name
        self._model = model

    async def reply(self, request: Request, on_text: Callable[[str], None] | None = None) -> Reply:
        reply = await self._model.reply(request, on_text)
        return repair(escape_lone_surrogates(reply), request.tools, request.messages)

    async def aclose(self) -> None:
        await self._model.aclose()


def escape_lone_surrogates(reply: Reply) -> Reply:
    """Escape halves of surrogate pairs, which neither a journal nor a server can store."""
    message = reply.message
    texts = [message.content]
    for call in message.calls:
        texts += (call.id, call.name, call.arguments)
    if "".join(texts).isascii() or all(map(is_encodable, texts)):
        return reply
    calls = tuple(ToolCall(*map(_escaped, msgspec.structs.astuple(one))) for one in message.calls)
    note = "halves of surrogate pairs were escaped"
    return msgspec.structs.replace(
        reply,
        message=AssistantMessage(_escaped(message.content), calls, message.thoughts),
        repairs=(*reply.repairs, note),
    )


def repair(reply: Reply, tools: tuple[ToolSpec, ...], earlier: Sequence[Message] = ()) -> Reply:
    """Repair the calls of a reply. Returns the same object if nothing was wrong.

    `earlier` is the conversation so far, in which new call ids must be unique.
    """
    message = reply.message
    text, calls = message.content, message.calls
    index = index_tools(tools)
    if calls:
        fields = index.fields
        for call in calls:
            known = fields.get(call.name)
            if known is None:
                break
            try:
                if not _decode_fields(call.arguments).keys() <= known:
                    break
            except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
                break
        else:
            if THOUGHT not in text:
                return reply
    elif THOUGHT not in text and not (tools and may_hold_calls(text)):
        return reply
    from retinue.models.repair.broken_reply import repair_reply

    return repair_reply(reply, index, earlier)


def _escaped(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
