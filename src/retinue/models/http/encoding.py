"""Encodes requests: what is the same for every API."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Set

import msgspec

from retinue.domain.messages import Message, Request
from retinue.models.http.capabilities import OutputMode
from retinue.models.http.decoding import replace_lone_surrogates

MAX_CACHED_SCHEMAS = 64
"""How many encoded output schemas are kept: the children of a fan-out share a few."""


class _AnyObject(msgspec.Struct):
    pass


_encode = msgspec.json.Encoder().encode
# Into a struct without fields: the whole text is checked, and nothing is built.
_check_object = msgspec.json.Decoder(_AnyObject).decode


class RequestEncoder(ABC):
    """Encodes requests to one model as the body of an HTTP request."""

    def encode(
        self,
        request: Request,
        mode: OutputMode = OutputMode.PROMPT,
        unsupported: Set[str] = frozenset(),
    ) -> bytes:
        """Encode without the optional features that the server does not support."""
        try:
            return self._encode(request, mode, unsupported)
        except UnicodeEncodeError:
            # Halves of surrogate pairs, say from a file name, have no UTF-8.
            plain = replace_lone_surrogates(msgspec.to_builtins(request.messages))
            messages = msgspec.convert(plain, tuple[Message, ...])
            request = msgspec.structs.replace(request, messages=messages)
            return self._encode(request, mode, unsupported)

    @abstractmethod
    def _encode(self, request: Request, mode: OutputMode, unsupported: Set[str]) -> bytes: ...


def as_json_object(arguments: str) -> str:
    """The same text if it is a JSON object, else an object that holds the text.

    Servers parse the arguments of earlier calls for their chat template, and one broken call in
    the history would make them refuse every later request.
    """
    try:
        _check_object(arguments)
    except (msgspec.MsgspecError, UnicodeEncodeError):
        return _encode({"invalid_json": arguments}).decode() if arguments.strip() else "{}"
    return arguments
