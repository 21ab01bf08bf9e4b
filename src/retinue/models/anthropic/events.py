"""What comes back from the Messages API: the events of a stream, as typed values.

Well-formed events are decoded straight into structs. One that is JSON but not of these types goes
through `_lenient`, which takes what it understands. Fields that nobody here knows are left alone.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from retinue.models.http.wire import loosely_read

T = TypeVar("T", bound=msgspec.Struct)


class Delta(msgspec.Struct, frozen=True, gc=False):
    """A piece of a block, or of what is said of the message as a whole."""

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


class Start(msgspec.Struct, frozen=True, gc=False):
    """The message as it is when its stream begins."""

    usage: UsageCount | None = None


class Event(msgspec.Struct, frozen=True, gc=False):
    """Of a stream; or a whole message, whose `type` is `message`."""

    type: str | None = None
    index: int | None = None
    delta: Delta | None = None
    content_block: msgspec.Raw = msgspec.Raw()
    message: Start | None = None
    usage: UsageCount | None = None
    error: Any = None
    content: list[msgspec.Raw] | None = None
    stop_reason: str | None = None
    stop_details: Any = None


_decode = msgspec.json.Decoder(Event).decode
_decode_block = msgspec.json.Decoder(Block).decode


def decode_event(data: bytes) -> Event:
    """Raises msgspec.DecodeError if it is not JSON."""
    try:
        return _decode(data)
    except msgspec.ValidationError:
        return _lenient(Event, msgspec.json.decode(data))
    except UnicodeDecodeError:
        return decode_event(data.decode("utf-8", "replace").encode())


def decode_loosely(data: bytes) -> Event | None:
    """What is nearly JSON; None if it is nothing like it."""
    try:
        return _lenient(Event, loosely_read(data))
    except ValueError:
        return None


def decode_block(data: msgspec.Raw) -> Block:
    try:
        return _decode_block(data)
    except msgspec.ValidationError:
        return _lenient(Block, msgspec.json.decode(data))
    except msgspec.DecodeError:
        return Block()  # There was none.


_NESTED: dict[str, type[msgspec.Struct]] = {"delta": Delta, "usage": UsageCount, "message": Start}


def _lenient(kind: type[T], value: Any) -> T:
    """As many of the fields of `kind` as can be made of `value`."""
    made: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        given = value.get(field.name) if isinstance(value, dict) else None
        if given is None:
            continue
        if field.name in _NESTED:
            made[field.name] = _lenient(_NESTED[field.name], given)
        elif field.name in ("content_block", "input"):
            made[field.name] = msgspec.Raw(msgspec.json.encode(given))
        elif field.name == "content" and isinstance(given, list):
            made[field.name] = [msgspec.Raw(msgspec.json.encode(item)) for item in given]
        elif isinstance(given, float) and given.is_integer():
            made[field.name] = int(given)
        else:
            try:
                made[field.name] = msgspec.convert(given, field.type, strict=False)
            except msgspec.ValidationError:
                continue
    return kind(**made)
