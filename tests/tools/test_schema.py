from __future__ import annotations

from enum import Enum
from typing import Annotated, Any, Literal

import msgspec

from retinue.tools.schema import HIDDEN, compact_schema, schema_outline


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Point(msgspec.Struct):
    x: int
    title: str = "none"


class Node(msgspec.Struct):
    name: str
    below: list[Node] = []


def schema(**fields: Any) -> dict[str, Any]:
    return compact_schema(msgspec.defstruct("S", list(fields.items())))


def test_plain_types() -> None:
    assert schema(a=str, b=Annotated[int, msgspec.Meta(description="how many", ge=1)]) == {
        "type": "object",
        "properties": {
            "a": {"type": "string"},
            "b": {"type": "integer", "description": "how many", "minimum": 1},
        },
        "required": ["a", "b"],
    }


def test_no_parameters() -> None:
    assert schema() == {"type": "object", "properties": {}}


def test_none_is_removed_from_unions() -> None:
    assert schema(a=str | None)["properties"] == {"a": {"type": "string"}}
    assert schema(a=int | str | None)["properties"]["a"] in (
        {"anyOf": [{"type": "integer"}, {"type": "string"}]},
        {"anyOf": [{"type": "string"}, {"type": "integer"}]},
    )


def test_structs_and_enums_are_inline() -> None:
    found = schema(p=Point, c=Colour, many=list[Point])
    assert "$defs" not in found
    assert found["properties"]["p"] == {
        "type": "object",
        "properties": {"x": {"type": "integer"}, "title": {"type": "string"}},
        "required": ["x"],
    }
    assert sorted(found["properties"]["c"]["enum"]) == ["blue", "red"]


def test_recursive_type_stays_a_reference() -> None:
    found = schema(n=Node)
    assert found["properties"]["n"]["properties"]["below"]["items"] == {"$ref": "#/$defs/Node"}
    assert found["$defs"]["Node"]["properties"]["name"] == {"type": "string"}


def test_outline() -> None:
    struct = msgspec.defstruct(
        "S",
        [
            ("path", str),
            ("kind", Literal["a", "b"]),
            ("many", list[int]),
            ("either", int | str | None, None),
            ("any", Any, None),
        ],
    )
    assert schema_outline(compact_schema(struct)) in (
        '{"path": string, "kind": "a"|"b", "many": [integer, …], "either"?: integer|string,'
        ' "any"?: any}',
        '{"path": string, "kind": "a"|"b", "many": [integer, …], "either"?: string|integer,'
        ' "any"?: any}',
    )


def test_hidden_parameter() -> None:
    optional = Annotated[int | None, HIDDEN] | msgspec.UnsetType
    struct = msgspec.defstruct("S", [("a", str), ("b", optional, msgspec.UNSET)])
    assert compact_schema(struct) == {
        "type": "object",
        "properties": {"a": {"type": "string"}},
        "required": ["a"],
    }
    assert schema_outline(compact_schema(struct)) == '{"a": string}'
