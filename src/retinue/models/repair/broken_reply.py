"""Repairs a reply with calls that are broken, misnamed or written as text.

Most replies are well-formed, so only the others import this module and its many patterns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from retinue.domain.messages import (
    AssistantMessage,
    Finish,
    Message,
    Reply,
    ToolCall,
    ToolMessage,
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
from retinue.models.repair.quick_checks import THINK, THOUGHT, is_encodable, may_hold_calls
from retinue.models.repair.text_calls import find_calls
from retinue.models.repair.tool_index import ToolIndex

_SHOWN_CHARS = 40


def repair_reply(reply: Reply, index: ToolIndex, earlier: Sequence[Message]) -> Reply:
    """Repair what can be repaired. Returns the same object if nothing was changed."""
    message = reply.message
    repairing = _Repair(index, generate_call_ids((call.id for call in message.calls), earlier))
    text = _after_thinking(message.content)
    if text != message.content:
        repairing.notes.append("thinking was removed from the text")
    calls = message.calls
    # Calls inside unfinished thinking are not meant yet.
    if not calls and index.tools and not text.startswith(THINK):
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
        found = find_calls(text, self._index) if is_encodable(text) else None
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
        if not (is_encodable(name) and is_encodable(arguments)) or name in index.tools:
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
        found = find_calls(given, index) if may_hold_calls(given) and is_encodable(given) else None
        if found is not None and not {*found.calls}.isdisjoint(calls):
            return True
    return False


def _after_thinking(text: str) -> str:
    """The text after the thinking at its start, also if the opening tag was in the prompt."""
    while (end := text.find(THOUGHT)) >= 0:
        behind = end + len(THOUGHT)
        begins = text.lstrip().startswith(THINK)
        # Without the opening tag, only on a line of its own: elsewhere the text mentions the tag.
        alone = text[:end].rpartition("\n")[2].strip() == "" and text[behind : behind + 1] in (
            "",
            "\n",
        )
        if not begins and (not alone or THINK in text[:end]):
            break
        text = text[behind:].lstrip()
    return text
