"""Conversations as text for the embedded model with its adapter, and the calls in its replies."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

import msgspec

from retinue.domain.messages import (
    AssistantMessage,
    Finish,
    Message,
    Reply,
    Request,
    SystemMessage,
    ToolCall,
    ToolMessage,
    UserMessage,
    generate_call_ids,
)
from retinue.models.http.images import IMAGES, without_images

_OPENING = "<tool_call>"
_CALL = re.compile(rf"{_OPENING}(.*?)</tool_call>", re.DOTALL)
# Fields of a call in the order in which the adapter has learned them; those with ? may be missing.
_FIELDS = {
    "list_dir": ("path",),
    "find_files": ("pattern",),
    "read_file": ("path",),
    "search_files": ("pattern", "path?"),
    "edit_file": ("path", "old_text", "new_text", "all?"),
    "write_file": ("path", "content"),
    "spawn_agent": ("role", "task", "background?"),
    "spawn_await": ("job_ids",),
}
# How a value is written; the others are `string`.
_VALUES = {"path": "path", "path?": "path", "all?": '"true"', "background?": '"true"'}
# A file may be read again before and after an edit.
_MAX_SAME_CALLS = 3
_MAX_CUT_CALLS = 2
_TEXT_RULE = 'text ::= [^<] ([^<] | "<" [^t] | "<t" [^o])*\n'
_TEXT_ONLY = f"root ::= text\n{_TEXT_RULE}"
# If the model forgets a quotation mark, the end of the call must not become a part of the value: a
# path has no braces, and no string has the end of a call.
_CALLS = r"""
root ::= text | call ("\n" call){0,7}
call ::= "<tool_call>{\"name\": " (%s) "}}</tool_call>"
path ::= "\"" ([^"\\{}<>\x00-\x1F] | escape)* "\""
string ::= "\"" part* open? "\""
part ::= [^"\\<\x00-\x1F] | open? escape | "<" [^"\\/\x00-\x1F] | "</" [^"\\<t\x00-\x1F] | tag
tag ::= "</t" [^"\\<o\x00-\x1F] | "</to" [^"\\<o\x00-\x1F]
open ::= "<" ("/" ("t" "o"?)?)?
escape ::= "\\" (["\\/bfnrt] | "u" hex hex hex hex)
hex ::= [0-9a-fA-F]
"""
_CONTROL_TOKEN = re.compile(r"<\|(?=(?:im_start|im_end|endoftext)\|>)")


class _Call(msgspec.Struct):
    name: str
    arguments: msgspec.Raw


def without_control_tokens(messages: Sequence[Message]) -> Iterator[Message]:
    """The messages as a text may have them: a file must not end its message and begin another."""
    for message in without_images(messages, {IMAGES}):
        if "<|" in message.content:
            content = _CONTROL_TOKEN.sub("< |", message.content)
            message = msgspec.structs.replace(message, content=content)
        yield message


def conversation(messages: Iterable[Message]) -> str:
    """The prompt of the model's own template, which has no tools."""
    roles = {SystemMessage: "system", UserMessage: "user", AssistantMessage: "assistant"}
    blocks = [
        f"<|im_start|>{roles[type(message)]}\n{message.content}<|im_end|>\n"
        for message in messages
        if type(message) in roles
    ]
    return "".join(blocks) + "<|im_start|>assistant\n"


def call_grammar(tools: Iterable[str], messages: Iterable[Message] = ()) -> str:
    """What a reply may be, for llama.cpp: a text, or calls of these tools with all they need.

    Without it, 5 of 100 calls had a wrong escape, a field of another tool, or no end. It leaves out
    tools whose calls lead nowhere in the conversation.
    """
    known = [name for name in tools if name in _FIELDS]
    if not known:
        return ""
    repeated = _repeated_tools(messages)
    calls = [_call_rule(name, _FIELDS[name]) for name in known if name not in repeated]
    return _CALLS % " | ".join(calls) + _TEXT_RULE if calls else _TEXT_ONLY


def _repeated_tools(messages: Iterable[Message]) -> Collection[str]:
    """Tools that the model would call again and again until a limit ends it.

    Those are the tools of the same calls twice in a row, and all tools after one call several
    times, or after calls that were cut off, since its last answer.
    """
    replies: list[set[tuple[str, str]]] = []
    for message in messages:
        if isinstance(message, AssistantMessage):
            made = {(call.name, call.arguments) for call in message.calls}
            replies = [*replies, made] if made else []
    times = Counter(call for made in replies for call in made)
    # A call without arguments was cut off, and the next one would be as long.
    cut = sum(count for (_, arguments), count in times.items() if not arguments)
    if cut >= _MAX_CUT_CALLS or any(count >= _MAX_SAME_CALLS for count in times.values()):
        return _FIELDS
    if len(replies) > 1 and replies[-1] == replies[-2]:
        return {name for name, _ in replies[-1]}
    return ()


def _call_rule(name: str, fields: Sequence[str]) -> str:
    parts = [rf'"\"{name}\", \"arguments\": {{"']
    for number, field in enumerate(fields):
        value = _VALUES.get(field, "string")
        part = rf'"{", " if number else ""}\"{field.rstrip("?")}\": " {value}'
        parts.append(f"({part})?" if field.endswith("?") else part)
    return " ".join(parts)


def with_calls(reply: Reply, request: Request) -> Reply:
    """The reply with its calls taken out of its text.

    A reply is left as it is if a call is malformed, or stands in what the model has read: what is
    done with such text is the same for all models (`RepairedModel`).
    """
    text = reply.message.content
    written = list(_CALL.finditer(text))
    rest = _CALL.sub("", text)
    if not written or _OPENING in rest or not request.tools:
        return reply
    offered = {tool.name for tool in request.tools}
    given = [m.content for m in request.messages if isinstance(m, ToolMessage | UserMessage)]
    ids = generate_call_ids((), request.messages)
    calls: list[ToolCall] = []
    for one in written:
        try:
            call = msgspec.json.decode(one[1], type=_Call)
        except (msgspec.MsgspecError, UnicodeEncodeError):
            return reply
        if call.name not in offered or any(one[1].strip() in content for content in given):
            return reply
        # As it was written, so that the server finds it in its cache.
        calls.append(ToolCall(next(ids), call.name, bytes(call.arguments).decode()))
    return msgspec.structs.replace(
        reply,
        message=AssistantMessage(rest.strip(), tuple(calls)),
        finish=Finish.TOOLS if reply.finish is Finish.STOP else reply.finish,
    )


class TextBeforeCalls:
    """Passes the text of a reply on until a call begins."""

    def __init__(self, on_text: Callable[[str], None]) -> None:
        self._on_text = on_text
        self.report_life: Callable[[str], None] = getattr(on_text, "report_life", on_text)
        self._held = ""
        self._in_calls = False

    def __call__(self, piece: str) -> None:
        if self._in_calls:
            self._on_text("")
            return
        text = self._held + piece
        begun = _call_start(text)
        self._held = text[begun:]
        self._in_calls = self._held.startswith(_OPENING)
        self._on_text(text[:begun])

    def end(self) -> None:
        """Pass on what might have become a call."""
        if self._held and not self._in_calls:
            self._on_text(self._held)


def _call_start(text: str) -> int:
    """Where a call begins, or may begin with the text that follows."""
    start = text.find(_OPENING)
    if start >= 0:
        return start
    start = text.rfind("<")
    return start if start >= 0 and _OPENING.startswith(text[start:]) else len(text)
