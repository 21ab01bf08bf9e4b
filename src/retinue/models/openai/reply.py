"""Reads the chunks of a chat completion."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from retinue.domain.account import MICROUSD_PER_USD
from retinue.domain.messages import Thought, Thoughts, Usage
from retinue.errors import ModelError
from retinue.models.http.decoding import (
    EventDecoder,
    decode_or_text,
    is_json,
    replace_lone_surrogates,
    valid_token_count,
)
from retinue.models.http.error_mapping import ErrorMapper, parse_error
from retinue.models.http.reply import CallBuilder, OnText, ReplyReader

# The chunks of a stream


class FunctionDelta(msgspec.Struct, frozen=True, gc=False):
    name: str | None = None
    arguments: Any = None
    """A piece of JSON text; some servers send the whole object."""


class CallDelta(msgspec.Struct, frozen=True, gc=False):
    index: int | None = None
    id: str | int | None = None
    function: FunctionDelta | None = None
    extra_content: Any = None
    """Signatures of Gemini."""


class Delta(msgspec.Struct, frozen=True, gc=False):
    content: str | list[Any] | None = None
    """Text; of Mistral, a list of parts with text or thinking."""
    tool_calls: list[CallDelta] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    reasoning_details: list[Any] | None = None
    """Pieces of reasoning of OpenRouter and MiniMax, which may be signed or encrypted."""
    extra_content: Any = None
    refusal: str | None = None


class Choice(msgspec.Struct, frozen=True, gc=False):
    """`delta` in a stream, `message` in a response that came as one document."""

    delta: Delta | None = None
    message: Delta | None = None
    finish_reason: str | None = None


class PromptDetails(msgspec.Struct, frozen=True, gc=False):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class CompletionDetails(msgspec.Struct, frozen=True, gc=False):
    reasoning_tokens: int | None = None


class UsageCount(msgspec.Struct, frozen=True, gc=False):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None
    completion_tokens_details: CompletionDetails | None = None
    prompt_cache_hit_tokens: int | None = None
    cost: Any = None
    """The price that OpenRouter charged, in dollars."""


class Timings(msgspec.Struct, frozen=True, gc=False):
    """Counts that llama.cpp adds. `prompt_n` leaves out tokens from the cache (`cache_n`)."""

    prompt_n: int | None = None
    cache_n: int | None = None
    predicted_n: int | None = None


class Chunk(msgspec.Struct, frozen=True, gc=False):
    choices: list[Choice] | None = None
    usage: UsageCount | None = None
    timings: Timings | None = None
    error: Any = None


_DETAIL_TEXTS = {"reasoning.text": "text", "reasoning.summary": "summary"}
_NO_USAGE, _NO_TIMINGS = UsageCount(), Timings()
_MAX_CHARGE_USD = 10_000


class ChatReplyReader(ReplyReader[Chunk]):
    decoder = EventDecoder(Chunk)
    length_reasons = frozenset({"length", "max_tokens"})
    filter_reasons = frozenset({"content_filter"})
    failure_reasons = frozenset({"error", "abort", "aborted", "cancel", "cancelled"})

    def __init__(
        self, errors: ErrorMapper, on_text: OnText | None = None, *, model_name: str = ""
    ) -> None:
        super().__init__(errors, on_text, model_name=model_name)
        self._thinking: list[str] = []
        self._reasoning_field = "reasoning_content"
        self._details: list[Any] = []
        self._thinking_parts: list[dict[str, Any]] = []
        self._extra_content: Any = None
        self._calls_by_index: dict[int, CallBuilder] = {}
        self._usage: UsageCount | None = None
        self._timings: Timings | None = None
        # Whether the last chunk was the usage alone, which comes at the end. Some servers send
        # usage with every chunk as well, which says nothing about the end.
        self._usage_came_alone = False

    @property
    def ended(self) -> bool:
        return super().ended or self._usage_came_alone

    def add(self, event: Chunk, data: bytes) -> ModelError | None:
        if event.error:
            return self._errors.from_error_value(event.error)
        if event.usage is not None:
            self._usage = event.usage
        if event.timings is not None:
            self._timings = event.timings
        choices = event.choices
        if not choices:
            if event.usage is not None:
                self._usage_came_alone = True
            elif choices is None:
                # An error without the word "error", such as {"detail": …} or {"code": 500, …}.
                value = decode_or_text(data)
                if parse_error(value).message:
                    return self._errors.from_error_value(value)
            return None
        self._usage_came_alone = False
        choice = choices[0]
        if choice.finish_reason:
            self.finish_reason = choice.finish_reason
        delta = choice.delta or choice.message
        if delta is None:
            return None
        text = delta.content
        if delta.refusal:
            text = delta.refusal
            self.refusal += text
        elif isinstance(text, list):
            text = self._add_parts(text)
        if text:
            self.text.append(text)
            self.has_news = True
        if delta.tool_calls:
            for call in delta.tool_calls:
                self._add_call(call)
            self.has_news = True
        if delta.reasoning_content or delta.reasoning or delta.reasoning_details:
            self._add_thinking(delta)
            self.has_news = True
        if delta.extra_content is not None:
            self._extra_content = delta.extra_content
        return None

    def add_whole(self, event: Chunk) -> bool:
        if event.error or not event.choices:
            return False
        return self.add(event, b"") is None

    def _add_thinking(self, delta: Delta) -> None:
        # Some servers send it in both fields.
        if delta.reasoning_content:
            self._thinking.append(delta.reasoning_content)
        elif delta.reasoning:
            self._thinking.append(delta.reasoning)
            self._reasoning_field = "reasoning"
        for detail in delta.reasoning_details or ():
            if not (self._details and _continue_detail(self._details[-1], detail)):
                self._details.append(dict(detail) if isinstance(detail, dict) else detail)

    def _add_parts(self, parts: list[Any]) -> str:
        """The text of the parts of a content; thinking is kept apart."""
        texts = []
        for part in parts:
            if not isinstance(part, dict):
                continue
            if part.get("type") != "thinking":
                texts.append(str(part.get("text") or ""))
                continue
            inner = part.get("thinking")
            pieces = inner if isinstance(inner, list) else [{"type": "text", "text": inner}]
            text = "".join(str(one.get("text") or "") for one in pieces if isinstance(one, dict))
            self._thinking.append(text)
            self.has_news = True
            # Pieces become one part, as in a reply that is not streamed.
            last = self._thinking_parts[-1] if self._thinking_parts and not self.text else None
            if last is None:
                last = {"thinking": [{"type": "text", "text": ""}]}
                self._thinking_parts.append(last)
            text = last["thinking"][0]["text"] + text
            last |= {**part, "thinking": [{"type": "text", "text": text}]}
        return "".join(texts)

    def _add_call(self, delta: CallDelta) -> None:
        function = delta.function
        name = function.name if function is not None else None
        arguments = function.arguments if function is not None else None
        call_id = None if delta.id is None else str(delta.id) or None
        call = self._continued_call(delta.index, call_id, name)
        if call is None:
            call = CallBuilder(call_id)
            self.calls.append(call)
        elif call_id and call.id is None:
            call.id = call_id
        if delta.index is not None:
            self._calls_by_index[delta.index] = call
        # A server that repeats the id repeats the name too; others send the name in pieces.
        if name and not (name == call.name and (call.arguments or call_id)):
            call.name += name
        if delta.extra_content is not None:
            call.extra = delta.extra_content
        if isinstance(arguments, str):
            if arguments:
                call.arguments.append(arguments)
        elif arguments is not None:
            call.arguments.append(msgspec.json.encode(arguments).decode())

    def _continued_call(
        self, index: int | None, call_id: str | None, name: str | None
    ) -> CallBuilder | None:
        """The call that a delta continues, or None if the delta begins one."""
        if index is None:
            if call_id:
                return next((call for call in self.calls if call.id == call_id), None)
            return self.calls[-1] if self.calls and not name else None
        call = self._calls_by_index.get(index)
        if call is None or not name:
            return call
        # From here on: servers that give every call the index 0.
        if call_id:
            return None if call.id and call.id != call_id else call
        if call.arguments and is_json("".join(call.arguments)):
            return None
        return call

    def thoughts(self) -> Thoughts | None:
        kept: dict[str, Any] = {}
        if self._details:
            kept["reasoning_details"] = self._details
        elif self._thinking_parts:
            kept["content"] = self._thinking_parts
        elif self._thinking:
            kept[self._reasoning_field] = "".join(self._thinking)
        if self._extra_content is not None:
            kept["extra_content"] = self._extra_content
        if extras := {call.id: call.extra for call in self.calls if call.extra is not None}:
            kept["tool_calls"] = {key: {"extra_content": extra} for key, extra in extras.items()}
        if not kept:
            return None
        try:
            block = msgspec.json.encode(kept)
        except UnicodeEncodeError:
            # Halves of surrogate pairs have no UTF-8.
            block = msgspec.json.encode(replace_lone_surrogates(kept))
        return Thoughts(self._model_name, (Thought(block.decode()),))

    def thinking(self) -> Iterable[str]:
        return self._thinking

    def usage(self) -> Usage | None:
        usage, timings = self._usage or _NO_USAGE, self._timings or _NO_TIMINGS
        cached, written = valid_token_count(timings.cache_n), 0
        tokens_in = valid_token_count(usage.prompt_tokens)
        tokens_out = valid_token_count(usage.completion_tokens)
        if tokens_in or tokens_out:
            details = usage.prompt_tokens_details
            if details is not None:
                written = valid_token_count(details.cache_write_tokens)
            if details is not None and details.cached_tokens is not None:
                cached = valid_token_count(details.cached_tokens)
            elif usage.prompt_cache_hit_tokens is not None:
                cached = valid_token_count(usage.prompt_cache_hit_tokens)
        elif timings.prompt_n is not None:
            tokens_in = valid_token_count(timings.prompt_n) + cached
            tokens_out = valid_token_count(timings.predicted_n)
        else:
            return None
        cached = min(cached, tokens_in)
        made = usage.completion_tokens_details or CompletionDetails()
        return Usage(
            tokens_in,
            cached,
            tokens_out,
            _microusd(usage.cost),
            tokens_written=min(written, tokens_in - cached),
            tokens_reasoning=min(valid_token_count(made.reasoning_tokens), tokens_out),
        )


def _microusd(cost: Any) -> int:
    """The charge in micro-dollars; 0 if the server states none, or in another form."""
    if not isinstance(cost, int | float) or not 0 < cost < _MAX_CHARGE_USD:
        return 0
    return round(cost * MICROUSD_PER_USD)


def _continue_detail(last: Any, detail: Any) -> bool:
    """Add a streamed piece of reasoning to the detail that it continues. False if it begins one."""
    if not (isinstance(last, dict) and isinstance(detail, dict)):
        return False
    if any(last.get(name) != detail.get(name) for name in ("type", "index")):
        return False
    ids = {last.get("id"), detail.get("id")} - {None}
    field = _DETAIL_TEXTS.get(str(detail.get("type")))
    if field is None or len(ids) > 1:
        return False  # Encrypted data comes whole.
    text = f"{last.get(field) or ''}{detail.get(field) or ''}"
    last |= {name: value for name, value in detail.items() if value is not None}
    last[field] = text
    return True
