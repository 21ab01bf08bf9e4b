"""Reads the arguments of tool calls, and the parameters that tools declare."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from retinue.domain.messages import ToolCall, ToolSpec
from retinue.errors import ToolFailure


def decode_arguments(call: ToolCall) -> Mapping[str, Any]:
    """The arguments that the model has sent. ToolFailure if they are not one JSON object."""
    text = call.arguments.strip() or "{}"
    try:
        arguments = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        wrong = f"The arguments of {call.name} are not JSON ({error})."
        raise ToolFailure(f"{wrong} Send one JSON object.", shown=wrong) from None
    except RecursionError:
        wrong = f"The arguments of {call.name} are nested too deeply."
        raise ToolFailure(f"{wrong} Send one flat JSON object.", shown=wrong) from None
    if not isinstance(arguments, dict):
        raise ToolFailure(f"The arguments of {call.name} must be one JSON object.")
    return arguments


class _Schema(msgspec.Struct):
    properties: dict[str, msgspec.Raw] = {}


def parameters_of(spec: ToolSpec) -> Collection[str]:
    """Names of the parameters of a tool."""
    try:
        return msgspec.json.decode(spec.parameters, type=_Schema).properties
    except msgspec.DecodeError:
        return ()  # The schema of a foreign tool may be broken.


def text_argument(arguments: Mapping[str, Any], name: str) -> str:
    """The value of an argument; "" if it is missing or no text."""
    value = arguments.get(name)
    return value if isinstance(value, str) else ""
