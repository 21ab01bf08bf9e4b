"""Replies of weak models, mended: calls that are broken, misnamed or written as text.

A well-formed reply comes back as the same object, for a microsecond or two. What cannot be mended
without guessing is left alone: the tool's own answer says what to send instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from retinue.domain.messages import (
    AssistantMessage,
    Finish,
    Message,
    Reply,
    Request,
    ToolCall,
    ToolMessage,
    ToolSpec,
    UserMessage,
)
from retinue.models.http.call_ids import generate_call_ids
from retinue.models.repair.arguments import mend
from retinue.models.repair.call_formats import (
    Calls,
    from_arg_pairs,
    from_json,
    from_name_and_object,
    from_python,
)
from retinue.models.repair.text_calls import calls_in, may_hold_calls
from retinue.models.repair.tool_index import Offer, offer_of
from retinue.ports.model import Model

_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_THINK, _THOUGHT = "<think>", "</think>"
_SHOWN_CHARS = 40


class RepairedModel:
    """A model whose replies are mended before anybody sees them. The text that is streamed is not:
    it is shown as it comes.
    """

    def __init__(self, model: Model) -> None:
        self._model = model

    @property
    def name(self) -> str:
        return self._model.name

    def __repr__(self) -> str:
        return f"Repaired({self._model!r})"

    async def reply(self, request: Request, on_text: Callable[[str], None] | None = None) -> Reply:
        reply = await self._model.reply(request, on_text)
        return repair(encodable(reply), request.tools, request.messages)

    async def aclose(self) -> None:
        await self._model.aclose()


def encodable(reply: Reply) -> Reply:
    """The reply without halves of surrogate pairs, which no journal and no server can take."""
    message = reply.message
    texts = [message.content]
    for call in message.calls:
        texts += (call.id, call.name, call.arguments)
    if "".join(texts).isascii() or all(map(_encodable, texts)):
        return reply
    calls = tuple(ToolCall(*map(_escaped, msgspec.structs.astuple(one))) for one in message.calls)
    note = "halves of surrogate pairs were escaped"
    return msgspec.structs.replace(
        reply,
        message=AssistantMessage(_escaped(message.content), calls, message.thoughts),
        repairs=(*reply.repairs, note),
    )


def repair(reply: Reply, tools: tuple[ToolSpec, ...], earlier: Sequence[Message] = ()) -> Reply:
    """The reply with its calls as they were meant, or the same object if nothing was wrong.

    `earlier` is the conversation so far, in which new ids must be unique.
    """
    message = reply.message
    text, calls = message.content, message.calls
    offer = offer_of(tools)
    if calls:
        fields = offer.fields
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
            if _THOUGHT not in text:
                return reply
    elif _THOUGHT not in text and not (tools and may_hold_calls(text)):
        return reply
    return _mended(reply, offer, earlier)


def _mended(reply: Reply, offer: Offer, earlier: Sequence[Message]) -> Reply:
    message = reply.message
    mending = _Mending(offer, generate_call_ids((call.id for call in message.calls), earlier))
    text = _after_thinking(message.content)
    if text != message.content:
        mending.notes.append("thinking was removed from the text")
    calls = message.calls
    # What is still thought is not said, and so nothing in it is called.
    if not calls and offer.shapes and not text.startswith(_THINK):
        calls, text = mending.written(text, earlier)
    mended: list[ToolCall] = []
    for number, call in enumerate(calls, start=1):
        cut = reply.finish is Finish.LENGTH and number == len(calls)
        mended += mending.meant(call, cut=cut)
    notes = [note for note in dict.fromkeys(mending.notes) if note not in reply.repairs]
    done = AssistantMessage(text, tuple(mended), message.thoughts)
    if not notes and done == message:
        return reply
    return msgspec.structs.replace(
        reply,
        message=done,
        # A reply that was cut off stays one: its last call may be half a call.
        finish=Finish.TOOLS if mended and reply.finish is Finish.STOP else reply.finish,
        repairs=(*reply.repairs, *notes),
    )


class _Mending:
    """One reply under repair; `notes` says what was done."""

    def __init__(self, offer: Offer, ids: Iterator[str]) -> None:
        self._offer = offer
        self._ids = ids
        self.notes: list[str] = []

    def written(self, text: str, earlier: Sequence[Message]) -> tuple[tuple[ToolCall, ...], str]:
        """The calls that are in the text, and the text without them."""
        found = calls_in(text, self._offer) if _encodable(text) else None
        if found is None:
            return (), text
        if _quoted(text, found.calls, earlier, self._offer):
            names = ", ".join(call.name for call in found.calls)
            self.notes.append(f"{names}: was quoted from what it had read, and not called")
            return (), text
        calls = tuple(ToolCall(next(self._ids), *written) for written in found.calls)
        names = ", ".join(call.name for call in calls)
        self.notes.append(f"{names}: was written as text, as {found.notation}")
        return calls, _after_thinking(found.rest)

    def meant(self, call: ToolCall, *, cut: bool) -> list[ToolCall]:
        """The call as it was meant. It is several where one call held others."""
        hidden = self._hidden(call)
        if hidden:
            names = ", ".join(one.name for one in hidden)
            self.notes.append(f"{names}: was hidden in a call of '{call.name[:_SHOWN_CHARS]}'")
            calls = [ToolCall(call.id, *hidden[0])]
            calls += [ToolCall(next(self._ids), *one) for one in hidden[1:]]
        else:
            calls = [call]
        return [self._fitted(one, cut=cut) for one in calls]

    def _fitted(self, call: ToolCall, *, cut: bool) -> ToolCall:
        shape = self._offer.named(call.name)
        if shape is None:
            return call
        if shape.name != call.name:
            self.notes.append(f"{shape.name}: was called '{call.name[:_SHOWN_CHARS]}'")
        mended = mend(call.arguments, shape, cut=cut)
        self.notes += mended.notes
        arguments = call.arguments if mended.arguments is None else mended.arguments
        return ToolCall(call.id, shape.name, arguments)

    def _hidden(self, call: ToolCall) -> Calls | None:
        """Calls inside of a call: in its name, or in the arguments of a tool there is not."""
        name, arguments, offer = call.name, call.arguments.strip(), self._offer
        if not (_encodable(name) and _encodable(arguments)) or name in offer.shapes:
            return None
        if arguments in ("", "{}"):
            if "<arg_key>" in name:
                return from_arg_pairs(name, offer)
            return (
                from_name_and_object(name, offer)
                if "{" in name
                else from_python(name, offer)
                if "(" in name and not name.endswith("()")
                else None
            )
        if offer.named(name) is not None:
            return None
        return from_json(arguments, offer, exactly=True) or from_name_and_object(arguments, offer)


def _quoted(text: str, calls: Calls, earlier: Sequence[Message], offer: Offer) -> bool:
    """Does a call in `text` come from what the model was given to read?

    Who answers with what stands in a file must not thereby do what stands in it.
    """
    for message in earlier:
        if not isinstance(message, ToolMessage | UserMessage):
            continue
        given = message.content
        if text.strip() in given:
            return True
        found = calls_in(given, offer) if may_hold_calls(given) and _encodable(given) else None
        if found is not None and not {*found.calls}.isdisjoint(calls):
            return True
    return False


def _after_thinking(text: str) -> str:
    """The text behind the thoughts it begins with, also if the opening tag is in the prompt."""
    while (end := text.find(_THOUGHT)) >= 0:
        behind = end + len(_THOUGHT)
        begins = text.lstrip().startswith(_THINK)
        # Without the opening tag only on a line of its own: elsewhere it is talked about.
        alone = text[:end].rpartition("\n")[2].strip() == "" and text[behind : behind + 1] in (
            "",
            "\n",
        )
        if not begins and (not alone or _THINK in text[:end]):
            break
        text = text[behind:].lstrip()
    return text


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _escaped(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
