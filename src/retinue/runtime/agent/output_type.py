"""Output types: the Python type that a program wants an answer as."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeVar

import msgspec

from retinue.domain.result import NOT_AS_SCHEMA, Result, Status
from retinue.errors import ContractError
from retinue.runtime.agent.output_schema import schema_text

R = TypeVar("R", bound=Result)


class OutputType(NamedTuple):
    """JSON schema of an answer, and how a value that fits it becomes an object of the type."""

    schema: str
    convert: Callable[[Any], Any] | None
    """Raises ValueError with a message for the model. If None, the value stays as it is."""


def output_type(output: Any) -> OutputType | None:
    """The type that a caller gives: a class, another type, or a JSON schema. Raises ContractError.

    Classes may be pydantic models, msgspec structs, dataclasses and TypedDicts.
    """
    convert = None
    if not (output is None or isinstance(output, Mapping | str)):
        output, convert = _schema_and_conversion(output)
    schema = schema_text(output)
    return None if schema is None else OutputType(schema, convert)


def typed(result: R, convert: Callable[[Any], Any] | None) -> R:
    """`result` with its data as an object of the caller's type."""
    if convert is None or result.data is None:
        return result
    try:
        return msgspec.structs.replace(result, data=convert(result.data))
    except ValueError as error:
        # The answer was found for another type with the same schema.
        failed = msgspec.structs.replace(result, data=None)
        if not result.ok:
            return failed
        why = f"{NOT_AS_SCHEMA}: {error}"
        return msgspec.structs.replace(failed, status=Status.ERROR, error=why)


def _schema_and_conversion(output: Any) -> tuple[Any, Callable[[Any], Any]]:
    # Pydantic is not imported here: a caller with a pydantic model has imported it.
    if hasattr(output, "model_json_schema") and hasattr(output, "model_validate"):
        return output.model_json_schema(), partial(_validate, output.model_validate)
    try:
        return msgspec.json.schema(output), partial(_convert, output)
    except TypeError as error:
        problem = error
    if (pydantic := sys.modules.get("pydantic")) is not None:
        try:
            adapter = pydantic.TypeAdapter(output)
            return adapter.json_schema(), partial(_validate, adapter.validate_python)
        except (pydantic.PydanticUserError, pydantic.PydanticSchemaGenerationError):
            pass
    raise ContractError(
        f"The output cannot be {output!r}: {str(problem).rstrip('.')}. Use a pydantic model, a"
        " msgspec struct, a dataclass, a TypedDict or a JSON schema."
    ) from problem


def _convert(kind: Any, value: Any) -> Any:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error


def _validate(validate: Callable[[Any], Any], value: Any) -> Any:
    """Call pydantic's validation, and make its error one line."""
    try:
        return validate(value)
    except ValueError as error:
        errors = getattr(error, "errors", None)
        if errors is None:
            raise
        problems = (
            f"{'/'.join(map(str, found['loc'])) or 'the answer'}: {found['msg']}"
            for found in errors(include_url=False)
        )
        raise ValueError("; ".join(problems)) from error
