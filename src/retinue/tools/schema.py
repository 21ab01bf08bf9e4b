"""JSON schemas for models: short, without titles and defaults."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

_DROPPED = frozenset({"title", "default"})

HIDDEN = msgspec.Meta(extra_json_schema={"hidden": True})
"""For a parameter that is accepted and not shown: `Annotated[str | None, HIDDEN] = None`."""


def compact_schema(
    struct: type[msgspec.Struct], schema_hook: Callable[[Any], dict[str, Any]] | None = None
) -> dict[str, Any]:
    """Schema of a struct without titles and defaults, with references replaced by their content.

    Only a type that contains itself stays a reference. `X | None` is shown as X: a model can leave
    the argument out instead.
    """
    (ref,), definitions = msgspec.json.schema_components(
        [struct], ref_template="#/$defs/{name}", schema_hook=schema_hook
    )
    kept: dict[str, Any] = {}
    schema = _inlined(ref, definitions, (), kept)
    assert isinstance(schema, dict)
    schema.pop("description", None)
    properties = schema.get("properties", {})
    schema["properties"] = {n: field for n, field in properties.items() if "hidden" not in field}
    if not schema.get("required"):
        schema.pop("required", None)
    if kept:
        schema["$defs"] = kept
    return schema


def schema_outline(schema: dict[str, Any]) -> str:
    """A schema on one line for an error message: `{"path": string, "start"?: integer}`."""
    required = schema.get("required", ())
    fields = (
        f'"{name}"{"" if name in required else "?"}: {_type_name(field)}'
        for name, field in schema["properties"].items()
    )
    return "{" + ", ".join(fields) + "}"


def _type_name(field: dict[str, Any]) -> str:
    if "enum" in field:
        return "|".join(msgspec.json.encode(value).decode() for value in field["enum"])
    if "anyOf" in field:
        return "|".join(_type_name(one) for one in field["anyOf"])
    kind = str(field.get("type", "any"))
    if kind == "array":
        return f"[{_type_name(field.get('items', {}))}, …]"
    return kind


def _inlined(
    node: Any, definitions: dict[str, Any], within: tuple[str, ...], kept: dict[str, Any]
) -> Any:
    if isinstance(node, list):
        return [_inlined(one, definitions, within, kept) for one in node]
    if not isinstance(node, dict):
        return node
    if "$defs" in node:  # The schema of a pydantic model brings its own.
        definitions = {**definitions, **node["$defs"]}
        node = {key: value for key, value in node.items() if key != "$defs"}
    if "$ref" in node:
        name = node["$ref"].removeprefix("#/$defs/")
        if name in within:
            if name not in kept:
                kept[name] = None
                kept[name] = _inlined(definitions[name], definitions, (*within, name), kept)
            return node
        rest = {key: value for key, value in node.items() if key != "$ref"}
        return _inlined({**definitions[name], **rest}, definitions, (*within, name), kept)
    out: dict[str, Any] = {}
    for key, value in node.items():
        if key == "properties":
            # Here the keys are names of parameters, which may be called title or default.
            out[key] = {n: _inlined(v, definitions, within, kept) for n, v in value.items()}
        elif key not in _DROPPED:
            out[key] = _inlined(value, definitions, within, kept)
    return _without_null(out)


def _without_null(node: dict[str, Any]) -> dict[str, Any]:
    options = node.get("anyOf")
    if not isinstance(options, list):
        return node
    real = [one for one in options if one != {"type": "null"}]
    rest = {key: value for key, value in node.items() if key != "anyOf"}
    return {**real[0], **rest} if len(real) == 1 else {**rest, "anyOf": real}
