"""What is the same on every wire, whichever API is spoken."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec

from retinue.domain.messages import Message, Request, ToolSpec

SCHEMAS_REMEMBERED = 64
"""How many output schemas are kept as they are sent: the children of a fan-out share a few."""

_TOOLS_REMEMBERED = 64
_MOST_TOKENS = 10**9
# Texts that are JSON again, and so can have what has no UTF-8 as an escape.
_HOLD_JSON = frozenset({"arguments", "partial_json"})


class _AnyObject(msgspec.Struct):
    pass


_encode = msgspec.json.Encoder().encode
# Into a struct without fields: the whole text is checked, and nothing is built.
_check_object = msgspec.json.Decoder(_AnyObject).decode


class ToolSchemas:
    """Encodes the schemas of a set of tools only once; `spell` says how the API writes them.

    Sets are known by identity, since hashing the schemas would cost what encoding them does.
    """

    def __init__(self, spell: Callable[[tuple[ToolSpec, ...]], Any]) -> None:
        self._spell = spell
        # The set is kept too, so that its id cannot be given to another one.
        self._known: dict[int, tuple[tuple[ToolSpec, ...], msgspec.Raw]] = {}

    def __call__(self, tools: tuple[ToolSpec, ...]) -> msgspec.Raw:
        known = self._known.get(id(tools))
        if known is not None:
            return known[1]
        encoded = msgspec.Raw(_encode(self._spell(tools)))
        if len(self._known) >= _TOOLS_REMEMBERED:
            del self._known[next(iter(self._known))]
        self._known[id(tools)] = (tools, encoded)
        return encoded


def loosely_read(data: bytes) -> Any:
    """What is JSON but for NaN, raw line breaks or halves of surrogate pairs. Raises ValueError.

    Servers in JavaScript cut a text in the middle of an emoji, and write each half as an escape.
    """
    return _clean(json.loads(data.decode("utf-8", "replace"), strict=False), "replace")


def _clean(value: Any, halves: str) -> Any:
    match value:
        case str():
            return value.encode("utf-8", halves).decode()
        case dict():
            return {
                key: _clean(item, "backslashreplace" if key in _HOLD_JSON else halves)
                for key, item in value.items()
            }
        case list() | tuple():
            return [_clean(item, halves) for item in value]
        case _:
            return value


def tokens_of(count: int | None) -> int:
    """What a server counted; 0 if it did not, or if no reply can have so many.

    A number of nonsense would use up the budgets of everybody above.
    """
    return count if count is not None and 0 <= count <= _MOST_TOKENS else 0


def valid_arguments(arguments: str) -> str:
    """The same text if it is a JSON object, else an object that holds the text.

    Servers parse the arguments of earlier calls for their chat template, and one broken call in
    the history would make them refuse every later request.
    """
    try:
        _check_object(arguments)
    except (msgspec.MsgspecError, UnicodeEncodeError):
        return _encode({"invalid_json": arguments}).decode() if arguments.strip() else "{}"
    return arguments


def encodable(request: Request) -> Request:
    """The request without halves of surrogate pairs, say from a file name: they have no UTF-8."""

    plain = _clean(msgspec.to_builtins(request.messages), "replace")
    return msgspec.structs.replace(request, messages=msgspec.convert(plain, tuple[Message, ...]))
