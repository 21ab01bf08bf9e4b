"""Repairs the arguments of one call so that they fit its tool."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from retinue.domain.tool_aliases import IMPLIED_ARGUMENTS, normalize_name
from retinue.models.repair.aliases import ARGUMENT_FIELDS, FIELD_ALIASES, NAME_FIELDS, to_snake_case
from retinue.models.repair.lenient_json import (
    Truncation,
    parse_lenient,
    parse_strict,
    truncation_of,
)
from retinue.models.repair.tool_index import IndexedTool

# Fields in which models wrap the arguments once more, and fields that may stand beside them.
_WRAPPERS = (*ARGUMENT_FIELDS, "properties")
_BESIDE_WRAPPERS = frozenset({*NAME_FIELDS, "function", "type", "id"})
# A text with these is broken JSON rather than the value of the one field.
_NOT_BARE = re.compile(r'[{}"\n]|^\s*\w+\s*[:=]\s')
_encode = msgspec.json.Encoder().encode


def repair_arguments(
    text: str, tool: IndexedTool, *, cut: bool = False
) -> tuple[str, tuple[str, ...]]:
    """Turn `text` into arguments that the tool accepts, if there is no doubt about them.

    Returns the arguments, or `text` where it is not repaired, and notes on what was done.

    `cut` says that the server stopped the model, so that an incomplete end is not completed.
    Nothing is invented: arguments that lack a required field stay as they are, and the tool's
    answer says what to send.
    """
    given = parse_strict(text)
    # Half a file written, or half a command run, is worse than an error: only for tools that
    # read, the end of a string may be guessed.
    tolerance = (
        Truncation.NONE if cut else Truncation.STRING if tool.reads_only else Truncation.BRACKETS
    )
    for value, notes in _candidates(text, tool, tolerance):
        fitted, renamed = _fit_to_tool(value, tool)
        if not tool.required <= fitted.keys():
            continue
        if given is not None and fitted is value and not notes:
            return text, ()
        encoded = _encode_or_none(fitted)
        if encoded is not None:
            return encoded, tuple(f"{tool.name}: {note}" for note in (*notes, *renamed))
    if given is None and (at := truncation_of(text)) is not Truncation.NONE:
        where = " inside a string" if at is Truncation.STRING else ""
        return text, (f"{tool.name}: arguments were cut off{where}; left as they are",)
    return text, ()


def with_implied(arguments: str, tool: IndexedTool, name: str) -> str:
    """`arguments` with what the name of the call says: `git_log` is `git_read` of the log."""
    implied = IMPLIED_ARGUMENTS.get(normalize_name(name), {})
    given = parse_strict(arguments.strip() or "{}")
    if not implied.keys() <= tool.fields or given is None or not isinstance(given.value, dict):
        return arguments
    return _encode({**implied, **given.value}).decode() if implied else arguments


def _candidates(
    text: str, tool: IndexedTool, tolerance: Truncation
) -> Iterator[tuple[dict[str, Any], tuple[str, ...]]]:
    """The objects that `text` may mean, the likeliest first, each with notes."""
    text = text.strip()
    if not text:
        yield {}, ("arguments were empty",)
        return
    notes: tuple[str, ...] = ()
    found = parse_lenient(text, tolerance)
    value = found.value if found is not None else None
    if found is not None and found.defects:
        notes = (f"arguments were not JSON ({', '.join(found.defects)})",)
    while isinstance(value, str) and (inner := parse_lenient(value, tolerance)) is not None:
        value = inner.value
        notes = (*notes, "arguments were JSON inside a string")
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], dict):
        value = value[0]
        notes = (*notes, "arguments were in a list")
    if isinstance(value, dict):
        yield value, notes
    elif (given := parse_strict(text)) is not None and given.value is None:
        yield {}, ("arguments were null",)
    elif tool.sole_text_field not in (None, "task"):
        # Any broken text would make a task for a child, which costs far more than another try.
        field = tool.sole_text_field
        bare = text if given is None and tolerance else given and given.value
        if isinstance(bare, str) and not _NOT_BARE.search(bare):
            yield {field: bare}, (f"the bare text was taken as '{field}'",)


def _fit_to_tool(
    value: dict[str, Any], tool: IndexedTool
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Unwrap `value` and rename its fields. Returns the same object if nothing was wrong."""
    notes: tuple[str, ...] = ()
    while True:
        inner, unwrapped = _unwrap(value, tool)
        if unwrapped:
            value = inner
            notes = (*notes, unwrapped)
            continue
        renamed, more = _rename_fields(value, tool)
        if not more:
            return value, notes
        value = renamed
        notes = (*notes, *more)


def _unwrap(value: dict[str, Any], tool: IndexedTool) -> tuple[dict[str, Any], str]:
    for key in _WRAPPERS:
        if key not in value or key in tool.fields or tool.allows_extra_fields:
            continue
        others = value.keys() - {key}
        if others & tool.fields or not others <= _BESIDE_WRAPPERS:
            continue
        inner = value[key]
        if isinstance(inner, str):
            found = parse_strict(inner)
            inner = found.value if found is not None else None
        if isinstance(inner, dict):
            return inner, f"the arguments were wrapped in '{key}'"
    return value, ""


def _rename_fields(
    value: dict[str, Any], tool: IndexedTool
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Rename unknown fields to fields of the tool that are not given yet."""
    strange = [key for key in value if key not in tool.fields]
    if not strange or tool.allows_extra_fields:
        return value, ()
    by_name: dict[str, str] = {}
    for key in strange:
        by_name.setdefault(to_snake_case(key), key)
    new_names: dict[str, str] = {}
    free = [field for field in tool.field_order if field not in value]
    free.sort(key=lambda field: field not in tool.required)
    spellings: dict[str, tuple[str, ...]] = {field: (to_snake_case(field),) for field in free}
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


def _encode_or_none(value: dict[str, Any]) -> str | None:
    try:
        return _encode(value).decode()
    except (UnicodeEncodeError, RecursionError, TypeError):
        return None
