"""Changes one value in a settings file. Comments, order and spelling of the rest stay."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args, get_origin

import msgspec

from retinue.config.settings import Settings
from retinue.config.settings_file import parse_settings, read_text
from retinue.errors import ConfigError

_TYPES = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "a text",
    "array": "a list",
    "object": "a table",
}
_ANY_NAME = "NAME"
"""Stands for the name of a role, a server and so on, in the list of keys."""


def parse_key(key: str) -> tuple[str, ...]:
    """The parts of a key in TOML's notation: `budget.max_turns`, `prices."openai:gpt-5".input`.

    Raises ConfigError for a key that no settings file may have, with the nearest one that it may.
    """
    try:
        data: Any = tomllib.loads(f"{key} = 0")
    except tomllib.TOMLDecodeError:
        data = {}
    parts: list[str] = []
    while isinstance(data, dict) and len(data) == 1:
        ((name, data),) = data.items()
        parts.append(name)
    known = set(_keys(Settings))
    if (pattern := _pattern_of(parts, known)) not in known:
        written = ".".join(parts) or key
        near = get_close_matches(pattern, known, n=1)
        near = near or [one for one in known if one.rpartition(".")[2] == written][:1]
        hint = f"; did you mean {near[0]!r}?" if near else "; `retinue config --all` lists them."
        raise ConfigError(f"There is no setting {written!r}{hint}")
    return tuple(parts)


def set_value(path: Path, key: Sequence[str], words: Sequence[str]) -> Any:
    """Set a value, and return it. It is written as in TOML; quotes around a text may be left out.

    Several words are a list. Raises ConfigError if the file cannot be read, or the setting does not
    take the value; the file stays as it is then.
    """
    before, problem = read_text(path), None
    for value in _readings(words):
        text = _edited(before, key, value)
        try:
            parse_settings(text, path)
        except ConfigError as error:
            problem = problem or error
            continue
        _write(path, text)
        return value
    raise ConfigError(
        f"{'.'.join(key)} cannot be {' '.join(words)!r}: {_reason(str(problem), key)}"
    ) from problem


def unset_value(path: Path, key: Sequence[str]) -> None:
    """Remove a value, and the tables that are empty then. ConfigError if it is not set."""
    import tomlkit

    document = tomlkit.parse(read_text(path))
    tables: list[MutableMapping[str, Any]] = [document]
    for name in key[:-1]:
        tables.append(tables[-1].get(name) or {})
    if key[-1] not in tables[-1]:
        raise ConfigError(f"{'.'.join(key)} is not set in {path}.")
    for table, name in zip(reversed(tables), reversed(key), strict=True):
        del table[name]
        if table:
            break
    text = tomlkit.dumps(document)
    parse_settings(text, path)
    _write(path, text)


def _reason(problem: str, key: Sequence[str]) -> str:
    """A problem without the place in the file, and with types as people call them."""
    reason = problem.partition(f"key {'.'.join(key)}: ")[2] or problem
    if expected := re.match(r"expected `(\w+)", reason):
        return f"it is {_TYPES.get(expected[1], expected[1])}."
    return reason


def _readings(words: Sequence[str]) -> Iterator[Any]:
    """The values that words of a command line may mean: in TOML, as a text, as a list of texts."""
    if len(words) == 1:
        with suppress(tomllib.TOMLDecodeError):
            yield tomllib.loads(f"value = {words[0]}")["value"]
        yield words[0]
    yield list(words)


def _edited(text: str, key: Sequence[str], value: Any) -> str:
    if len(key) == 1 and (inserted := _inserted(text, key[0], value)):
        return inserted
    import tomlkit  # Loads for 30 ms; nothing else needs it.

    document = tomlkit.parse(text)
    table: Any = document
    for name in key[:-1]:
        if not isinstance(table.get(name), MutableMapping):
            table[name] = tomlkit.table()
        table = table[name]
    table[key[-1]] = value
    return tomlkit.dumps(document)


def _inserted(text: str, name: str, value: Any) -> str | None:
    """`text` with a new value above the first table and its comment; None if that is impossible.

    tomlkit would put the value between the table and its comment.
    """
    lines = text.splitlines(keepends=True)
    place = next((n for n, line in enumerate(lines) if line.startswith("[")), 0)
    while place and lines[place - 1].startswith("#"):
        place -= 1
    if not place or name in tomllib.loads(text):
        return None
    import tomlkit

    line = tomlkit.dumps({name: value})
    while place > 1 and not lines[place - 1].strip():
        place -= 1
    found = "".join([*lines[:place], line, *lines[place:]])
    try:
        is_right = tomllib.loads(found) == tomllib.loads(text) | {name: value}
    except tomllib.TOMLDecodeError:
        return None  # The line was inside of a longer value.
    return found if is_right else None


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}.") from error


def _keys(kind: Any, prefix: str = "") -> Iterator[str]:
    """The keys of a struct, with those of the structs in it."""
    for field in msgspec.structs.fields(kind):
        name = f"{prefix}{field.encode_name}"
        yield name
        for inner in _members(field.type):
            if _is_struct(inner):
                yield from _keys(inner, f"{name}.")
        if get_origin(field.type) is dict:
            yield f"{name}.{_ANY_NAME}"
            for inner in get_args(field.type):
                if _is_struct(inner):
                    yield from _keys(inner, f"{name}.{_ANY_NAME}.")


def _members(kind: Any) -> tuple[Any, ...]:
    """The types of a union; of another type, itself."""
    is_union = type(kind).__name__ in ("UnionType", "_UnionGenericAlias")
    return get_args(kind) if is_union else (kind,)


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _pattern_of(parts: Sequence[str], known: set[str]) -> str:
    """A key with NAME instead of the names that the user chose."""
    found = ""
    for part in parts:
        named = f"{found}.{_ANY_NAME}" in known
        found = f"{found}.{_ANY_NAME if named else part}" if found else part
    return found
