"""Answers that must be data: asking for them, and checking them."""

from __future__ import annotations

import re
from itertools import islice
from typing import Any, NoReturn

import msgspec

from retinue.errors import ContractError
from retinue.extras import has, missing

_FENCE = re.compile(r"```(?:json)?\s*\n(.*?)\n?```", re.DOTALL)
MAX_ERRORS = 5
MAX_ERROR_CHARS = 300
TOO_DEEP = "The output schema is nested too deeply; make it flatter."


class Shape:
    """A JSON schema that an answer must fit."""

    def __init__(self, schema: str) -> None:
        self.schema = schema
        if not has("jsonschema_rs"):
            raise ContractError(missing("formats", "What checks an output schema"))
        # Most runs have no schema; the validator is imported by those that do.
        import jsonschema_rs

        try:
            self._validator = jsonschema_rs.validator_for(
                msgspec.json.decode(schema), retriever=_refuse
            )
        except ValueError as error:
            raise ContractError(
                f"The output schema cannot be used: {_brief(str(error))}"
            ) from error

    def check(self, text: str) -> tuple[Any, str | None]:
        """The value in `text`, or what is wrong with it in words for the model."""
        problem = "it is not JSON"
        for candidate in _candidates(text):
            try:
                value = msgspec.json.decode(candidate)
            except (msgspec.DecodeError, RecursionError):
                continue
            errors = [
                _brief(
                    f"{'/'.join(map(str, error.instance_path)) or 'the answer'}: {error.message}"
                )
                for error in islice(self._validator.iter_errors(value), MAX_ERRORS)
            ]
            if not errors:
                return value, None
            problem = "; ".join(errors)
        return None, problem


def _refuse(address: str) -> NoReturn:
    """A model may write schemas: by their references it could read files, and send things away."""
    raise ValueError("it must hold all that it refers to")


def _brief(message: str) -> str:
    """The first line, which says what is wrong; it may quote all of an answer."""
    line = message.partition("\n")[0]
    return line if len(line) <= MAX_ERROR_CHARS else f"{line[:MAX_ERROR_CHARS]}…"


def _candidates(text: str) -> list[str]:
    """Where the value may be: the whole text, a fenced block, the outermost braces."""
    found = [text.strip(), *(_FENCE.findall(text))]
    for opening, closing in ("{}", "[]"):
        start, end = text.find(opening), text.rfind(closing)
        if 0 <= start < end:
            found.append(text[start : end + 1])
    return found


def schema_text(schema: Any) -> str | None:
    """A schema as the text that a contract keeps: a dict, a JSON text, or a Python type."""
    if isinstance(schema, str):
        try:
            schema = msgspec.json.decode(schema)
        except msgspec.DecodeError as error:
            raise ContractError(f"The output schema is not JSON: {error}.") from error
        except RecursionError as error:
            raise ContractError(TOO_DEEP) from error
    if schema is None:
        return None
    if hasattr(schema, "model_json_schema"):
        schema = schema.model_json_schema()  # pydantic, without importing it
    elif not isinstance(schema, dict):
        try:
            schema = msgspec.json.schema(schema)
        except TypeError as error:
            raise ContractError(
                f"The output schema cannot be made from {schema!r}: {error}."
            ) from error
    try:
        text = msgspec.json.encode(schema, order="deterministic").decode()
    except RecursionError as error:
        raise ContractError(TOO_DEEP) from error
    except TypeError as error:
        raise ContractError(f"The output schema is not JSON: {error}.") from error
    Shape(text)  # A schema that cannot be used is told now, not when the answer is there.
    return text
