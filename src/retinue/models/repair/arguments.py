"""The arguments of one call, mended so that they fit the tool."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from retinue.models.repair.aliases import FIELD_ALIASES, snake
from retinue.models.repair.lenient_json import Ending, Leeway, ending, read, strict
from retinue.models.repair.tool_index import Shape

WRAPPERS = (
    "arguments",
    "parameters",
    "input",
    "args",
    "params",
    "kwargs",
    "properties",
    "tool_input",
    "action_input",
    "function_arguments",
)
"""Fields that hold the arguments, where a model has wrapped them once more."""

_BESIDE_WRAPPERS = frozenset(
    {"name", "tool", "tool_name", "function", "function_name", "type", "id", "action", "method"}
)
# A text with these is broken JSON rather than the value of the one field.
_NOT_BARE = re.compile(r'[{}"\n]|^\s*\w+\s*[:=]\s')
_encode = msgspec.json.Encoder().encode


class Mended(NamedTuple):
    """New arguments, or None to leave them as they are; and what there is to say about it."""

    arguments: str | None
    notes: tuple[str, ...] = ()


def mend(text: str, shape: Shape, *, cut: bool = False) -> Mended:
    """Arguments that the tool can take, if there is no doubt about them.

    `cut` says that the server stopped the model, so that what is not complete is not meant.
    Nothing is made up: arguments that lack a required field stay as they are, and the tool says
    what to send.
    """
    given = strict(text)
    # Half a file written, or half a command run, is worse than an error: only what reads may guess
    # where a string was meant to end.
    leeway = Leeway.NONE if cut else Leeway.STRINGS if shape.reads else Leeway.BRACKETS
    for value, notes in _readings(text, shape, leeway):
        fitted, renamed = _fitted(value, shape)
        if not shape.required <= fitted.keys():
            continue
        if given is not None and fitted is value and not notes:
            return Mended(None)
        encoded = _encoded(fitted)
        if encoded is not None:
            return Mended(encoded, tuple(f"{shape.name}: {note}" for note in (*notes, *renamed)))
    if given is None and (at := ending(text)) is not Ending.WHOLE:
        where = " inside a string" if at is Ending.IN_STRING else ""
        return Mended(None, (f"{shape.name}: arguments were cut off{where}; left as they are",))
    return Mended(None)


def _readings(
    text: str, shape: Shape, leeway: Leeway
) -> Iterator[tuple[dict[str, Any], tuple[str, ...]]]:
    """The objects that `text` may be meant to be, the likeliest first."""
    text = text.strip()
    if not text:
        yield {}, ("arguments were empty",)
        return
    notes: tuple[str, ...] = ()
    found = read(text, leeway)
    value = found.value if found is not None else None
    if found is not None and found.faults:
        notes = (f"arguments were not JSON ({', '.join(found.faults)})",)
    while isinstance(value, str) and (inner := read(value, leeway)) is not None:
        value = inner.value
        notes = (*notes, "arguments were JSON inside a string")
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], dict):
        value = value[0]
        notes = (*notes, "arguments were in a list")
    if isinstance(value, dict):
        yield value, notes
    elif (given := strict(text)) is not None and given.value is None:
        yield {}, ("arguments were null",)
    elif shape.only_text is not None:
        field = shape.only_text
        bare = text if given is None and leeway else given and given.value
        if isinstance(bare, str) and not _NOT_BARE.search(bare):
            yield {field: bare}, (f"the bare text was taken as '{field}'",)


def _fitted(value: dict[str, Any], shape: Shape) -> tuple[dict[str, Any], tuple[str, ...]]:
    """`value` with its wrapping off and its fields renamed; the same object if all was well."""
    notes: tuple[str, ...] = ()
    while True:
        inner, unwrapped = _unwrapped(value, shape)
        if unwrapped:
            value = inner
            notes = (*notes, unwrapped)
            continue
        renamed, more = _renamed(value, shape)
        if not more:
            return value, notes
        value = renamed
        notes = (*notes, *more)


def _unwrapped(value: dict[str, Any], shape: Shape) -> tuple[dict[str, Any], str]:
    for key in WRAPPERS:
        if key not in value or key in shape.fields or shape.any_field:
            continue
        others = value.keys() - {key}
        if others & shape.fields or not others <= _BESIDE_WRAPPERS:
            continue
        inner = value[key]
        if isinstance(inner, str):
            found = strict(inner)
            inner = found.value if found is not None else None
        if isinstance(inner, dict):
            return inner, f"the arguments were wrapped in '{key}'"
    return value, ""


def _renamed(value: dict[str, Any], shape: Shape) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Fields under other names, given the ones that the tool has and that are not taken."""
    strange = [key for key in value if key not in shape.fields]
    if not strange or shape.any_field:
        return value, ()
    by_name: dict[str, str] = {}
    for key in strange:
        by_name.setdefault(snake(key), key)
    new_names: dict[str, str] = {}
    free = [field for field in shape.order if field not in value]
    free.sort(key=lambda field: field not in shape.required)
    spellings: dict[str, tuple[str, ...]] = {field: (snake(field),) for field in free}
    for names in (spellings, FIELD_ALIASES):
        for field in free:
            if field in new_names.values():
                continue
            others = (by_name[n] for n in names.get(field, ()) if n in by_name)
            meant = next((other for other in others if other not in new_names), None)
            if meant is not None:
                new_names[meant] = field
    if not new_names:
        return value, ()
    renamed = {new_names.get(key, key): item for key, item in value.items()}
    return renamed, tuple(f"'{old}' was taken as '{new}'" for old, new in new_names.items())


def _encoded(value: dict[str, Any]) -> str | None:
    try:
        return _encode(value).decode()
    except (UnicodeEncodeError, RecursionError, TypeError):
        return None
