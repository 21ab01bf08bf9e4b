"""The events of a streamed message of Anthropic's Messages API, as typed values."""

from __future__ import annotations

from typing import Any

import msgspec

from retinue.models.http.decoding import EventDecoder


class Delta(msgspec.Struct, frozen=True, gc=False):
    """A piece of a block, or news about the message as a whole."""

    type: str | None = None
    text: str | None = None
    partial_json: str | None = None
    thinking: str | None = None
    signature: str | None = None
    stop_reason: str | None = None
    stop_details: Any = None


class UsageCount(msgspec.Struct, frozen=True, gc=False):
    """`input_tokens` leaves out those that were read from the cache or written into it."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class Block(msgspec.Struct, frozen=True, gc=False):
    type: str | None = None
    text: str | None = None
    id: str | None = None
    name: str | None = None
    input: msgspec.Raw = msgspec.Raw()


class MessageStart(msgspec.Struct, frozen=True, gc=False):
    """The message as it is when its stream begins."""

    usage: UsageCount | None = None


class Event(msgspec.Struct, frozen=True, gc=False):
    """An event of a stream; or a whole message, whose `type` is `message`."""

    type: str | None = None
    index: int | None = None
    delta: Delta | None = None
    content_block: msgspec.Raw = msgspec.Raw()
    message: MessageStart | None = None
    usage: UsageCount | None = None
    error: Any = None
    content: list[msgspec.Raw] | None = None
    stop_reason: str | None = None
    stop_details: Any = None


EVENTS = EventDecoder(Event)
BLOCKS = EventDecoder(Block)
