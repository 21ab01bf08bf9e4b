"""Schemas of MCP tools, in a form that model servers accept.

A model server that rejects one schema rejects every request of an agent that has the tool. So parts
that no model server needs are dropped; the MCP server checks the arguments anyway.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jsonschema_rs
import msgspec

MAX_BYTES = 6_000
MAX_DEPTH = 12
MAX_DESCRIPTION = 1_000

# Not needed; and `pattern`, which the grammars of local models support only in part.
_DROPPED = frozenset({"title", "examples", "pattern", "deprecated", "readOnly", "writeOnly"})
_MAPPINGS = frozenset(
    {"properties", "$defs", "definitions", "patternProperties", "dependentSchemas"}
)
_LISTS = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
_SUBSCHEMAS = frozenset({"items", "additionalProperties", "not", "contains", "propertyNames"})


def clean_schema(schema: Any) -> msgspec.Raw:
    """Return `schema` as a valid object schema of at most MAX_BYTES. Deterministic."""
    found = _clean(schema, 0) if isinstance(schema, Mapping) else {}
    if found.get("type", "object") != "object":
        found = {}
    # No provider accepts alternatives at the top level.
    found = {key: value for key, value in found.items() if key not in _LISTS}
    properties = found.get("properties")
    found = {"type": "object", **found, "properties": {}}
    if isinstance(properties, dict):
        found["properties"] = properties
    for candidate in (found, _without_descriptions(found), _names_only(found)):
        data = msgspec.json.encode(candidate)
        if len(data) <= MAX_BYTES and jsonschema_rs.meta.is_valid(candidate):
            return msgspec.Raw(data)
    return msgspec.Raw(b'{"type":"object","properties":{}}')


def clean_description(text: Any) -> str:
    """Description for models: printable characters only, at most MAX_DESCRIPTION of them."""
    if not isinstance(text, str):
        return ""
    seen = "".join(letter for letter in text if letter.isprintable() or letter == "\n").strip()
    return seen if len(seen) <= MAX_DESCRIPTION else seen[: MAX_DESCRIPTION - 1].rstrip() + "…"


def _clean(node: Any, depth: int) -> Any:
    if not isinstance(node, Mapping):
        return node  # `true` and `false` are valid schemas.
    if depth > MAX_DEPTH:
        return {}
    out: dict[str, Any] = {}
    for key, value in node.items():
        if key in _DROPPED or (key.startswith("$") and key not in ("$ref", "$defs")):
            continue
        if key == "$ref" and not (isinstance(value, str) and value.startswith("#")):
            continue  # Remote references are not resolved.
        if key in _MAPPINGS and isinstance(value, Mapping):
            out[key] = {name: _clean(one, depth + 1) for name, one in value.items()}
        elif key in _LISTS and isinstance(value, list):
            out[key] = [_clean(one, depth + 1) for one in value]
        elif key in _SUBSCHEMAS:
            out[key] = _clean(value, depth + 1)
        else:
            out[key] = value
    return out


def _without_descriptions(node: Any) -> Any:
    """Remove descriptions. A property named `description` stays."""
    if isinstance(node, list):
        return [_without_descriptions(one) for one in node]
    if not isinstance(node, dict):
        return node
    out = {}
    for key, value in node.items():
        if key in _MAPPINGS and isinstance(value, dict):
            out[key] = {name: _without_descriptions(one) for name, one in value.items()}
        elif key != "description":
            out[key] = _without_descriptions(value)
    return out


def _names_only(schema: dict[str, Any]) -> dict[str, Any]:
    names = list(schema["properties"])[:100]
    required = schema.get("required")
    required = [n for n in required if n in names] if isinstance(required, list) else []
    short = {"type": "object", "properties": {name: {} for name in names}}
    return {**short, "required": required} if required else short
