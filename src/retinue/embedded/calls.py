"""Conversations as text for the embedded model with its adapter, and the calls in its replies."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence

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
# The adapter has learned this pattern, which also finds names such as python_version.
_VERSION = '"version.{0,3}[:=]'
_OWN_VERSION = '"(?<![a-z][_-])version.{0,3}[:=]'
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
        arguments = bytes(call.arguments).decode().replace(_VERSION, _OWN_VERSION)
        calls.append(ToolCall(next(ids), call.name, arguments))
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
