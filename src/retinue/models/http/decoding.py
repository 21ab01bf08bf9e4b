"""Decodes the events of a stream into structs, also events that are not quite as documented.

A well-formed event is decoded straight into its struct. Servers also send numbers as floats, text
as a list of parts, nulls everywhere, or what is only nearly JSON; of such events, the fields that
can be understood are taken.
"""

from __future__ import annotations

import json
from functools import lru_cache
from types import NoneType
from typing import Any, Generic, TypeVar, get_args, get_origin

import msgspec

# Above this, a count is nonsense, and would use up the budgets of all ancestors.
_MAX_TOKENS = 10**9
# Texts that are JSON again, and so can hold a lone surrogate as an escape.
_JSON_TEXTS = frozenset({"arguments", "partial_json"})

T = TypeVar("T", bound=msgspec.Struct)


class EventDecoder(Generic[T]):
    def __init__(self, event_type: type[T]) -> None:
        self._type = event_type
        self.strict = msgspec.json.Decoder(event_type).decode
        """Decodes a well-formed event. Raises msgspec.DecodeError or UnicodeDecodeError."""

    def lenient(self, data: bytes) -> T | None:
        """Decode an event that `strict` refuses. None if it is nothing like JSON."""
        value: Any
        try:
            value = msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            try:
                value = parse_nearly_json(data)
            except ValueError:
                return None
        return convert_leniently(self._type, value)

    def decode(self, data: bytes) -> T | None:
        try:
            return self.strict(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return self.lenient(data)


def convert_leniently(struct_type: type[T], value: Any) -> T:
    """Convert as many fields of the struct as `value` has in a form that can be understood."""
    given = value if isinstance(value, dict) else {}
    converted = {
        name: found
        for name, kinds in _field_types(struct_type)
        if (found := _convert(kinds, given.get(name))) is not None
    }
    return struct_type(**converted)


@lru_cache(maxsize=64)
def _field_types(struct_type: type[msgspec.Struct]) -> tuple[tuple[str, tuple[Any, ...]], ...]:
    """Each field with the types that it can have besides None."""
    found = []
    for field in msgspec.structs.fields(struct_type):
        union = () if get_origin(field.type) is list else get_args(field.type)
        found.append(
            (field.name, tuple(kind for kind in union or (field.type,) if kind is not NoneType))
        )
    return tuple(found)


def _convert(kinds: tuple[Any, ...], value: Any) -> Any:
    kind = kinds[0]
    if value is None or kind is Any:
        return value
    if kind is msgspec.Raw:
        return msgspec.Raw(msgspec.json.encode(value))
    if str in kinds and isinstance(value, str | list):
        if isinstance(value, str) or list[Any] in kinds:
            return value
        return _joined_parts(value)
    if int in kinds:
        return _integer(value)
    if get_origin(kind) is list:
        (item_type,) = get_args(kind)
        items = value if isinstance(value, list) else [value]
        converted = (_convert((item_type,), item) for item in items)
        return [item for item in converted if item is not None]
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and isinstance(value, dict):
        return convert_leniently(kind, value)
    return None


def _joined_parts(parts: list[Any]) -> str:
    """The text of a list of parts; parts of other kinds, such as thinking, are left out."""
    texts = (part.get("text") for part in parts if isinstance(part, dict))
    return "".join(text for text in texts if isinstance(text, str))


def _integer(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return int(value)
    except (ValueError, OverflowError):
        return None


def parse_nearly_json(data: bytes) -> Any:
    """Parse JSON with NaN, raw line breaks or lone surrogates. Raises ValueError.

    Servers in JavaScript cut a text in the middle of an emoji, and write each half as an escape.
    """
    value = json.loads(data.decode("utf-8", "replace"), strict=False)
    return replace_lone_surrogates(value)


def replace_lone_surrogates(value: Any, errors: str = "replace") -> Any:
    """Replace halves of surrogate pairs, which have no UTF-8, in all texts of a tree."""
    match value:
        case str():
            return value.encode("utf-8", errors).decode()
        case dict():
            return {
                key: replace_lone_surrogates(
                    item, "backslashreplace" if key in _JSON_TEXTS else errors
                )
                for key, item in value.items()
            }
        case list() | tuple():
            return [replace_lone_surrogates(item, errors) for item in value]
        case _:
            return value


def decode_or_text(data: bytes) -> object:
    """The value if `data` is JSON, else its text."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return data.decode("utf-8", "replace").strip()


def is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return False
    return True


def valid_token_count(count: int | None) -> int:
    """A server's count of tokens; 0 if it is missing or larger than any reply."""
    return count if count is not None and 0 <= count <= _MAX_TOKENS else 0
