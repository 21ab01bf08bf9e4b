"""Encodes requests for Anthropic's Messages API.

A prompt has up to four cache breakpoints: after the tools and after the system message, which
siblings share; and, if there are tools and so more turns to come, after the last two user messages,
where the previous request ended and where this one ends.
"""

from __future__ import annotations

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
    Thought,
    ToolCall,
    ToolMessage,
    ToolSpec,
)
from retinue.domain.sampling import NO_SAMPLING
from retinue.domain.thinking import MIN_BUDGET_TOKENS, ThinkingOptions
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
from retinue.models.http.output_schemas import for_constrained_decoding
from retinue.models.tools_cache import ToolsCache

# Optional features: what a server may refuse, and a request can leave out or say in another way.
CACHE_CONTROL = "cache_control"
ADAPTIVE = "adaptive thinking"
LONG_REPLIES = "long answers"
OPTIONAL_FEATURES = {
    CACHE_CONTROL: "cache_control",
    ADAPTIVE: "adaptive",
    LONG_REPLIES: "max_tokens",
    **SAMPLING_FEATURES,
}

# The API requires a limit; these are used if the request has none. The second is for models that
# cannot write as much.
MAX_TOKENS = 32_000
LOWER_MAX_TOKENS = 8_192

UNSET = msgspec.UNSET
_ROOM_FOR_ANSWER = 1_024
_INVALID_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]")


_CACHED = msgspec.Raw(b'{"type":"ephemeral"}')
_Breakpoint = msgspec.Raw | msgspec.UnsetType


class _Text(msgspec.Struct, frozen=True, gc=False, tag_field="type", tag="text"):
    text: str
    cache_control: _Breakpoint = UNSET


class _ToolUse(msgspec.Struct, frozen=True, gc=False, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: msgspec.Raw


class _ToolResult(msgspec.Struct, frozen=True, gc=False, tag_field="type", tag="tool_result"):
    tool_use_id: str
    content: str
    is_error: bool | msgspec.UnsetType = UNSET
    cache_control: _Breakpoint = UNSET


_Block = _Text | _ToolUse | _ToolResult | msgspec.Raw


class _Turn(msgspec.Struct, frozen=True, gc=False):
    role: str
    content: list[_Block]


class _Tool(msgspec.Struct, frozen=True, gc=False):
    name: str
    description: str
    input_schema: msgspec.Raw
    cache_control: _Breakpoint = UNSET


class _Body(msgspec.Struct, frozen=True, gc=False):
    model: str
    max_tokens: int
    messages: list[_Turn]
    system: list[_Text] | msgspec.UnsetType
    tools: msgspec.Raw | msgspec.UnsetType
    tool_choice: dict[str, str] | msgspec.UnsetType = UNSET
    thinking: dict[str, Any] | msgspec.UnsetType = UNSET
    output_config: dict[str, Any] | msgspec.UnsetType = UNSET
    stream: bool = True
    temperature: float | msgspec.UnsetType = UNSET
    top_p: float | msgspec.UnsetType = UNSET


_encode = msgspec.json.Encoder().encode
_NO_CALLS = {"type": "none"}
_ANSWER_CHOICE = {"type": "tool", "name": ANSWER_TOOL}


class MessagesEncoder(RequestEncoder):
    """Encodes requests to one model, and the schemas of a set of tools only once."""

    def __init__(
        self, model: str, *, name: str = "", thinking: ThinkingOptions | None = None
    ) -> None:
        """`name` is the model's full name: only its own thoughts are sent back to it."""
        self._model = model
        self._name = name
        self._thinking = thinking or ThinkingOptions()
        self._cached_tools = ToolsCache(lambda tools: _tools(tools, _CACHED))
        self._plain_tools = ToolsCache(lambda tools: _tools(tools, UNSET))

    def _encode(self, request: Request, mode: OutputMode, unsupported: Set[str]) -> bytes:
        limit = request.max_output_tokens or self._max_tokens(unsupported)
        mark: _Breakpoint = UNSET if CACHE_CONTROL in unsupported else _CACHED
        thinking = self._thinking_field(request, mode, limit, unsupported)
        # The API refuses earlier thoughts in a request that turns thinking off.
        wanted = self._thinking.on
        thinks = wanted is None or (wanted and thinking is not UNSET)
        turns = self._turns(request.messages, with_thoughts=thinks)
        if request.tools and mark:
            _add_breakpoints(turns)
        tools, choice = self._tool_fields(request, mode, cached=bool(mark))
        return _encode(
            _Body(
                self._model,
                limit,
                turns,
                _system(request.messages, mark),
                tools,
                choice,
                thinking,
                self._output_config(request, mode),
                **self._sampling_fields(request, thinking, unsupported),
            )
        )

    def _sampling_fields(
        self, request: Request, thinking: dict[str, Any] | msgspec.UnsetType, unsupported: Set[str]
    ) -> dict[str, Any]:
        """The API has no seed, and accepts no temperature while the model thinks."""
        if request.sampling == NO_SAMPLING or (thinking and thinking["type"] != "disabled"):
            return {}
        return sampling_fields(request.sampling, unsupported, (TEMPERATURE, TOP_P))

    def _max_tokens(self, unsupported: Set[str]) -> int:
        if LONG_REPLIES in unsupported:
            return LOWER_MAX_TOKENS
        return max(MAX_TOKENS, (self._thinking.budget_tokens or 0) + MAX_TOKENS // 2)

    def _thinking_field(
        self, request: Request, mode: OutputMode, limit: int, unsupported: Set[str]
    ) -> dict[str, Any] | msgspec.UnsetType:
        wanted = self._thinking
        if not wanted.on:
            return UNSET if wanted.on is None else {"type": "disabled"}
        if mode is OutputMode.TOOL:
            return UNSET  # The API refuses thinking with a forced tool call.
        if wanted.budget_tokens is None and ADAPTIVE not in unsupported:
            return {"type": "adaptive"}
        budget = min(wanted.budget_tokens or limit // 2, limit - _ROOM_FOR_ANSWER)
        if budget < MIN_BUDGET_TOKENS or not self._can_continue_thinking(request.messages):
            return UNSET
        return {"type": "enabled", "budget_tokens": budget}

    def _can_continue_thinking(self, messages: Sequence[Message]) -> bool:
        """With a budget, the newest calls must follow thoughts of this model."""
        last = next((m for m in reversed(messages) if isinstance(m, AssistantMessage)), None)
        if last is None or not last.calls:
            return True
        thoughts = last.thoughts
        if thoughts is None or thoughts.by != self._name:
            return False
        return not (thoughts.blocks[0].after_text or thoughts.blocks[0].after_calls)

    def _tool_fields(
        self, request: Request, mode: OutputMode, *, cached: bool
    ) -> tuple[msgspec.Raw | msgspec.UnsetType, dict[str, str] | msgspec.UnsetType]:
        if mode is OutputMode.TOOL:
            return _answer_tool(request.schema or ""), _ANSWER_CHOICE
        if request.tools:
            return (self._cached_tools if cached else self._plain_tools)(request.tools), UNSET
        # Tools of calls in the history must be declared, even if no tool may be called any more.
        called = {
            call.name: None
            for message in request.messages
            if isinstance(message, AssistantMessage)
            for call in message.calls
        }
        if not called:
            return UNSET, UNSET
        empty = msgspec.Raw(b'{"type":"object"}')
        stubs = tuple(ToolSpec(name, "", empty) for name in sorted(called))
        return _tools(stubs, UNSET), _NO_CALLS

    def _output_config(
        self, request: Request, mode: OutputMode
    ) -> dict[str, Any] | msgspec.UnsetType:
        made: dict[str, Any] = {}
        if self._thinking.effort is not None:
            made["effort"] = self._thinking.effort
        if mode is OutputMode.SCHEMA:
            made["format"] = _output_format(request.schema or "")
        return made or UNSET

    # The conversation

    def _turns(self, messages: Sequence[Message], *, with_thoughts: bool) -> list[_Turn]:
        turns: list[_Turn] = []
        open_calls: list[str] = []
        for message in messages:
            if isinstance(message, AssistantMessage):
                _answer_open_calls(turns, open_calls)
                open_calls = [_valid_name(call.id) for call in message.calls]
                blocks = self._blocks(message, with_thoughts=with_thoughts)
                if blocks:
                    turns.append(_Turn("assistant", blocks))
            elif not isinstance(message, SystemMessage):
                if not turns or turns[-1].role != "user":
                    turns.append(_Turn("user", []))
                if isinstance(message, ToolMessage):
                    call_id = _valid_name(message.call_id)
                    result = _ToolResult(call_id, message.content, message.failed or UNSET)
                    turns[-1].content.append(result)
                    open_calls = [one for one in open_calls if one != call_id]
                elif message.content.strip():
                    turns[-1].content.append(_Text(message.content))
        _answer_open_calls(turns, open_calls)
        return [turn for turn in turns if turn.content]

    def _blocks(self, message: AssistantMessage, *, with_thoughts: bool) -> list[_Block]:
        thoughts: tuple[Thought, ...] = ()
        if with_thoughts and message.thoughts is not None and message.thoughts.by == self._name:
            thoughts = message.thoughts.blocks
        blocks: list[_Block] = []
        text, calls = message.content, message.calls
        written = called = 0
        for thought in thoughts:
            _append_blocks(
                blocks, text[written : thought.after_text], calls[called : thought.after_calls]
            )
            blocks.append(msgspec.Raw(thought.block.encode()))
            written, called = max(written, thought.after_text), max(called, thought.after_calls)
        _append_blocks(blocks, text[written:], calls[called:])
        return blocks


def _append_blocks(blocks: list[_Block], text: str, calls: Sequence[ToolCall]) -> None:
    if text.strip():  # The API refuses empty texts.
        blocks.append(_Text(text))
    for call in calls:
        arguments = msgspec.Raw(as_json_object(call.arguments).encode())
        blocks.append(_ToolUse(_valid_name(call.id), _valid_name(call.name), arguments))


def _answer_open_calls(turns: list[_Turn], open_calls: list[str]) -> None:
    """Add results for calls without one: the API refuses a conversation with open calls."""
    if not open_calls:
        return
    if turns[-1].role != "user":
        turns.append(_Turn("user", []))
    content = turns[-1].content
    answered = sum(isinstance(block, _ToolResult) for block in content)
    content[answered:answered] = [_ToolResult(one, "It was not run.", True) for one in open_calls]


def _add_breakpoints(turns: list[_Turn]) -> None:
    asked = [turn.content for turn in turns if turn.role == "user"]
    for content in asked[-2:]:
        # The API refuses a breakpoint on an empty block.
        for place in reversed(range(len(content))):
            block = content[place]
            if isinstance(block, _Text) or (isinstance(block, _ToolResult) and block.content):
                content[place] = msgspec.structs.replace(block, cache_control=_CACHED)
                break


def _system(messages: Sequence[Message], mark: _Breakpoint) -> list[_Text] | msgspec.UnsetType:
    texts = [m.content for m in messages if isinstance(m, SystemMessage) and m.content.strip()]
    if not texts:
        return UNSET
    return [*map(_Text, texts[:-1]), _Text(texts[-1], mark)]


def _tools(tools: tuple[ToolSpec, ...], mark: _Breakpoint) -> msgspec.Raw:
    made = [_Tool(_valid_name(tool.name), tool.description, tool.parameters) for tool in tools]
    made[-1] = msgspec.structs.replace(made[-1], cache_control=mark)
    return msgspec.Raw(_encode(made))


def _valid_name(text: str) -> str:
    """Replace characters that the API does not accept: ids of other models have them."""
    return _INVALID_IN_NAMES.sub("_", text) or "_"


@lru_cache(MAX_CACHED_SCHEMAS)
def _output_format(schema: str) -> dict[str, Any]:
    return {"type": "json_schema", "schema": for_constrained_decoding(msgspec.json.decode(schema))}


@lru_cache(MAX_CACHED_SCHEMAS)
def _answer_tool(schema: str) -> msgspec.Raw:
    tool = _Tool(ANSWER_TOOL, "Give the answer.", msgspec.Raw(schema.encode()))
    return msgspec.Raw(_encode([tool]))
