"""Reads the chunks of a chat completion."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from retinue.domain.account import MICROUSD_PER_USD
from retinue.domain.messages import Thought, Thoughts, Usage
from retinue.errors import ModelError
from retinue.models.http.decoding import EventDecoder, decode_or_text, is_json, valid_token_count
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


class Delta(msgspec.Struct, frozen=True, gc=False):
    content: str | None = None
    tool_calls: list[CallDelta] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None


class Choice(msgspec.Struct, frozen=True, gc=False):
    """`delta` in a stream, `message` in a response that came as one document."""

    delta: Delta | None = None
    message: Delta | None = None
    finish_reason: str | None = None


class PromptDetails(msgspec.Struct, frozen=True, gc=False):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class UsageCount(msgspec.Struct, frozen=True, gc=False):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None
    prompt_cache_hit_tokens: int | None = None
    cost: Any = None
    """What OpenRouter charged, in dollars."""


class Timings(msgspec.Struct, frozen=True, gc=False):
    """What llama.cpp adds. `prompt_n` leaves out what the cache had (`cache_n`)."""

    prompt_n: int | None = None
    cache_n: int | None = None
    predicted_n: int | None = None


class Chunk(msgspec.Struct, frozen=True, gc=False):
    choices: list[Choice] | None = None
    usage: UsageCount | None = None
    timings: Timings | None = None
    error: Any = None


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
        choices = event.choices
        if choices is None and event.usage is None:
            # An error without the word "error", such as {"detail": …} or {"code": 500, …}.
            value = decode_or_text(data)
            if parse_error(value).message:
                return self._errors.from_error_value(value)
        if event.usage is not None:
            self._usage = event.usage
        if event.timings is not None:
            self._timings = event.timings
        if not choices:
            self._usage_came_alone |= event.usage is not None
            return None
        self._usage_came_alone = False
        choice = choices[0]
        if choice.finish_reason:
            self.finish_reason = choice.finish_reason
        delta = choice.delta or choice.message
        if delta is None:
            return None
        text = delta.content or delta.refusal
        if text:
            self.text.append(text)
        if delta.tool_calls:
            for call in delta.tool_calls:
                self._add_call(call)
        elif not text and not (delta.reasoning_content or delta.reasoning):
            return None
        self.has_news = True
        if delta.reasoning_content or delta.reasoning:
            self._add_thinking(delta)
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
        if not self._thinking:
            return None
        # Halves of surrogate pairs have no UTF-8.
        text = "".join(self._thinking).encode("utf-8", "replace").decode()
        block = msgspec.json.encode({self._reasoning_field: text}).decode()
        return Thoughts(self._model_name, (Thought(block),))

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
        written = min(written, tokens_in - cached)
        return Usage(tokens_in, cached, tokens_out, _microusd(usage.cost), tokens_written=written)


def _microusd(cost: Any) -> int:
    """The charge in micro-dollars; 0 if the server states none, or in another form."""
    if not isinstance(cost, int | float) or not 0 < cost < _MAX_CHARGE_USD:
        return 0
    return round(cost * MICROUSD_PER_USD)
