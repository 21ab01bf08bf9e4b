"""What every request body needs, whichever API it is for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from retinue.domain.messages import Message, Request, ToolSpec

SCHEMAS_REMEMBERED = 64
"""How many output schemas are kept as they are sent: the children of a fan-out share a few."""

_TOOLS_REMEMBERED = 64


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

    def clean(value: Any) -> Any:
        match value:
            case str():
                return value.encode("utf-8", "replace").decode()
            case dict():
                return {key: clean(item) for key, item in value.items()}
            case list() | tuple():
                return [clean(item) for item in value]
            case _:
                return value

    plain = clean(msgspec.to_builtins(request.messages))
    return msgspec.structs.replace(request, messages=msgspec.convert(plain, tuple[Message, ...]))
