"""What comes back: the pieces of a streamed completion, as typed values.

Well-formed chunks are decoded straight into structs. A chunk that is JSON but not of these types
(numbers as floats, content as a list of parts, nulls everywhere) goes through `_lenient`, which
takes what it understands.
"""

from __future__ import annotations

from typing import Any

import msgspec

from retinue.models.http.wire import loosely_read


class FunctionDelta(msgspec.Struct, frozen=True, gc=False):
    name: str | None = None
    arguments: str | None = None


class CallDelta(msgspec.Struct, frozen=True, gc=False):
    index: int | None = None
    id: str | None = None
    function: FunctionDelta | None = None


class Delta(msgspec.Struct, frozen=True, gc=False):
    content: str | None = None
    tool_calls: list[CallDelta] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None


class Choice(msgspec.Struct, frozen=True, gc=False):
    """`delta` in a stream, `message` in a body that came as a whole."""

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
    """What llama.cpp tells besides. `prompt_n` leaves out what the cache had (`cache_n`)."""

    prompt_n: int | None = None
    cache_n: int | None = None
    predicted_n: int | None = None


class Chunk(msgspec.Struct, frozen=True, gc=False):
    choices: list[Choice] | None = None
    usage: UsageCount | None = None
    timings: Timings | None = None
    error: Any = None


_decode = msgspec.json.Decoder(Chunk).decode


def decode_chunk(data: bytes) -> Chunk:
    """Raises msgspec.DecodeError if it is not JSON."""
    try:
        return _decode(data)
    except msgspec.ValidationError:
        return _lenient(msgspec.json.decode(data))
    except UnicodeDecodeError:
        return decode_chunk(data.decode("utf-8", "replace").encode())


def decode_loosely(data: bytes) -> Chunk | None:
    """What is nearly JSON; None if it is nothing like it."""
    try:
        return _lenient(loosely_read(data))
    except ValueError:
        return None


def _lenient(value: Any) -> Chunk:
    if isinstance(value, list) and value:
        value = value[0]
    if not isinstance(value, dict):
        return Chunk(error=value)
    choices = value.get("choices")
    return Chunk(
        choices=[_choice(c) for c in choices if isinstance(c, dict)]
        if isinstance(choices, list)
        else None,
        usage=_usage(value.get("usage")),
        timings=_timings(value.get("timings")),
        error=value.get("error"),
    )


def _choice(value: dict[str, Any]) -> Choice:
    return Choice(
        delta=_delta(value.get("delta")),
        message=_delta(value.get("message")),
        finish_reason=_text(value.get("finish_reason")),
    )


def _delta(value: Any) -> Delta | None:
    if not isinstance(value, dict):
        return None
    calls = value.get("tool_calls")
    if isinstance(calls, dict):
        calls = [calls]
    return Delta(
        content=_text(value.get("content")),
        tool_calls=[_call(c) for c in calls if isinstance(c, dict)]
        if isinstance(calls, list)
        else None,
        reasoning_content=_text(value.get("reasoning_content")),
        reasoning=_text(value.get("reasoning")),
        refusal=_text(value.get("refusal")),
    )


def _call(value: dict[str, Any]) -> CallDelta:
    function = value.get("function")
    if not isinstance(function, dict):
        return CallDelta(index=_count(value.get("index")), id=_identifier(value.get("id")))
    arguments = function.get("arguments")
    if arguments is not None and not isinstance(arguments, str):
        arguments = msgspec.json.encode(arguments).decode()
    return CallDelta(
        index=_count(value.get("index")),
        id=_identifier(value.get("id")),
        function=FunctionDelta(name=_text(function.get("name")), arguments=arguments),
    )


def _text(value: Any) -> str | None:
    """A string, or the text of a list of parts; the parts that a model thinks in are left out."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        texts = [part.get("text") for part in value if isinstance(part, dict)]
        return "".join(text for text in texts if isinstance(text, str))
    return None


def _identifier(value: Any) -> str | None:
    return None if value is None or isinstance(value, bool) else str(value)


def _count(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return int(value)
    except (ValueError, OverflowError):
        return None


def _usage(value: Any) -> UsageCount | None:
    if not isinstance(value, dict):
        return None
    details = value.get("prompt_tokens_details")
    return UsageCount(
        prompt_tokens=_count(value.get("prompt_tokens")),
        completion_tokens=_count(value.get("completion_tokens")),
        prompt_tokens_details=PromptDetails(_count(details.get("cached_tokens")))
        if isinstance(details, dict)
        else None,
        prompt_cache_hit_tokens=_count(value.get("prompt_cache_hit_tokens")),
    )


def _timings(value: Any) -> Timings | None:
    if not isinstance(value, dict):
        return None
    return Timings(
        prompt_n=_count(value.get("prompt_n")),
        cache_n=_count(value.get("cache_n")),
        predicted_n=_count(value.get("predicted_n")),
    )
