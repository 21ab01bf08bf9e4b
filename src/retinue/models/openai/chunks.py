"""The chunks of a streamed chat completion, as typed values."""

from __future__ import annotations

from typing import Any

import msgspec

from retinue.models.http.decoding import EventDecoder


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


class UsageCount(msgspec.Struct, frozen=True, gc=False):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None
    prompt_cache_hit_tokens: int | None = None


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


CHUNKS = EventDecoder(Chunk)
