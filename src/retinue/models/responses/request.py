"""Encodes requests for the Responses API.

The provider stores nothing, so each request has the whole conversation. Encrypted reasoning items
are sent back unchanged.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence, Set
from functools import lru_cache
from typing import Any

import msgspec

from retinue.domain.messages import (
    AssistantMessage,
    Message,
    Request,
    SystemMessage,
    ToolCall,
    ToolMessage,
    ToolSpec,
    UserMessage,
)
from retinue.domain.sampling import NO_SAMPLING
from retinue.models.http.capabilities import ANSWER_TOOL, OutputMode
from retinue.models.http.encoding import (
    MAX_CACHED_SCHEMAS,
    SAMPLING_FEATURES,
    TEMPERATURE,
    TOP_P,
    RequestEncoder,
    as_json_object,
    sampling_fields,
)
from retinue.models.http.images import IMAGE_FEATURES, data_url
from retinue.models.http.output_schemas import forbid_extra_properties, is_strict
from retinue.models.tools_cache import ToolsCache

# Optional features: if a server refuses one, requests leave it out or express it in another way.
SUMMARY = "reasoning.summary"
ENCRYPTED = "reasoning.encrypted_content"
REASONING_ITEMS = "earlier reasoning"
CACHE_KEY = "prompt_cache_key"
INSTRUCTIONS = "instructions"
SMALL_LIMITS = "small limits"
OPTIONAL_FEATURES = {
    # Models that do not reason refuse both; OpenAI refuses summaries to some organizations.
    SUMMARY: r"summar|'reasoning'",
    # Items of another account or of a model that was withdrawn.
    REASONING_ITEMS: r"could not be (?:verified|decrypted)|invalid_encrypted_content"
    r"|item .{0,80}not found",
    ENCRYPTED: "encrypted content|encrypted_content|include",
    CACHE_KEY: "prompt_cache_key",
    INSTRUCTIONS: "instructions",
    SMALL_LIMITS: "max_output_tokens.{0,80}(?:minimum|at least)",
    # Models that reason.
    **SAMPLING_FEATURES,
    **IMAGE_FEATURES,
}

UNSET = msgspec.UNSET
MESSAGE_SEPARATOR = "\n\n"
"""Joins the messages of one reply, since a conversation keeps one text for each reply."""
_MIN_OUTPUT_TOKENS = 16
_Phase = str | msgspec.UnsetType


class _Message(msgspec.Struct, frozen=True, gc=False, tag_field="type", tag="message"):
    role: str
    content: str | list[dict[str, str]]
    phase: _Phase = UNSET


class _Call(msgspec.Struct, frozen=True, gc=False, tag_field="type", tag="function_call"):
    # No `id`: with it, the server requires the reasoning item that the call was generated with.
    call_id: str
    name: str
    arguments: str


class _Output(msgspec.Struct, frozen=True, gc=False, tag_field="type", tag="function_call_output"):
    call_id: str
    output: str | list[dict[str, str]]


_Item = _Message | _Call | _Output | msgspec.Raw


class _Tool(msgspec.Struct, frozen=True, gc=False, tag_field="type", tag="function"):
    name: str
    description: str
    parameters: msgspec.Raw
    # The server's default is strict, and most schemas of tools do not meet its conditions.
    strict: bool = False


class MessageStart(msgspec.Struct, frozen=True, gc=False, tag_field="type", tag="message"):
    """Block of thoughts that says where a message of a reply begins, and its phase."""

    phase: str | None = None


_INCLUDE = msgspec.Raw(b'["reasoning.encrypted_content"]')


class _Body(msgspec.Struct, frozen=True, gc=False):
    model: str
    input: list[_Item]
    instructions: str | msgspec.UnsetType
    tools: msgspec.Raw | msgspec.UnsetType
    max_output_tokens: int | msgspec.UnsetType
    reasoning: dict[str, str] | msgspec.UnsetType
    include: msgspec.Raw | msgspec.UnsetType
    prompt_cache_key: str | msgspec.UnsetType
    store: bool = False
    stream: bool = True
    text: msgspec.Raw | msgspec.UnsetType = UNSET
    tool_choice: dict[str, str] | msgspec.UnsetType = UNSET
    temperature: float | msgspec.UnsetType = UNSET
    top_p: float | msgspec.UnsetType = UNSET


_encode = msgspec.json.Encoder().encode
_decode_start = msgspec.json.Decoder(MessageStart).decode
_JSON_OBJECT = msgspec.Raw(b'{"format":{"type":"json_object"}}')
_ANSWER_CHOICE = {"type": "function", "name": ANSWER_TOOL}


class ResponsesEncoder(RequestEncoder):
    """Encodes requests to one model, and the schemas of a set of tools only once."""

    def __init__(self, model: str, *, name: str = "", effort: str | None = None) -> None:
        """Thoughts are sent back only if a reply of `name` contained them."""
        self._model = model
        self._name = name
        self._effort = effort
        self._tools = ToolsCache(_tools)

    def _encode(self, request: Request, mode: OutputMode, unsupported: Set[str]) -> bytes:
        messages, effort = request.messages, request.sampling.effort or self._effort
        instructions: str | msgspec.UnsetType = UNSET
        if messages and isinstance(messages[0], SystemMessage) and INSTRUCTIONS not in unsupported:
            instructions, messages = messages[0].content, messages[1:]
        limit = request.max_output_tokens
        if limit is not None and SMALL_LIMITS in unsupported:
            limit = max(limit, _MIN_OUTPUT_TOKENS)
        body = _Body(
            self._model,
            self._items(messages, unsupported),
            instructions,
            self._tools(request.tools) if request.tools else UNSET,
            UNSET if limit is None else limit,
            self._reasoning(effort, unsupported),
            UNSET if ENCRYPTED in unsupported else _INCLUDE,
            UNSET if CACHE_KEY in unsupported else _cache_key(instructions or ""),
        )
        match mode:
            case OutputMode.SCHEMA:
                body = msgspec.structs.replace(body, text=_text_format(request.schema or ""))
            case OutputMode.OBJECT:
                body = msgspec.structs.replace(body, text=_JSON_OBJECT)
            case OutputMode.TOOL:
                body = msgspec.structs.replace(
                    body, tools=_answer_tool(request.schema or ""), tool_choice=_ANSWER_CHOICE
                )
            case OutputMode.PROMPT:
                pass
        # A model with an effort reasons, and refuses temperature and top_p. The API has no seed.
        if request.sampling != NO_SAMPLING and effort is None:
            sampling = sampling_fields(request.sampling, unsupported, (TEMPERATURE, TOP_P))
            body = msgspec.structs.replace(body, **sampling)
        return _encode(body)

    def _reasoning(
        self, effort: str | None, unsupported: Set[str]
    ) -> dict[str, str] | msgspec.UnsetType:
        made: dict[str, str] = {}
        if effort is not None:
            made["effort"] = effort
        if SUMMARY not in unsupported:
            # Summaries are also a sign of life while the model thinks.
            made["summary"] = "auto"
        return made or UNSET

    def _items(self, messages: Sequence[Message], unsupported: Set[str]) -> list[_Item]:
        items: list[_Item] = []
        for message in messages:
            # Ordered by frequency.
            if isinstance(message, ToolMessage):
                items.append(_Output(message.call_id, _content(message)))
            elif not isinstance(message, AssistantMessage):
                if isinstance(message, SystemMessage):
                    items.append(_Message("system", message.content))
                else:
                    items.append(_Message("user", _content(message)))
            elif message.thoughts is None or message.thoughts.by != self._name:
                _append(items, message.content, UNSET, message.calls)
            else:
                _append_with_thoughts(items, message, REASONING_ITEMS not in unsupported)
        return items


def _content(message: UserMessage | ToolMessage) -> str | list[dict[str, str]]:
    if not message.images:
        return message.content
    text = [{"type": "input_text", "text": message.content}] if message.content else []
    urls = map(data_url, message.images)
    return [
        *text,
        *({"type": "input_image", "detail": "auto", "image_url": url} for url in urls),
    ]


def _append_with_thoughts(
    items: list[_Item], message: AssistantMessage, with_reasoning: bool
) -> None:
    text, calls = message.content, message.calls
    written = called = 0
    phase: _Phase = UNSET
    assert message.thoughts is not None
    for thought in message.thoughts.blocks:
        before = text[written : thought.after_text]
        start = _message_start(thought.block)
        if start is not None:
            before = before.removesuffix(MESSAGE_SEPARATOR)
        _append(items, before, phase, calls[called : thought.after_calls])
        if start is not None:
            phase = start.phase or UNSET
        elif with_reasoning:
            items.append(msgspec.Raw(thought.block.encode()))
        written, called = max(written, thought.after_text), max(called, thought.after_calls)
    _append(items, text[written:], phase, calls[called:])
    # The server refuses reasoning without a message or a call after it.
    while items and isinstance(items[-1], msgspec.Raw):
        items.pop()


def _append(items: list[_Item], text: str, phase: _Phase, calls: Sequence[ToolCall]) -> None:
    if text:
        items.append(_Message("assistant", text, phase))
    items += [_Call(call.id, call.name, as_json_object(call.arguments)) for call in calls]


def _message_start(block: str) -> MessageStart | None:
    try:
        return _decode_start(block)
    except msgspec.DecodeError:
        return None


def _tools(tools: tuple[ToolSpec, ...]) -> msgspec.Raw:
    return msgspec.Raw(_encode([_Tool(t.name, t.description, t.parameters) for t in tools]))


@lru_cache(MAX_CACHED_SCHEMAS)
def _cache_key(instructions: str) -> str:
    """The same for all agents with these instructions, which share the beginning of a prompt."""
    return hashlib.sha256(instructions.encode("utf-8", "replace")).hexdigest()[:32]


@lru_cache(MAX_CACHED_SCHEMAS)
def _text_format(schema: str) -> msgspec.Raw:
    closed = forbid_extra_properties(msgspec.json.decode(schema))
    made: dict[str, Any] = {"type": "json_schema", "name": ANSWER_TOOL, "schema": closed}
    return msgspec.Raw(_encode({"format": {**made, "strict": is_strict(closed)}}))


@lru_cache(MAX_CACHED_SCHEMAS)
def _answer_tool(schema: str) -> msgspec.Raw:
    return msgspec.Raw(
        _encode([_Tool(ANSWER_TOOL, "Give the answer.", msgspec.Raw(schema.encode()))])
    )
