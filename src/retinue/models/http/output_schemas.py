"""Narrows output schemas to forms that servers accept for constrained decoding.

Each form only leaves out what a server would refuse, or forbids extra properties. The caller checks
the answer against the original schema.
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

_COMBINING = frozenset({"anyOf", "oneOf", "allOf", "$ref", "if", "not", "patternProperties"})
_HOLDS_SCHEMA = frozenset(
    {"items", "additionalProperties", "contains", "not", "if", "then", "else"}
)
_HOLDS_LIST = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
_HOLDS_NAMED = frozenset({"properties", "$defs", "definitions", "patternProperties"})
# Keywords that Anthropic's constrained decoding refuses; it ignores other unknown ones.
_NOT_DECODABLE = frozenset(
    {"minItems", "maxItems", "uniqueItems", "contains", "minContains", "maxContains", "prefixItems"}
    | {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
    | {"minLength", "maxLength", "minProperties", "maxProperties", "patternProperties"}
    | {"propertyNames", "dependentRequired", "dependentSchemas", "unevaluatedProperties"}
    | {"if", "then", "else", "not"}
)
_FORMATS = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"}
)


def forbid_extra_properties(schema: Schema) -> Schema:
    """Copy the schema with objects that have only the properties it names."""
    made = _each(schema, forbid_extra_properties)
    if "properties" in made and not _COMBINING & made.keys():
        made.setdefault("additionalProperties", False)
    return made


def is_strict(schema: Any) -> bool:
    """Whether every object forbids extra properties and requires all others.

    OpenAI's `strict` accepts only such schemas.
    """
    if isinstance(schema, list):
        return all(map(is_strict, schema))
    if not isinstance(schema, dict):
        return True
    if schema.get("type") == "object" or "properties" in schema:
        named = schema.get("properties")
        if not isinstance(named, dict) or schema.get("additionalProperties") is not False:
            return False
        if set(named) != set(schema.get("required", ())):
            return False
        return all(map(is_strict, named.values())) and is_strict(schema.get("$defs", {}))
    return all(map(is_strict, schema.values()))


def for_constrained_decoding(schema: Schema) -> Schema:
    """Copy the schema without what Anthropic's constrained decoding refuses."""
    made = _each(
        {word: value for word, value in schema.items() if word not in _NOT_DECODABLE},
        for_constrained_decoding,
    )
    if "oneOf" in made:
        made.setdefault("anyOf", made.pop("oneOf"))
    if made.get("format", "date") not in _FORMATS:
        del made["format"]
    if "properties" in made:
        made.setdefault("additionalProperties", False)
    return made


def _each(schema: Schema, change: Any) -> Schema:
    """Copy a schema with `change` applied to every schema inside it."""
    made: Schema = {}
    for word, value in schema.items():
        if word in _HOLDS_NAMED and isinstance(value, dict):
            value = {name: _changed(inner, change) for name, inner in value.items()}
        elif word in _HOLDS_LIST and isinstance(value, list):
            value = [_changed(inner, change) for inner in value]
        elif word in _HOLDS_SCHEMA:
            value = _changed(value, change)
        made[word] = value
    return made


def _changed(value: Any, change: Any) -> Any:
    return change(value) if isinstance(value, dict) else value
