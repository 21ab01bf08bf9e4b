"""Encodes requests for Anthropic's Messages API.

A prompt has up to four cache breakpoints: after the tools and after the system message, which
siblings share; and, if there are tools and so more turns to come, after the last two user messages,
where the previous request ended and where this one ends.
"""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from functools import lru_cache, partial
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
    UserMessage,
)
from retinue.domain.sampling import NO_SAMPLING
from retinue.domain.thinking import MIN_BUDGET_TOKENS, ThinkingOptions
from retinue.models.http.capabilities import ANSWER_TOOL, OutputMode
from retinue.models.http.encoding import (
    MAX_CACHED_SCHEMAS,
    SAMPLING_FEATURES,
    TEMPERATURE,
    TOP_P,
    UNKNOWN_EFFORT,
    RequestEncoder,
    as_json_object,
    sampling_fields,
)
from retinue.models.http.images import IMAGE_FEATURES, without_images
from retinue.models.http.output_schemas import for_constrained_decoding
from retinue.models.tools_cache import ToolsCache

# Optional features: what a server may refuse, and a request can leave out or say in another way.
CACHE_CONTROL = "cache_control"
CACHE_TTL = "one-hour cache"
BUDGETS = "thinking budgets"
ADAPTIVE = "adaptive thinking"
THINKING_WITH_FORCED_TOOLS = "thinking with forced tools"
DISABLING = "disabling thinking"
EFFORT = "effort"
TASK_BUDGET = "task budgets"
LONG_REPLIES = "long answers"
OPTIONAL_FEATURES = {
    CACHE_TTL: r"\bttl\b",
    CACHE_CONTROL: "cache_control",
    # Models from Claude 4.7 on: "thinking.type.enabled" is not supported, use adaptive.
    BUDGETS: r"type\.enabled",
    THINKING_WITH_FORCED_TOOLS: "forces tool use",
    # Models from Claude Opus 5.5 on always think.
    DISABLING: r"type\.disabled|thinking.{0,40}disabled",
    TASK_BUDGET: "task.budget",
    EFFORT: UNKNOWN_EFFORT,
    ADAPTIVE: "adaptive",
    LONG_REPLIES: "max_tokens",
    **SAMPLING_FEATURES,
    **IMAGE_FEATURES,
}

# The API requires a limit; these are used if the request has none. The second is for models that
# cannot write as much.
MAX_TOKENS = 32_000
LOWER_MAX_TOKENS = 8_192

UNSET = msgspec.UNSET
_ROOM_FOR_ANSWER = 1_024
_INVALID_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]")


_CACHED = msgspec.Raw(b'{"type":"ephemeral"}')
_CACHED_1H = msgspec.Raw(b'{"type":"ephemeral","ttl":"1h"}')
# The API refuses smaller task budgets.
_MIN_TASK_TOKENS = 20_000
# Efforts for thinking budgets up to these sizes, for models that have no budgets.
_EFFORT_BY_BUDGET = ((4_096, "low"), (16_384, "medium"))
_Breakpoint = msgspec.Raw | msgspec.UnsetType


class _Text(msgspec.Struct, frozen=True, gc=False, tag_field="type", tag="text"):
    text: str
    cache_control: _Breakpoint = UNSET


class _ToolUse(msgspec.Struct, frozen=True, gc=False, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: msgspec.Raw


class _Base64(msgspec.Struct, frozen=True, gc=False, tag_field="type", tag="base64"):
    media_type: str
    data: str


class _Image(msgspec.Struct, frozen=True, gc=False, tag_field="type", tag="image"):
    source: _Base64


class _ToolResult(msgspec.Struct, frozen=True, gc=False, tag_field="type", tag="tool_result"):
    tool_use_id: str
    content: str | list[_Text | _Image]
    is_error: bool | msgspec.UnsetType = UNSET
    cache_control: _Breakpoint = UNSET


_Block = _Text | _Image | _ToolUse | _ToolResult | msgspec.Raw


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
_OFF = {"type": "disabled"}
_ANSWER_CHOICE = {"type": "tool", "name": ANSWER_TOOL}


class MessagesEncoder(RequestEncoder):
    """Encodes requests to one model, and the schemas of a set of tools only once."""

    def __init__(
        self,
        model: str,
        *,
        name: str = "",
        thinking: ThinkingOptions | None = None,
        adaptive: bool = False,
        task_budgets: bool = False,
        one_hour_cache: bool = False,
    ) -> None:
        """`name` is the model's full name: only its own thoughts are sent back to it.

        `adaptive` says that the model decides how much to think, and has no thinking budgets;
        `task_budgets` that it can be told how many tokens the whole task may take.
        """
        self._model = model
        self._name = name
        self._thinking = thinking or ThinkingOptions()
        self._adaptive = adaptive
        self._task_budgets = task_budgets
        self._one_hour_cache = one_hour_cache
        # By the cache breakpoint after the tools.
        self._tools = {
            bytes(mark or b""): ToolsCache(partial(_tools, mark=mark))
            for mark in (UNSET, _CACHED, _CACHED_1H)
        }

    def _encode(self, request: Request, mode: OutputMode, unsupported: Set[str]) -> bytes:
        limit = request.max_output_tokens or self._max_tokens(unsupported)
        mark = self._mark(unsupported)
        thinking = self._thinking_field(request, mode, limit, unsupported)
        # The API refuses earlier thoughts in a request that turns thinking off. Without the field
        # the model decides; but a wanted budget that was left out turns thinking off.
        thinks = thinking["type"] != _OFF["type"] if thinking else self._thinking.on is not True
        turns = self._turns(request.messages, with_thoughts=thinks)
        if request.tools and mark:
            _add_breakpoints(turns, mark)
        tools, choice = self._tool_fields(request, mode, mark)
        return _encode(
            _Body(
                self._model,
                limit,
                turns,
                _system(request.messages, mark),
                tools,
                choice,
                thinking,
                self._output_config(request, mode, unsupported),
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

    def _mark(self, unsupported: Set[str]) -> _Breakpoint:
        if CACHE_CONTROL in unsupported:
            return UNSET
        return _CACHED_1H if self._one_hour_cache and CACHE_TTL not in unsupported else _CACHED

    def _max_tokens(self, unsupported: Set[str]) -> int:
        if LONG_REPLIES in unsupported:
            return LOWER_MAX_TOKENS
        return max(MAX_TOKENS, (self._thinking.budget_tokens or 0) + MAX_TOKENS // 2)

    def _thinking_field(
        self, request: Request, mode: OutputMode, limit: int, unsupported: Set[str]
    ) -> dict[str, Any] | msgspec.UnsetType:
        wanted = self._thinking
        if mode is OutputMode.TOOL:
            # The API refuses thinking with a forced tool call, and some models think by default.
            thinks = wanted.on or self._adaptive or THINKING_WITH_FORCED_TOOLS in unsupported
            off = bool(thinks) or wanted.on is False
        else:
            off = wanted.on is False or self._effort(request) == "none"
        if off:
            return UNSET if DISABLING in unsupported else _OFF
        if not wanted.on or mode is OutputMode.TOOL:
            return UNSET
        has_budgets = not self._adaptive and BUDGETS not in unsupported
        if (wanted.budget_tokens is None or not has_budgets) and ADAPTIVE not in unsupported:
            return {"type": "adaptive"}
        budget = min(wanted.budget_tokens or limit // 2, limit - _ROOM_FOR_ANSWER)
        if budget < MIN_BUDGET_TOKENS or not self._can_continue_thinking(request.messages):
            return UNSET
        return {"type": "enabled", "budget_tokens": budget}

    def _effort(self, request: Request) -> str | None:
        return request.sampling.effort or self._thinking.effort

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
        self, request: Request, mode: OutputMode, mark: _Breakpoint
    ) -> tuple[msgspec.Raw | msgspec.UnsetType, dict[str, str] | msgspec.UnsetType]:
        if mode is OutputMode.TOOL:
            return _answer_tool(request.schema or ""), _ANSWER_CHOICE
        if request.tools:
            return self._tools[bytes(mark or b"")](request.tools), UNSET
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
        self, request: Request, mode: OutputMode, unsupported: Set[str]
    ) -> dict[str, Any] | msgspec.UnsetType:
        made: dict[str, Any] = {}
        effort, budget = self._effort(request), self._thinking.budget_tokens
        if effort is None and budget is not None and (self._adaptive or BUDGETS in unsupported):
            effort = next((word for most, word in _EFFORT_BY_BUDGET if budget <= most), "high")
        if effort not in (None, "none") and EFFORT not in unsupported:
            made["effort"] = "low" if effort == "minimal" else effort
        if mode is OutputMode.SCHEMA:
            made["format"] = _output_format(request.schema or "")
        # The same number in all turns: it is part of the prompt, and the server counts down.
        total = request.task_tokens or 0
        if self._task_budgets and total >= _MIN_TASK_TOKENS and TASK_BUDGET not in unsupported:
            made["task_budget"] = {"type": "tokens", "total": total}
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
                    turns[-1].content.append(_result(call_id, message))
                    open_calls = [one for one in open_calls if one != call_id]
                else:
                    turns[-1].content.extend(_with_images(message))
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


def _with_images(message: UserMessage | ToolMessage) -> list[_Text | _Image]:
    text = [_Text(message.content)] if message.content.strip() else []
    return [*text, *(_Image(_Base64(image.media_type, image.data)) for image in message.images)]


def _result(call_id: str, message: ToolMessage) -> _ToolResult:
    content: str | list[_Text | _Image] = message.content
    if message.images:
        # The API accepts nothing but text in a result that is an error.
        (told,) = without_images([message], frozenset()) if message.failed else (message,)
        assert isinstance(told, ToolMessage)
        content = _with_images(told)
    return _ToolResult(call_id, content, message.failed or UNSET)


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


def _add_breakpoints(turns: list[_Turn], mark: _Breakpoint) -> None:
    asked = [turn.content for turn in turns if turn.role == "user"]
    for content in asked[-2:]:
        # The API refuses a breakpoint on an empty block.
        for place in reversed(range(len(content))):
            block = content[place]
            if isinstance(block, _Text) or (isinstance(block, _ToolResult) and block.content):
                content[place] = msgspec.structs.replace(block, cache_control=mark)
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
