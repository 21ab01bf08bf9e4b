"""The parameters of a function as the arguments of a tool: types, descriptions, defaults."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec

from retinue.errors import UsageError
from retinue.ports.tool import ToolContext
from retinue.tools.agent_context import AgentContext
from retinue.tools.docstrings import parameter_descriptions
from retinue.tools.schema import compact_schema

_CONSTRAINTS = ("gt", "ge", "lt", "le", "multiple_of", "pattern", "min_length", "max_length")
_UNDEFINED = inspect.Parameter.empty


class Parameters(msgspec.Struct, frozen=True):
    """The parameters that a model can pass to a function, and the one for the context."""

    names: tuple[str, ...]
    optional: frozenset[str]
    defaults: Mapping[str, Callable[[], Any]]
    """Defaults that a pydantic `Field` declares; others stay with the function."""
    struct: type[msgspec.Struct]
    schema: dict[str, Any]
    context: str = ""
    """The parameter that takes the context, or ""."""
    context_type: type = AgentContext


def parameters_of(tool: str, function: Callable[..., Any]) -> Parameters:
    """Read the signature. Raises UsageError, with the name of the parameter that is wrong."""
    found = _resolved(tool, function)
    context = [p for p in found if p.annotation in (AgentContext, ToolContext)]
    if len(context) > 1:
        raise UsageError(f"Tool {tool!r}: parameter '{context[1].name}' is a second context.")
    described = parameter_descriptions(function.__doc__)
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
    defaults: dict[str, Callable[[], Any]] = {}
    kinds: dict[str, Any] = {}
    for parameter in found:
        if parameter in context:
            continue
        name, default = parameter.name, parameter.default
        annotation, extras = _split(parameter.annotation)
        if _is_field(default):
            extras.append(default)
        for field in filter(_is_field, extras):
            if not field.is_required():
                defaults[name] = partial(field.get_default, call_default_factory=True)
        has_default = name in defaults or not (default is _UNDEFINED or _is_field(default))
        kind = kinds[name] = _described(annotation, extras, described.get(name))
        # Defaults stay with the function: an argument that is not sent is not passed. Union[] takes
        # any annotation; `|` needs a type that defines the operator.
        optional = (name, Union[kind, msgspec.UnsetType], msgspec.UNSET)  # noqa: UP007
        fields.append(optional if has_default else (name, kind))
    struct = msgspec.defstruct(tool, fields, kw_only=True)
    try:
        schema = _schema(tool, kinds, struct)
    except TypeError:
        for name, kind in kinds.items():  # To name the wrong parameter in the error.
            _check(tool, name, kind)
        raise
    return Parameters(
        names=tuple(field[0] for field in fields),
        optional=frozenset(field[0] for field in fields if len(field) == 3),
        defaults=defaults,
        struct=struct,
        schema=schema,
        context=context[0].name if context else "",
        context_type=context[0].annotation if context else AgentContext,
    )


def decode(arguments: Mapping[str, Any], struct: type[msgspec.Struct]) -> msgspec.Struct:
    """Check the arguments of a call. Raises msgspec.ValidationError."""
    return msgspec.convert(arguments, struct, strict=False, dec_hook=_pydantic_value)


def _resolved(tool: str, function: Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters with their types resolved."""
    parameters = list(inspect.signature(function).parameters.values())
    for parameter in parameters:
        if parameter.kind in (
            inspect.Parameter.VAR_POSITIONAL,
            inspect.Parameter.VAR_KEYWORD,
            inspect.Parameter.POSITIONAL_ONLY,
        ):
            raise UsageError(
                f"Tool {tool!r}: parameter '{parameter}' cannot be described to a model;"
                " use plain named parameters."
            )
        if parameter.annotation is _UNDEFINED:
            raise UsageError(
                f"Tool {tool!r}: parameter '{parameter.name}' has no type;"
                f" write for example '{parameter.name}: str'."
            )
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as error:
        unknown = re.compile(rf"\b{re.escape(str(getattr(error, 'name', None)))}\b")
        whose = [p.name for p in parameters if unknown.search(str(p.annotation))]
        what = f"the type of parameter '{whose[0]}'" if whose else "its types"
        raise UsageError(f"Tool {tool!r}: {what} cannot be resolved: {error}.") from error
    return [p.replace(annotation=hints[p.name]) for p in parameters]


def _split(annotation: Any) -> tuple[Any, list[Any]]:
    """A type without its `Annotated`, and what was annotated."""
    if get_origin(annotation) is Annotated:
        kind, *extras = get_args(annotation)
        return kind, extras
    return annotation, []


def _described(kind: Any, extras: list[Any], docstring: str | None) -> Any:
    """A type with its description and constraints, in the form that msgspec reads."""
    description, meta = docstring, []
    constraints: dict[str, Any] = {}
    for extra in extras:
        if isinstance(extra, msgspec.Meta):
            meta.append(extra)
            description = extra.description or description
        elif isinstance(extra, str):
            description = extra
        elif _is_field(extra):
            description = extra.description or description
            for one in extra.metadata:
                constraints |= _constraints(one)
        else:
            constraints |= _constraints(extra)
    if description is not None or constraints:
        meta.append(msgspec.Meta(description=description, **constraints))
    for one in meta:
        kind = Annotated[kind, one]
    return kind


def _constraints(extra: Any) -> dict[str, Any]:
    """The constraints of pydantic and annotated_types, which have the names of msgspec's."""
    found = {name: getattr(extra, name, None) for name in _CONSTRAINTS}
    return {name: value for name, value in found.items() if value is not None}


def _is_field(value: Any) -> bool:
    return type(value).__module__ == "pydantic.fields" and hasattr(value, "is_required")


def _schema(tool: str, kinds: Mapping[str, Any], struct: type[msgspec.Struct]) -> dict[str, Any]:
    """The schema of the struct. Raises TypeError if no model can send these types."""
    schema = compact_schema(struct, _pydantic_schema)
    # msgspec has a schema for some types that it cannot decode JSON to.
    optional = [(name, Union[kind, None], None) for name, kind in kinds.items()]  # noqa: UP007
    msgspec.convert({}, msgspec.defstruct(tool, optional))
    return schema


def _check(tool: str, name: str, kind: Any) -> None:
    try:
        _schema(tool, {name: kind}, msgspec.defstruct(tool, [(name, kind)]))
    except TypeError as error:
        raise UsageError(
            f"Tool {tool!r}: parameter '{name}' has a type that a model cannot send: {error}"
        ) from error


def _pydantic_schema(kind: Any) -> dict[str, Any]:
    if hasattr(kind, "model_json_schema"):
        return dict(kind.model_json_schema())
    raise NotImplementedError


def _pydantic_value(kind: Any, value: Any) -> Any:
    if hasattr(kind, "model_validate"):
        return kind.model_validate(value)
    raise NotImplementedError
