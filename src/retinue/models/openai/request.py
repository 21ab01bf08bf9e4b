"""Encodes requests for chat completions."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence, Set
from functools import lru_cache
from typing import Any

import msgspec

from retinue.domain.messages import (
    AssistantMessage,
    Message,
    Request,
    SystemMessage,
    ToolMessage,
    ToolSpec,
    UserMessage,
)
from retinue.domain.sampling import NO_SAMPLING
from retinue.models.http.capabilities import ANSWER_TOOL, OutputMode
from retinue.models.http.encoding import (
    MAX_CACHED_SCHEMAS,
    SAMPLING_FEATURES,
    UNKNOWN_EFFORT,
    RequestEncoder,
    as_json_object,
    sampling_fields,
)
from retinue.models.http.images import (
    IMAGE_FEATURES,
    data_url,
    has_images,
    with_images_after_results,
)
from retinue.models.http.output_schemas import forbid_extra_properties, is_strict
from retinue.models.tools_cache import ToolsCache

# Optional features: what a server may refuse, and a request can leave out or say in another way.
MAX_TOKENS = "max_tokens"
STREAM_OPTIONS = "stream_options"
EFFORT = "reasoning effort"
REASONING = "reasoning"
CONSECUTIVE_ROLES = "loose turns"
LONG_CALL_IDS = "other ids"
OPTIONAL_FEATURES = {
    # OpenAI's newer models want max_completion_tokens, which local servers do not know.
    MAX_TOKENS: "max_completion_tokens",
    STREAM_OPTIONS: "stream_options",
    # DeepSeek and Kimi require all reasoning of a conversation with tools back, in the field that
    # it came in; chat templates of local models (Qwen, gpt-oss) use it; others refuse it.
    EFFORT: UNKNOWN_EFFORT,
    REASONING: r"reasoning(?![_. ]?effort)|thinking",
    # Mistral's chat templates, and its own API.
    CONSECUTIVE_ROLES: "must alternate|after role",
    LONG_CALL_IDS: "length (of )?9",
    # Reasoning models of OpenAI.
    **SAMPLING_FEATURES,
    **IMAGE_FEATURES,
}

# Required features: if a server complains that one is missing, requests add it.
FILLED_REASONING = "reasoning in every message"
SIGNATURES = "signatures of calls"
REQUIRED_FEATURES = {FILLED_REASONING: "reasoning_content", SIGNATURES: "thought.?signature"}

# In place of reasoning that another model did not write. Kimi takes an empty text for a gap.
NO_REASONING = " "
# Gemini's documented signature for calls of another model.
NO_SIGNATURE = "skip_thought_signature_validator"

UNSET = msgspec.UNSET


class _Function(msgspec.Struct, frozen=True, gc=False):
    name: str
    arguments: str


class _Call(msgspec.Struct, frozen=True, gc=False):
    id: str
    function: _Function
    type: str = "function"
    extra_content: Any = UNSET


class _CallExtra(msgspec.Struct, frozen=True, gc=False):
    extra_content: msgspec.Raw


class _Kept(msgspec.Struct, frozen=True, gc=False):
    """Block of thoughts: fields of a message that go back with it. Calls are known by id."""

    reasoning_content: str | msgspec.UnsetType = UNSET
    reasoning: str | msgspec.UnsetType = UNSET
    reasoning_details: msgspec.Raw | msgspec.UnsetType = UNSET
    content: list[msgspec.Raw] = []
    extra_content: msgspec.Raw | msgspec.UnsetType = UNSET
    tool_calls: dict[str, _CallExtra] = {}


class _Assistant(msgspec.Struct, frozen=True, gc=False, tag_field="role", tag="assistant"):
    # null and not absent: some servers insist on the key.
    content: str | list[Any] | None
    tool_calls: list[_Call] | msgspec.UnsetType = UNSET
    reasoning_content: str | msgspec.UnsetType = UNSET
    reasoning: str | msgspec.UnsetType = UNSET
    reasoning_details: msgspec.Raw | msgspec.UnsetType = UNSET
    extra_content: msgspec.Raw | msgspec.UnsetType = UNSET


class _User(msgspec.Struct, frozen=True, gc=False, tag_field="role", tag="user"):
    content: list[dict[str, Any]]


class _ToolMessage(msgspec.Struct, frozen=True, gc=False, tag_field="role", tag="tool"):
    tool_call_id: str
    content: str


class _ToolFunction(msgspec.Struct, frozen=True, gc=False):
    name: str
    description: str
    parameters: msgspec.Raw


class _Tool(msgspec.Struct, frozen=True, gc=False):
    function: _ToolFunction
    type: str = "function"


_ApiMessage = SystemMessage | UserMessage | _User | _Assistant | _ToolMessage
_WITH_USAGE = msgspec.Raw(b'{"include_usage":true}')


class _Body(msgspec.Struct, frozen=True, gc=False):
    model: str
    messages: list[_ApiMessage]
    tools: msgspec.Raw | msgspec.UnsetType
    max_tokens: int | msgspec.UnsetType
    stream: bool = True
    stream_options: msgspec.Raw | msgspec.UnsetType = _WITH_USAGE
    max_completion_tokens: int | msgspec.UnsetType = UNSET
    response_format: msgspec.Raw | msgspec.UnsetType = UNSET
    tool_choice: dict[str, Any] | msgspec.UnsetType = UNSET
    temperature: float | msgspec.UnsetType = UNSET
    top_p: float | msgspec.UnsetType = UNSET
    seed: int | msgspec.UnsetType = UNSET
    reasoning_effort: str | msgspec.UnsetType = UNSET
    reasoning_split: bool | msgspec.UnsetType = UNSET


_encode = msgspec.json.Encoder().encode
_decode_kept = msgspec.json.Decoder(_Kept).decode
_NOTHING_KEPT = _Kept()
_FILLED = frozenset(REQUIRED_FEATURES)
_FILLER = "I see."
_SHORT_ID = re.compile(r"[a-zA-Z0-9]{9}")
_JSON_OBJECT = msgspec.Raw(b'{"type":"json_object"}')
_ANSWER_CHOICE = {"type": "function", "function": {"name": ANSWER_TOOL}}


class ChatEncoder(RequestEncoder):
    """Encodes requests to one model, and the schemas of a set of tools only once."""

    def __init__(
        self,
        model: str,
        *,
        name: str = "",
        effort: str | None = None,
        split_reasoning: bool = False,
        vendor: str = "google",
    ) -> None:
        """`name` is the model's full name: only its own thoughts are sent back to it.

        `split_reasoning` asks MiniMax for reasoning apart from the text. `vendor` is the name
        under which Gemini has its signatures.
        """
        self._model = model
        self._name = name
        self._options: dict[str, Any] = {}
        if effort is not None:
            self._options["reasoning_effort"] = effort
        if split_reasoning:
            self._options["reasoning_split"] = True
        self._no_signature = {vendor: {"thought_signature": NO_SIGNATURE}}
        self._tools = ToolsCache(_tools)

    def _encode(self, request: Request, mode: OutputMode, unsupported: Set[str]) -> bytes:
        limit = UNSET if request.max_output_tokens is None else request.max_output_tokens
        messages: Sequence[Message] = request.messages
        if has_images(messages):
            messages = with_images_after_results(messages)
        if CONSECUTIVE_ROLES in unsupported:
            messages = _alternate_roles(messages)
        if LONG_CALL_IDS in unsupported:
            messages = _with_short_ids(messages)
        body = _Body(
            self._model,
            [self._to_api(message, unsupported) for message in messages],
            self._tools(request.tools) if request.tools else UNSET,
            limit,
        )
        effort = request.sampling.effort
        if mode is not OutputMode.PROMPT or unsupported or self._options or effort:
            body = self._adapted(body, request, mode, unsupported)
        if request.sampling != NO_SAMPLING:
            body = msgspec.structs.replace(body, **sampling_fields(request.sampling, unsupported))
        return _encode(body)

    def _adapted(
        self, body: _Body, request: Request, mode: OutputMode, unsupported: Set[str]
    ) -> _Body:
        changes: dict[str, Any] = {**self._options}
        if request.sampling.effort is not None:
            changes["reasoning_effort"] = request.sampling.effort
        if EFFORT in unsupported:
            changes.pop("reasoning_effort", None)
        if MAX_TOKENS in unsupported:
            changes |= {"max_tokens": UNSET, "max_completion_tokens": body.max_tokens}
        if STREAM_OPTIONS in unsupported:
            changes["stream_options"] = UNSET
        match mode:
            case OutputMode.SCHEMA:
                changes["response_format"] = _response_format(request.schema or "")
            case OutputMode.OBJECT:
                changes["response_format"] = _JSON_OBJECT
            case OutputMode.TOOL:
                changes["tools"] = _answer_tool(request.schema or "")
                changes["tool_choice"] = _ANSWER_CHOICE
            case OutputMode.PROMPT:
                pass
        return msgspec.structs.replace(body, **changes)

    def _to_api(self, message: Message, unsupported: Set[str]) -> _ApiMessage:
        # Ordered by frequency. System and user messages have the form of the API already.
        if isinstance(message, ToolMessage):
            return _ToolMessage(message.call_id, message.content)
        if isinstance(message, AssistantMessage):
            calls = [
                _Call(call.id, _Function(call.name, as_json_object(call.arguments)))
                for call in message.calls
            ]
            # Without calls, an empty text and not null.
            made = _Assistant(message.content or (None if calls else ""), calls or UNSET)
            if message.thoughts is None and not unsupported & _FILLED:
                return made
            return self._with_thoughts(made, message, unsupported)
        if isinstance(message, UserMessage) and message.images:
            return _User(_parts(message))
        return message

    def _with_thoughts(
        self, made: _Assistant, message: AssistantMessage, unsupported: Set[str]
    ) -> _Assistant:
        thoughts = message.thoughts
        kept = _NOTHING_KEPT
        if thoughts is not None and thoughts.by == self._name:
            kept = _decode_kept(thoughts.blocks[0].block)
        changes: dict[str, Any] = {"extra_content": kept.extra_content}
        if REASONING not in unsupported:
            changes["reasoning_content"] = kept.reasoning_content
            changes["reasoning"] = kept.reasoning
            changes["reasoning_details"] = kept.reasoning_details
            if kept.content:
                text = [{"type": "text", "text": message.content}] if message.content else []
                changes["content"] = [*kept.content, *text]
        if FILLED_REASONING in unsupported and not kept.reasoning_content:
            changes["reasoning_content"] = NO_REASONING
        if made.tool_calls and (kept.tool_calls or SIGNATURES in unsupported):
            changes["tool_calls"] = self._with_extras(made.tool_calls, kept, unsupported)
        return msgspec.structs.replace(made, **changes)

    def _with_extras(self, calls: list[_Call], kept: _Kept, unsupported: Set[str]) -> list[_Call]:
        found = [kept.tool_calls.get(call.id) for call in calls]
        extras: list[Any] = [UNSET if one is None else one.extra_content for one in found]
        # Of calls that were made together, only the first is signed.
        if SIGNATURES in unsupported and not any(found):
            extras[0] = self._no_signature
        return [
            msgspec.structs.replace(call, extra_content=extra)
            for call, extra in zip(calls, extras, strict=True)
        ]


def _parts(message: UserMessage) -> list[dict[str, Any]]:
    text = [{"type": "text", "text": message.content}] if message.content else []
    urls = ({"url": data_url(image)} for image in message.images)
    return [*text, *({"type": "image_url", "image_url": url} for url in urls)]


def _alternate_roles(messages: Sequence[Message]) -> Sequence[Message]:
    """Join consecutive user messages, and put a model's message between a tool's and a user's."""
    made: list[Message] = []
    for message in messages:
        last = made[-1] if made else None
        if isinstance(message, UserMessage) and isinstance(last, UserMessage):
            text = f"{last.content}\n\n{message.content}"
            made[-1] = UserMessage(text, last.images + message.images)
            continue
        if isinstance(message, UserMessage) and isinstance(last, ToolMessage):
            made.append(AssistantMessage(_FILLER))
        made.append(message)
    return made


def _with_short_ids(messages: Sequence[Message]) -> Sequence[Message]:
    """Replace call ids, which may come from another server, by nine letters and digits."""
    made: list[Message] = []
    for message in messages:
        if isinstance(message, ToolMessage):
            message = msgspec.structs.replace(message, call_id=_short_id(message.call_id))
        elif isinstance(message, AssistantMessage) and message.calls:
            calls = [msgspec.structs.replace(call, id=_short_id(call.id)) for call in message.calls]
            message = msgspec.structs.replace(message, calls=tuple(calls))
        made.append(message)
    return made


def _short_id(call_id: str) -> str:
    if _SHORT_ID.fullmatch(call_id):
        return call_id
    return hashlib.sha256(call_id.encode("utf-8", "replace")).hexdigest()[:9]


def _tools(tools: tuple[ToolSpec, ...]) -> msgspec.Raw:
    functions = (_ToolFunction(t.name, t.description, t.parameters) for t in tools)
    return msgspec.Raw(_encode(list(map(_Tool, functions))))


@lru_cache(MAX_CACHED_SCHEMAS)
def _response_format(schema: str) -> msgspec.Raw:
    closed = forbid_extra_properties(msgspec.json.decode(schema))
    held = {"name": ANSWER_TOOL, "schema": closed, "strict": is_strict(closed)}
    return msgspec.Raw(_encode({"type": "json_schema", "json_schema": held}))


@lru_cache(MAX_CACHED_SCHEMAS)
def _answer_tool(schema: str) -> msgspec.Raw:
    function = _ToolFunction(ANSWER_TOOL, "Give the answer.", msgspec.Raw(schema.encode()))
    return msgspec.Raw(_encode([_Tool(function)]))
