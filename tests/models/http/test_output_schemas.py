from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.models.http.output_schemas import (
    for_constrained_decoding,
    forbid_extra_properties,
    is_strict,
)

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "minLength": 1}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}


def test_extra_properties_are_forbidden_at_every_depth_in_a_copy() -> None:
    schema: dict[str, Any] = {
        "$defs": {"P": PERSON},
        "type": "object",
        "properties": {
            "all": {"type": "array", "items": {"$ref": "#/$defs/P"}},
            "one": {"anyOf": [PERSON, {"type": "null"}]},
            # A property may have the name of a word.
            "properties": {"type": "string"},
        },
        "required": ["all", "one", "properties"],
    }
    before = str(schema)
    made = forbid_extra_properties(schema)
    assert str(schema) == before
    assert made["additionalProperties"] is False
    assert made["$defs"]["P"]["additionalProperties"] is False
    assert made["properties"]["one"]["anyOf"][0]["additionalProperties"] is False
    assert made["properties"]["properties"] == {"type": "string"}
    assert is_strict(made)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {}, "additionalProperties": {"type": "integer"}},
        {"type": "object"},
        {"type": "object", "properties": {"a": {}}, "required": []},
        {"type": "object", "properties": {"a": {}}, "anyOf": [{"required": ["a"]}]},
        {"type": "array", "items": {"type": "object"}},
        {"$ref": "#/$defs/A", "$defs": {"A": {"type": "object"}}},
        {"properties": PERSON["properties"] | {"x": {"type": "object"}}, "required": ["name"]},
    ],
)
def test_not_strict(schema: dict[str, Any]) -> None:
    assert not is_strict(forbid_extra_properties(schema))


def test_unsupported_keywords_are_left_out() -> None:
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "string", "maxLength": 3, "format": "email", "description": "x"},
            "b": {"type": "string", "format": "phone"},
            "c": {"oneOf": [{"type": "integer", "minimum": 1}, {"const": None}]},
            "d": {"type": "array", "items": PERSON, "minItems": 2},
            "not": {"type": "string"},
        },
        "not": {"required": ["z"]},
    }
    made = for_constrained_decoding(schema)
    person = {**PERSON, "additionalProperties": False}
    person["properties"] = {"name": {"type": "string"}, "age": {"type": "integer"}}
    assert made == {
        "type": "object",
        "properties": {
            "a": {"type": "string", "format": "email", "description": "x"},
            "b": {"type": "string"},
            "c": {"anyOf": [{"type": "integer"}, {"const": None}]},
            "d": {"type": "array", "items": person},
            "not": {"type": "string"},
        },
        "additionalProperties": False,
    }


# Schemas of the usual words, and values that may fit them

NAMES = st.sampled_from(["a", "b", "properties"])
SCHEMAS: st.SearchStrategy[dict[str, Any]] = st.recursive(
    st.sampled_from([{"type": "integer", "minimum": 1}, {"type": "string"}, {"enum": [1, "a"]}]),
    lambda inner: st.one_of(
        st.builds(
            lambda named, required: {"type": "object", "properties": named, "required": required},
            st.dictionaries(NAMES, inner, max_size=3),
            st.lists(NAMES, unique=True, max_size=2),
        ),
        st.builds(lambda items: {"type": "array", "items": items}, inner),
        st.builds(lambda some: {"anyOf": some}, st.lists(inner, min_size=1, max_size=2)),
    ),
    max_leaves=5,
)
VALUES = st.recursive(
    st.sampled_from([0, 1, 5, "a", "", None]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)


@given(SCHEMAS, VALUES)
def test_narrowed_schema_implies_the_original(schema: dict[str, Any], value: Any) -> None:
    if jsonschema_rs.validator_for(forbid_extra_properties(schema)).is_valid(value):
        assert jsonschema_rs.validator_for(schema).is_valid(value)


@given(SCHEMAS)
def test_narrowed_schemas_are_valid(schema: dict[str, Any]) -> None:
    for narrower in (forbid_extra_properties, for_constrained_decoding):
        made = narrower(schema)
        jsonschema_rs.meta.validate(made)
        assert narrower(made) == made, "once is enough"
