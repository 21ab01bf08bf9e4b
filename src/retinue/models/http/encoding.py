"""Encodes requests: what is the same for every API."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence, Set
from typing import Any

import msgspec

from retinue.domain.messages import Message, Request
from retinue.domain.sampling import Sampling
from retinue.models.http.capabilities import OutputMode
from retinue.models.http.decoding import replace_lone_surrogates
from retinue.models.http.images import has_images, leaves_images_out, without_images

MAX_CACHED_SCHEMAS = 64
"""How many encoded output schemas are kept: the children of a fan-out share a few."""


class _AnyObject(msgspec.Struct):
    pass


TEMPERATURE, TOP_P, SEED = "temperature", "top_p", "seed"
SAMPLING_FEATURES = {name: rf"\b{name}\b" for name in (TEMPERATURE, TOP_P, SEED)}
"""Sampling settings that some models refuse, as optional features."""
UNKNOWN_EFFORT = (
    r"^(?!.*\bvalues?\b)(?=.*effort)"
    r".*(unknown|unrecogni|unsupported|not support|extra inputs|not permitted|not allowed)"
)
"""Matches the refusal of a server that has no effort. A refused value is the user's to change."""

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
        body = self._encode_valid(request, mode, unsupported)
        extra = request.sampling.extra_body
        return _encode({**msgspec.json.decode(body), **extra}) if extra else body

    def _encode_valid(self, request: Request, mode: OutputMode, unsupported: Set[str]) -> bytes:
        if leaves_images_out(unsupported) and has_images(request.messages):
            told = tuple(without_images(request.messages, unsupported))
            request = msgspec.structs.replace(request, messages=told)
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


def sampling_fields(
    sampling: Sampling, unsupported: Set[str], names: Sequence[str] = tuple(SAMPLING_FEATURES)
) -> dict[str, Any]:
    """The settings that are given and supported, by their name, which is the same in every API."""
    return {
        name: value
        for name in names
        if name not in unsupported and (value := getattr(sampling, name)) is not None
    }


def as_json_object(arguments: str) -> str:
    """The same text if it is a JSON object, else an object that holds the text.

    Deep nesting counts as broken: neither we nor a server could parse it.

    Servers parse the arguments of earlier calls for their chat template, and one broken call in
    the history would make them refuse every later request.
    """
    try:
        _check_object(arguments)
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        return _encode({"invalid_json": arguments}).decode() if arguments.strip() else "{}"
    return arguments
