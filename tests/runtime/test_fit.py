"""The checker that comes with retinue agrees with the one of the extra, wherever it says yes."""

from __future__ import annotations

import sys
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.errors import ContractError, UsageError
from retinue.runtime.fit import Fit, fit

values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([0.5, 2.0]) | st.text("ab"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner),
    max_leaves=6,
)
KINDS = ("object", "array", "string", "boolean", "null", "number", "integer")
plain = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(KINDS) | st.lists(st.sampled_from(KINDS), min_size=1, unique=True),
        "enum": st.lists(values, min_size=1, max_size=3),
        "const": values,
        "minimum": st.integers(-2, 2),
        "exclusiveMaximum": st.integers(-2, 2),
        "minLength": st.integers(0, 2),
        "maxItems": st.integers(0, 2),
        "minProperties": st.integers(0, 2),
        "required": st.lists(st.sampled_from("ab"), unique=True),
        "title": st.just("A title"),
        "$ref": st.sampled_from(["#/$defs/a", "#/$defs/b"]),
    },
)
schemas = st.recursive(
    st.booleans() | plain,
    lambda inner: st.builds(
        lambda one, more: {**one, **more},
        plain,
        st.fixed_dictionaries(
            {},
            optional={
                "properties": st.dictionaries(st.sampled_from("ab"), inner),
                "additionalProperties": inner,
                "items": inner,
                "prefixItems": st.lists(inner, min_size=1, max_size=2),
                "anyOf": st.lists(inner, min_size=1, max_size=2),
                "allOf": st.lists(inner, min_size=1, max_size=2),
                "oneOf": st.lists(inner, min_size=1, max_size=2),
            },
        ),
    ),
    max_leaves=8,
)
definitions = st.fixed_dictionaries({"a": st.just({"type": "string"}), "b": st.just({})})


def own(schema: Any) -> Fit:
    """The checker that comes with retinue."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "jsonschema_rs", None)
        return fit(schema)


@given(schemas, definitions, st.lists(values, min_size=1, max_size=5))
def test_both_checkers_agree(schema: Any, defined: dict[str, Any], examples: list[Any]) -> None:
    if isinstance(schema, dict):
        schema = {**schema, "$defs": defined}
    ours, theirs = own(schema), fit(schema)
    for value in examples:
        assert any(ours(value)) == any(theirs(value)), value


class Leaf(msgspec.Struct, tag="leaf"):
    size: int


class Branch(msgspec.Struct, tag="branch"):
    parts: list[Leaf | Branch]
    kind: Literal["old", "young"] = "old"
    at: tuple[int, str] | None = None


def test_what_types_are_written_in_is_understood() -> None:
    problems = own(msgspec.json.schema(Branch))
    good = {"type": "branch", "parts": [{"type": "leaf", "size": 1}], "at": [1, "x"]}
    assert list(problems(good)) == []
    [(place, text)] = problems({**good, "kind": "new"})
    assert (place, text) == (("kind",), '"new" is not one of ["old","young"]')
    assert [place for place, _ in problems({**good, "at": ["x", 1]})] == [("at",)]
    assert [text for _, text in problems({"parts": 3})] == [
        "3 is not of type array",
        "'type' is a required property",
    ]


@pytest.mark.parametrize(
    "schema",
    [
        "object",
        {"type": []},
        {"properties": []},
        {"required": "a"},
        {"enum": 1},
        {"anyOf": []},
        {"minimum": "1"},
        {"$ref": "#/$defs/a"},
        {"items": [{"type": "string"}]},
    ],
)
def test_what_is_no_schema_is_refused(schema: Any) -> None:
    with pytest.raises(ContractError, match=r"^The output schema is not a JSON schema: "):
        own(schema)


@pytest.mark.parametrize("key", ["pattern", "not", "if", "patternProperties", "uniqueItems"])
def test_no_schema_is_taken_for_less_than_it_says(key: str) -> None:
    with pytest.raises(UsageError, match=f"What checks '{key}'"):
        own({"anyOf": [{key: "x"}]})


def test_a_schema_that_refers_to_itself_comes_to_an_end() -> None:
    problems = own({"$ref": "#"})
    assert list(problems(1)) == [((), "1 is not allowed")]
