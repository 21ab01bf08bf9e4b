"""Whether a value fits a JSON schema, for the part of JSON Schema that types are written in.

That is what msgspec and pydantic make of Python types, and what models write. Whoever wants the
whole of it installs an extra (`pattern` too: an expression of Python's may never end); a schema is
never taken for less than it says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from retinue.errors import ContractError, MissingExtra
from retinue.extras import has, missing

Problem: TypeAlias = tuple[Sequence[str | int], str]
"""Where in the value something is wrong, and what."""
Fit: TypeAlias = Callable[[Any], Iterator[Problem]]

MAX_DEPTH = 64

_KINDS: dict[str, Callable[[Any], bool]] = {
    "object": lambda v: isinstance(v, dict),
    "array": lambda v: isinstance(v, list),
    "string": lambda v: isinstance(v, str),
    "boolean": lambda v: isinstance(v, bool),
    "null": lambda v: v is None,
    "number": lambda v: isinstance(v, int | float) and not isinstance(v, bool),
    "integer": lambda v: (
        (isinstance(v, int) and not isinstance(v, bool))
        or (isinstance(v, float) and v.is_integer())
    ),
}
_LIMITS: dict[str, tuple[str, Callable[[Any, Any], bool], str]] = {
    "minimum": ("number", lambda v, n: v >= n, "{v} is less than the minimum of {n}"),
    "maximum": ("number", lambda v, n: v <= n, "{v} is greater than the maximum of {n}"),
    "exclusiveMinimum": ("number", lambda v, n: v > n, "{v} is not greater than {n}"),
    "exclusiveMaximum": ("number", lambda v, n: v < n, "{v} is not less than {n}"),
    "minLength": ("string", lambda v, n: len(v) >= n, "{v} is shorter than {n} characters"),
    "maxLength": ("string", lambda v, n: len(v) <= n, "{v} is longer than {n} characters"),
    "minItems": ("array", lambda v, n: len(v) >= n, "{v} has less than {n} items"),
    "maxItems": ("array", lambda v, n: len(v) <= n, "{v} has more than {n} items"),
    "minProperties": ("object", lambda v, n: len(v) >= n, "{v} has less than {n} properties"),
    "maxProperties": ("object", lambda v, n: len(v) <= n, "{v} has more than {n} properties"),
}
_SAID = frozenset({"title", "description", "default", "examples", "format", "$schema", "$comment"})
_SAID |= {"discriminator", "deprecated", "readOnly", "writeOnly", "$id"}
_APPLIED = frozenset({"type", "enum", "const", "properties", "required", "additionalProperties"})
_APPLIED |= {"items", "prefixItems", "anyOf", "allOf", "oneOf", "$ref", "$defs", "definitions"}
_KNOWN = _SAID | _APPLIED | _LIMITS.keys()


def fit(schema: Any) -> Fit:
    """What finds the problems of a value. ContractError for what is no schema, and MissingExtra
    for one that cannot be checked with what is installed."""
    if has("jsonschema_rs"):
        return _compiled(schema)
    _examine(schema, schema, 0)
    return lambda value: _problems(value, schema, schema, ())


def _compiled(schema: Any) -> Fit:
    import jsonschema_rs

    try:
        validator = jsonschema_rs.validator_for(schema)
    except ValueError as error:
        raise ContractError(f"The output schema is not a JSON schema: {error}.") from error
    return lambda value: (
        (error.instance_path, error.message) for error in validator.iter_errors(value)
    )


def _examine(schema: Any, root: Any, depth: int) -> None:
    """See to it that all of a schema is understood, before anything is checked by it."""
    if isinstance(schema, bool):
        return
    if depth > MAX_DEPTH or not isinstance(schema, dict):
        raise ContractError(f"The output schema is not a JSON schema: {schema!r:.80}.")
    unknown = sorted(schema.keys() - _KNOWN)
    if unknown:
        checker = missing("formats", f"What checks {unknown[0]!r} of an output schema")
        raise MissingExtra(checker)
    for key, value in schema.items():
        if not _is_well_formed(key, value, root):
            raise ContractError(
                f"The output schema is not a JSON schema: {key!r} cannot be {value!r:.80}."
            )
    for part in _parts(schema):
        _examine(part, root, depth + 1)


def _is_well_formed(key: str, value: Any, root: Any) -> bool:
    match key:
        case "type":
            kinds = value if isinstance(value, list) else [value]
            return bool(kinds) and all(isinstance(k, str) and k in _KINDS for k in kinds)
        case "properties" | "$defs" | "definitions":
            return isinstance(value, dict)
        case "required":
            return isinstance(value, list) and all(isinstance(name, str) for name in value)
        case "enum":
            return isinstance(value, list)
        case "anyOf" | "allOf" | "oneOf" | "prefixItems":
            return isinstance(value, list) and bool(value)
        case "$ref":
            return isinstance(value, str) and _target(value, root) is not None
        case _ if key in _LIMITS:
            return _KINDS["number"](value)
        case _:
            return True


def _target(ref: str, root: Any) -> Any:
    if not ref.startswith("#"):
        return None
    found = root
    for step in ref.lstrip("#").strip("/").split("/") if ref != "#" else ():
        name = step.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, dict) or name not in found:
            return None
        found = found[name]
    return found


def _parts(schema: Mapping[str, Any]) -> Iterator[Any]:
    for key in ("properties", "$defs", "definitions"):
        yield from schema.get(key, {}).values()
    for key in ("anyOf", "allOf", "oneOf", "prefixItems"):
        yield from schema.get(key, ())
    for key in ("items", "additionalProperties"):
        if key in schema:
            yield schema[key]


def _problems(
    value: Any, schema: Any, root: Any, at: tuple[str | int, ...], depth: int = 0
) -> Iterator[Problem]:
    if schema is True:
        return
    if schema is False or depth > MAX_DEPTH:
        yield at, f"{_shown(value)} is not allowed"
        return
    kinds = schema.get("type", list(_KINDS))
    kinds = kinds if isinstance(kinds, list) else [kinds]
    if not any(_KINDS[kind](value) for kind in kinds):
        yield at, f"{_shown(value)} is not of type {', '.join(kinds)}"
        return
    if "enum" in schema and not any(_same(value, one) for one in schema["enum"]):
        yield at, f"{_shown(value)} is not one of {_shown(schema['enum'])}"
    if "const" in schema and not _same(value, schema["const"]):
        yield at, f"{_shown(value)} is not {_shown(schema['const'])}"
    for key, (kind, holds, text) in _LIMITS.items():
        if key in schema and _KINDS[kind](value) and not holds(value, schema[key]):
            yield at, text.format(v=_shown(value), n=schema[key])
    yield from _alternatives(value, schema, root, at, depth + 1)
    for place, part in _children(value, schema):
        yield from _problems(value[place], part, root, (*at, place), depth + 1)
    if isinstance(value, dict):
        for name in schema.get("required", ()):
            if name not in value:
                yield at, f"{name!r} is a required property"


def _alternatives(
    value: Any, schema: Any, root: Any, at: tuple[str | int, ...], depth: int
) -> Iterator[Problem]:
    if "$ref" in schema:
        yield from _problems(value, _target(schema["$ref"], root), root, at, depth)
    for part in schema.get("allOf", ()):
        yield from _problems(value, part, root, at, depth)
    for key in ("anyOf", "oneOf"):
        if key in schema:
            fits = sum(not any(_problems(value, one, root, at, depth)) for one in schema[key])
            if fits == 0 or (fits > 1 and key == "oneOf"):
                yield at, f"{_shown(value)} fits {fits} of the schemas under {key!r}"


def _children(value: Any, schema: Mapping[str, Any]) -> Iterator[tuple[Any, Any]]:
    """Each member of a value that has a schema of its own."""
    if isinstance(value, dict):
        known = schema.get("properties", {})
        for name in value:
            yield name, known.get(name, schema.get("additionalProperties", True))
    elif isinstance(value, list):
        first = schema.get("prefixItems", ())
        for place in range(len(value)):
            yield place, first[place] if place < len(first) else schema.get("items", True)


def _same(one: Any, other: Any) -> bool:
    """Are they equal? To Python, True is 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[k], other[k]) for k in one)
    return bool(one == other)


def _shown(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 60 else text[:59] + "…"
