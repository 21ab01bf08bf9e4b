"""Output schemas: check that they can be used, and check the answers of models."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import islice
from typing import Any, NoReturn
from urllib.parse import unquote

import msgspec

from retinue.errors import ContractError
from retinue.extras import is_importable, missing_message

_FENCE = re.compile(r"```(?:json)?\s*\n(.*?)\n?```", re.DOTALL)
MAX_ERRORS = 5
MAX_ERROR_CHARS = 300
MAX_PARTS = 100_000  # Checking that many takes about 20 ms.
TOO_DEEP = "The output schema is nested too deeply; make it flatter."
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_DATA = ("const", "default", "enum", "examples")


class OutputSchema:
    """A JSON schema that an answer must fit. `convert` raises ValueError for values that do not."""

    def __init__(self, schema: str, convert: Callable[[Any], Any] | None = None) -> None:
        self._convert = convert
        if not is_importable("jsonschema_rs"):
            raise ContractError(missing_message("formats", "What checks an output schema"))
        # Imported here: most runs have no schema.
        import jsonschema_rs

        value = msgspec.json.decode(schema)
        _check_weight(value)
        try:
            self._validator = jsonschema_rs.validator_for(value, retriever=_refuse)
        except ValueError as error:
            raise ContractError(
                f"The output schema cannot be used: {_brief(str(error))}"
            ) from error

    def check(self, text: str) -> tuple[Any, str | None]:
        """The value in `text`, or None and a problem in words for the model.

        The problem is that of the candidate which fits best; the whole text counts first.
        """
        problems: list[tuple[bool, int, str]] = []
        for number, candidate in enumerate(_candidates(text)):
            try:
                value = msgspec.json.decode(candidate)
            except (msgspec.DecodeError, RecursionError):
                continue
            errors = list(islice(self._validator.iter_errors(value), MAX_ERRORS))
            if not errors:
                if not (problem := self._problem(value)):
                    return value, None
                problems.append((False, number and 1, problem))
                continue
            # A part of another type, such as a list inside of the object, fits worst.
            other_type = any(not e.instance_path and e.schema_path == ["type"] for e in errors)
            told = "; ".join(
                _brief(f"{'/'.join(map(str, e.instance_path)) or 'the answer'}: {e.message}")
                for e in errors
            )
            problems.append((number > 0 and other_type, number and len(errors), told))
        return None, min(problems, key=lambda found: found[:2], default=(0, 0, "it is not JSON"))[2]

    def _problem(self, value: Any) -> str:
        """Why a value that fits the schema is no object of the caller's type, or ""."""
        try:
            if self._convert is not None:
                self._convert(value)
        except ValueError as error:
            return _brief(str(error))
        return ""


def _refuse(address: str) -> NoReturn:
    """Refuse to load a reference: a model could write one to read files or to send data away.

    `_check_weight` refuses references that it knows; this refuses all others.
    """
    raise ValueError("it must hold all that it refers to")


def _check_weight(schema: Any) -> None:
    """Refuse schemas that take too long to check.

    In thirty lines, parts that each refer to another one twice make billions of checks.
    """
    try:
        parts = _Weight(schema).of(schema)
    except RecursionError as error:
        raise ContractError(TOO_DEEP) from error
    if parts > MAX_PARTS:
        raise ContractError(
            f"The output schema has more than {MAX_PARTS:,} parts with its references followed;"
            " make it simpler."
        )


class _Weight:
    """Counts the parts of a schema, with each reference counted as the part that it names."""

    def __init__(self, schema: Any) -> None:
        self._schema = schema
        self._known: dict[str, int] = {}

    def of(self, part: Any) -> int:
        if isinstance(part, list):
            return sum(map(self.of, part))
        if not isinstance(part, dict):
            return 0
        if part is not self._schema and isinstance(part.get("$id"), str):
            raise ContractError("No part of an output schema can have an $id; leave it out.")
        inside = sum(self.of(value) for name, value in part.items() if name not in _DATA)
        named = [part[key] for key in _REFERENCES if isinstance(part.get(key), str)]
        return 1 + inside + sum(map(self._referred, named))

    def _referred(self, reference: str) -> int:
        if reference not in self._known:
            # A part that refers to itself is checked only as deep as an answer is.
            self._known[reference] = 0
            self._known[reference] = self.of(self._target(reference))
        return self._known[reference]

    def _target(self, reference: str) -> Any:
        root, *names = unquote(reference).split("/")
        found = self._schema
        try:
            for name in names:
                key = name.replace("~1", "/").replace("~0", "~")
                found = found[int(key)] if isinstance(found, list) else found[key]
        except (KeyError, IndexError, TypeError, ValueError):
            root = reference
        if root != "#":
            raise ContractError(
                f"The output schema cannot be used: {_brief(reference)!r} is no part of it; write"
                " references as #/$defs/NAME."
            )
        return found


def _brief(message: str) -> str:
    """The first line, shortened: a message may quote a whole answer."""
    line = message.partition("\n")[0]
    return line if len(line) <= MAX_ERROR_CHARS else f"{line[:MAX_ERROR_CHARS]}…"


def _candidates(text: str) -> list[str]:
    """Texts that may be the value: the whole answer, a fenced block, the outermost braces."""
    found = [text.strip(), *(_FENCE.findall(text))]
    for opening, closing in ("{}", "[]"):
        start, end = text.find(opening), text.rfind(closing)
        if 0 <= start < end:
            found.append(text[start : end + 1])
    return found


def schema_text(schema: Any) -> str | None:
    """A schema, as a dict or as JSON text, in the form that a contract stores."""
    if isinstance(schema, str):
        try:
            schema = msgspec.json.decode(schema)
        except msgspec.DecodeError as error:
            raise ContractError(f"The output schema is not JSON: {error}.") from error
        except RecursionError as error:
            raise ContractError(TOO_DEEP) from error
    if schema is None:
        return None
    try:
        text = msgspec.json.encode(schema, order="deterministic").decode()
    except RecursionError as error:
        raise ContractError(TOO_DEEP) from error
    except TypeError as error:
        raise ContractError(f"The output schema is not JSON: {error}.") from error
    OutputSchema(text)  # Raises now for an unusable schema, not when the answer arrives.
    return text
