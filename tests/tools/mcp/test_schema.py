from __future__ import annotations

from typing import Any

import jsonschema_rs
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.tools.mcp.schema import MAX_BYTES, clean_description, clean_schema

OPEN = {"type": "object", "properties": {}}
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "properties", "items", "anyOf", "$ref", "required", "enum", "x"]
            )
            | st.text(max_size=5),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


def tidied(schema: Any) -> Any:
    return msgspec.json.decode(clean_schema(schema))


@given(values)
def test_any_input_becomes_a_valid_object_schema(schema: Any) -> None:
    found = tidied(schema)
    assert found["type"] == "object"
    assert isinstance(found["properties"], dict)
    assert jsonschema_rs.meta.is_valid(found)
    assert len(msgspec.json.encode(found)) <= MAX_BYTES
    assert tidied(found) == found


@pytest.mark.parametrize(
    ("schema", "found"),
    [
        (None, OPEN),
        ("x", OPEN),
        ({}, OPEN),
        ({"type": "string"}, OPEN),
        ({"type": "object", "properties": []}, OPEN),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"}, OPEN),
        ({"type": "object", "oneOf": [{"required": ["a"]}]}, OPEN),
        (
            {"type": "object", "properties": {"a": {"$ref": "https://example.com/a.json"}}},
            {"type": "object", "properties": {"a": {}}},
        ),
        (
            {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?=x)"}}},
            {"type": "object", "properties": {"a": {"type": "string"}}},
        ),
        # A property may have the name of a keyword.
        (
            {"type": "object", "properties": {"title": {"type": "string", "title": "Title"}}},
            {"type": "object", "properties": {"title": {"type": "string"}}},
        ),
    ],
)
def test_unsupported_keywords_are_dropped(schema: Any, found: Any) -> None:
    assert tidied(schema) == found


def test_local_references_stay() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/A"}},
        "$defs": {"A": {"type": "integer"}},
        "required": ["a"],
    }
    assert tidied(schema) == schema


def test_large_schema_loses_descriptions_then_types() -> None:
    words: dict[str, Any] = {"type": "string", "description": "x" * 500}
    many = {f"field_{number}": words for number in range(20)}
    schema = {"type": "object", "properties": many, "required": ["field_1"]}
    assert tidied(schema)["properties"]["field_1"] == {"type": "string"}
    enum = {"enum": [f"value {number}" for number in range(100)]}
    many = {f"field_{number}": enum for number in range(20)}
    assert tidied({**schema, "properties": many}) == {
        "type": "object",
        "properties": {name: {} for name in many},
        "required": ["field_1"],
    }


def test_deep_schema_is_cut() -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(200):
        schema = {"type": "object", "properties": {"a": schema}}
    assert len(msgspec.json.encode(tidied(schema))) < 1_000


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (None, ""),
        (5, ""),
        ("  Reads.\nA line more. ", "Reads.\nA line more."),
        ("a\x1b[31mred\u202e", "a[31mred"),
        ("x" * 5_000, "x" * 999 + "…"),
    ],
)
def test_descriptions(text: Any, shown: str) -> None:
    assert clean_description(text) == shown
