"""Repairs replies of weak models: calls that are broken, misnamed or written as text.

A well-formed reply comes back as the same object, for a microsecond or two. What cannot be repaired
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
    generate_call_ids,
)
from retinue.models.repair.arguments import repair_arguments, with_implied
from retinue.models.repair.call_formats import (
    Calls,
    from_arg_pairs,
    from_json,
    from_name_and_object,
    from_python,
)
from retinue.models.repair.text_calls import find_calls, may_hold_calls
from retinue.models.repair.tool_index import ToolIndex, index_tools
from retinue.ports.model import Model

_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_THINK, _THOUGHT = "<think>", "</think>"
_SHOWN_CHARS = 40


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
    if "".join(texts).isascii() or all(map(_is_encodable, texts)):
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
            if _THOUGHT not in text:
                return reply
    elif _THOUGHT not in text and not (tools and may_hold_calls(text)):
        return reply
    return _repair_reply(reply, index, earlier)


def _repair_reply(reply: Reply, index: ToolIndex, earlier: Sequence[Message]) -> Reply:
    message = reply.message
    repairing = _Repair(index, generate_call_ids((call.id for call in message.calls), earlier))
    text = _after_thinking(message.content)
    if text != message.content:
        repairing.notes.append("thinking was removed from the text")
    calls = message.calls
    # Calls inside unfinished thinking are not meant yet.
    if not calls and index.tools and not text.startswith(_THINK):
        calls, text = repairing.take_calls(text, earlier)
    repaired: list[ToolCall] = []
    for number, call in enumerate(calls, start=1):
        cut = reply.finish is Finish.LENGTH and number == len(calls)
        repaired += repairing.repair_call(call, cut=cut)
    notes = [note for note in dict.fromkeys(repairing.notes) if note not in reply.repairs]
    done = AssistantMessage(text, tuple(repaired), message.thoughts)
    if not notes and done == message:
        return reply
    return msgspec.structs.replace(
        reply,
        message=done,
        # A reply that was cut off stays one: its last call may be half a call.
        finish=Finish.TOOLS if repaired and reply.finish is Finish.STOP else reply.finish,
        repairs=(*reply.repairs, *notes),
    )


class _Repair:
    """The repair of one reply; `notes` says what was done."""

    def __init__(self, index: ToolIndex, ids: Iterator[str]) -> None:
        self._index = index
        self._ids = ids
        self.notes: list[str] = []

    def take_calls(self, text: str, earlier: Sequence[Message]) -> tuple[tuple[ToolCall, ...], str]:
        """Take calls out of the text. Returns them and the rest of the text."""
        found = find_calls(text, self._index) if _is_encodable(text) else None
        if found is None:
            return (), text
        if _is_quoted(text, found.calls, earlier, self._index):
            names = ", ".join(call.name for call in found.calls)
            self.notes.append(f"{names}: was quoted from what it had read, and not called")
            return (), text
        calls = tuple(ToolCall(next(self._ids), *written) for written in found.calls)
        names = ", ".join(call.name for call in calls)
        self.notes.append(f"{names}: was written as text, as {found.format_name}")
        return calls, _after_thinking(found.rest)

    def repair_call(self, call: ToolCall, *, cut: bool) -> list[ToolCall]:
        """Repair one call. Returns several where one call held others."""
        nested = self._nested_calls(call)
        if nested:
            names = ", ".join(one.name for one in nested)
            self.notes.append(f"{names}: was nested in a call of '{call.name[:_SHOWN_CHARS]}'")
            calls = [ToolCall(call.id, *nested[0])]
            calls += [ToolCall(next(self._ids), *one) for one in nested[1:]]
        else:
            calls = [call]
        return [self._fit_to_tool(one, cut=cut) for one in calls]

    def _fit_to_tool(self, call: ToolCall, *, cut: bool) -> ToolCall:
        tool = self._index.find(call.name)
        if tool is None:
            return call
        if tool.name != call.name:
            self.notes.append(f"{tool.name}: was called '{call.name[:_SHOWN_CHARS]}'")
        arguments, notes = repair_arguments(call.arguments, tool, cut=cut)
        if tool.name != call.name:
            arguments = with_implied(arguments, tool, call.name)
        self.notes += notes
        return ToolCall(call.id, tool.name, arguments)

    def _nested_calls(self, call: ToolCall) -> Calls | None:
        """Calls inside a call: in its name, or in the arguments of an unknown tool."""
        name, arguments, index = call.name, call.arguments.strip(), self._index
        if not (_is_encodable(name) and _is_encodable(arguments)) or name in index.tools:
            return None
        if arguments in ("", "{}"):
            if "<arg_key>" in name:
                return from_arg_pairs(name, index)
            return (
                from_name_and_object(name, index)
                if "{" in name
                else from_python(name, index)
                if "(" in name and not name.endswith("()")
                else None
            )
        if index.find(name) is not None:
            return None
        return from_json(arguments, index, exact=True) or from_name_and_object(arguments, index)


def _is_quoted(text: str, calls: Calls, earlier: Sequence[Message], index: ToolIndex) -> bool:
    """Whether a call in `text` is quoted from what the model was given to read.

    A model that repeats the content of a file must not thereby run what the file says.
    """
    for message in earlier:
        if not isinstance(message, ToolMessage | UserMessage):
            continue
        given = message.content
        if text.strip() in given:
            return True
        found = find_calls(given, index) if may_hold_calls(given) and _is_encodable(given) else None
        if found is not None and not {*found.calls}.isdisjoint(calls):
            return True
    return False


def _after_thinking(text: str) -> str:
    """The text after the thinking at its start, also if the opening tag was in the prompt."""
    while (end := text.find(_THOUGHT)) >= 0:
        behind = end + len(_THOUGHT)
        begins = text.lstrip().startswith(_THINK)
        # Without the opening tag, only on a line of its own: elsewhere the text mentions the tag.
        alone = text[:end].rpartition("\n")[2].strip() == "" and text[behind : behind + 1] in (
            "",
            "\n",
        )
        if not begins and (not alone or _THINK in text[:end]):
            break
        text = text[behind:].lstrip()
    return text


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _escaped(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
