"""Front matter: the fields above a Markdown text, read even where they are not valid YAML.

One in thirty of the files that people have is not valid YAML, nearly always because of a colon in
a description. Each still has its keys at line starts. So a front matter that YAML rejects is parsed
field by field, and a field that YAML rejects is taken as plain text.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from itertools import accumulate
from textwrap import dedent
from typing import Any, TypeAlias

import msgspec

Value: TypeAlias = "str | list[Value] | dict[str, Value]"

# PyYAML needs half a millisecond for a thousand characters; front matter is never this long.
MAX_YAML_CHARS = 64 * 1024
# PyYAML scans all open brackets at each bracket: a few hundred take seconds.
MAX_YAML_DEPTH = 50
MAX_TITLE_LINES = 10

_FENCE = re.compile(r"-{3,}\s*|\.{3}\s*")
_KEY = re.compile(r"([A-Za-z_][\w-]*)[ \t]*:(\s|$)?(.*)", re.DOTALL)
_TITLE = re.compile(r"#|<!--.*-->\s*$")
_TOOL = re.compile(r"[^\s,()\[\]]+(?:\([^()]*\))?")  # Read, Bash(git log:*)
_BLOCK = re.compile(r"[|>][-+0-9]*\s*$")


class FrontMatter(msgspec.Struct, frozen=True):
    """Fields and body of a file. Every value is text: none becomes a date, a number or a bool.

    `found` is False for a file without front matter. `problems` are the errors that were skipped.
    """

    fields: dict[str, Value]
    body: str
    found: bool = True
    problems: tuple[str, ...] = ()


def parse_front_matter(
    text: str, *, known: Collection[str] = (), prose: Collection[str] = ("description",)
) -> FrontMatter:
    """Split `text` into fields and body. Never raises.

    `known` are normalized keys that count even without a space after the colon. Only they end a
    field of `prose`, since sentences have colons too.
    """
    text = text.lstrip("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    lines = text.split("\n")
    found = _find_fences(lines, known)
    if found is None:
        return FrontMatter({}, text.strip(), found=False)
    start, end, after, problems = found
    fields, more = _parse_fields(lines[start:end], known, prose)
    # A title above the fields is part of the body.
    above = [line for line in lines[: max(0, start - 1)] if line.strip()]
    body = "\n".join([*above, *lines[after:]]).strip()
    return FrontMatter(fields, body, problems=(*problems, *more))


def normalize_key(key: str) -> str:
    """One spelling for maxTurns, max_turns and max-turns."""
    return key.replace("_", "").replace("-", "").casefold()


def as_text(value: Value | None) -> str | None:
    """A scalar as text; None if it is missing, empty, a list or a mapping."""
    if not isinstance(value, str):
        return None
    text = value.strip()
    return None if text in ("", "~") or text.casefold() == "null" else text


def as_prose(value: Value | None) -> str:
    """`value` as one text. YAML parses some sentences as lists or mappings: join them again."""
    if isinstance(value, dict):
        return "\n".join(f"{k}: {v}" for k, v in value.items() if isinstance(v, str))
    if isinstance(value, list):
        return "\n".join(v for v in value if isinstance(v, str))
    return as_text(value) or ""


def as_list(value: Value | None) -> list[str]:
    """Items of a list or of a text with commas. Commas inside parentheses do not separate."""
    if isinstance(value, dict):
        return [key for key in value if key.strip()]
    parts: list[Value] = value if isinstance(value, list) else [value or ""]
    found: list[str] = []
    for part in parts:
        if isinstance(part, dict):
            found += part  # `- Bash(git log: *)` is a mapping to YAML.
        elif isinstance(part, str):
            found += _split(part.strip().removeprefix("[").removesuffix("]"))
    return [item for item in found if item]


def as_tools(value: Value | None) -> list[str]:
    """Names of tools, some with patterns. Skills separate them by spaces, commands by commas."""
    return _TOOL.findall(value) if isinstance(value, str) else as_list(value)


def as_bool(value: Value | None) -> bool | None:
    word = (as_text(value) or "").casefold()
    if word in ("true", "yes", "on", "1"):
        return True
    return False if word in ("false", "no", "off", "0") else None


def as_number(value: Value | None) -> float | None:
    text = (as_text(value) or "").replace("_", "")
    # Few digits: longer texts are never limits, and int() refuses the longest.
    return float(text) if re.fullmatch(r"[+-]?\d{1,12}(\.\d{1,12})?", text, re.ASCII) else None


def _find_fences(
    lines: list[str], known: Collection[str]
) -> tuple[int, int, int, tuple[str, ...]] | None:
    """Lines where the fields start and end and where the body starts, and the problems."""
    first = _first_line(lines)
    if first is None:
        return None
    if not _FENCE.fullmatch(lines[first]):
        closing = next((i for i, line in enumerate(lines) if _FENCE.fullmatch(line)), None)
        if closing is None or _parse_key(lines[first], known, strict=True) is None:
            return None
        return first, closing, closing + 1, ("the front matter has no opening ---",)
    start = first + 1
    closing = next((i for i in range(start, len(lines)) if _FENCE.fullmatch(lines[i])), None)
    if closing is not None:
        inside = lines[start:closing]
        if any(_parse_key(line.strip(), known) for line in inside):
            return start, closing, closing + 1, ()
        return (start, closing, closing + 1, ()) if not any(map(str.strip, inside)) else None
    opening = next((i for i in range(start, len(lines)) if lines[i].strip()), None)
    if opening is None or _parse_key(lines[opening], known, strict=True) is None:
        return None
    end = _unclosed_end(lines, opening, known)
    return start, end, end, ("the front matter has no closing ---",)


def _first_line(lines: list[str]) -> int | None:
    """The first line that is not blank; or a fence below a title, if keys follow the fence."""
    filled = (i for i, line in enumerate(lines) if line.strip())
    first = next(filled, None)
    if first is None or not _TITLE.match(lines[first]):
        return first
    for i in [first, *(i for i, _ in zip(filled, range(MAX_TITLE_LINES), strict=False))]:
        if _FENCE.fullmatch(lines[i]):
            return i if i + 1 < len(lines) and _KEY.match(lines[i + 1]) else first
        if not _TITLE.match(lines[i]):
            break
    return first


def _unclosed_end(lines: list[str], opening: int, known: Collection[str]) -> int:
    """Without a closing fence, fields end at a heading or at a blank line that no key follows."""
    for i in range(opening, len(lines)):
        if lines[i].startswith("#"):
            return i
        if not lines[i].strip():
            following = next((line for line in lines[i:] if line.strip()), "")
            if _parse_key(following, known, strict=True) is None:
                return i
    return len(lines)


def _parse_key(
    line: str, known: Collection[str], *, strict: bool = False
) -> tuple[str, str] | None:
    """Key at the start of `line`, and the rest; if `strict`, only a known key."""
    found = _KEY.match(line)
    if found is None:
        return None
    key, spaced, rest = found[1], found[2] is not None, found[3]
    if normalize_key(key) in known or (spaced and not strict):
        return key, rest.strip()
    return None


def _parse_fields(
    lines: list[str], known: Collection[str], prose: Collection[str]
) -> tuple[dict[str, Value], tuple[str, ...]]:
    text = "\n".join(lines)
    try:
        value = _load_yaml(text)
    except Exception as error:  # PyYAML raises errors of many types for malformed text.
        problem = f"not valid YAML ({_reason(error)}); read line by line"
    else:
        if isinstance(value, dict):
            return {str(key): field for key, field in value.items()}, ()
        if value is None:
            return {}, ()
        problem = "the front matter is not a mapping; read line by line"
    chunks = _chunks(dedent(text).split("\n"), known, prose)
    # The last of two equal keys counts, as in most parsers.
    return {key: _parse_chunk(chunk) for key, chunk in chunks}, (problem,)


def _chunks(
    lines: Iterable[str], known: Collection[str], prose: Collection[str]
) -> Iterator[tuple[str, list[str]]]:
    """Each key with its lines: the rest of the key's line, then the lines that follow it."""
    key, chunk = "", [""]
    for line in lines:
        in_prose = normalize_key(key) in prose
        found = _parse_key(line, known, strict=in_prose)
        # Sentences start with a capital letter, keys almost never do.
        if found is not None and not (in_prose and found[0][0].isupper()):
            if key:
                yield key, chunk
            key, chunk = found[0], [found[1]]
        elif not line.startswith("#"):
            chunk.append(line)
    if key:
        yield key, chunk


def _parse_chunk(chunk: list[str]) -> Value:
    first, rest = chunk[0], [line.expandtabs(4) for line in chunk[1:]]
    while rest and not rest[-1].strip():
        rest.pop()
    try:
        value = _load_yaml("\n".join([f"field: {first}", *rest]))
    except Exception:
        value = None
    if isinstance(value, dict) and len(value) == 1 and "field" in value:
        field: Value = value["field"]
        return field
    return _as_written(first, rest)


def _as_written(first: str, rest: list[str]) -> Value:
    """A field as plain text or list, without the rules of YAML."""
    filled = [line.strip() for line in rest if line.strip()]
    if not first and filled and all(line.startswith("-") for line in filled):
        return [_unquote(line[1:].strip()) for line in filled]
    if first.startswith("["):
        return list(_split(" ".join([first, *filled]).strip("[] ")))
    if _BLOCK.match(first):
        return dedent("\n".join(rest)).strip()
    return _unquote("\n".join([first, *(line.strip() for line in rest)]).strip())


def _split(text: str) -> Iterator[str]:
    depth, part = 0, ""
    for letter in text:
        depth = max(0, depth + (letter in "({") - (letter in ")}"))
        if letter == "," and not depth:
            yield _unquote(part.strip())
            part = ""
        else:
            part += letter
    if part.strip():
        yield _unquote(part.strip())


def _unquote(text: str) -> str:
    """Remove the quotes around `text`, or a single unbalanced one."""
    for quote in "\"'":
        if len(text) > 1 and text[0] == text[-1] == quote:
            return text[1:-1].strip()
        if text.startswith(quote) and text.count(quote) == 1:
            return text[1:].strip()
    return text


def _load_yaml(text: str) -> Any:
    """Parse YAML into text, lists and mappings. May raise any exception.

    Tags are ignored, and no scalar is converted.
    """
    import yaml  # Costs 20 ms, and most projects have no agent files.

    if len(text) > MAX_YAML_CHARS:
        raise ValueError(f"more than {MAX_YAML_CHARS:,} characters")
    nesting = accumulate((letter in "[{") - (letter in "]}") for letter in text)
    if max(nesting, default=0) > MAX_YAML_DEPTH:
        raise ValueError(f"more than {MAX_YAML_DEPTH} brackets in each other")
    # Not the C parser: it recurses without a limit, and a file of brackets would crash the process.
    loader = yaml.BaseLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        if isinstance(node, yaml.MappingNode):
            keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
            if len(set(keys)) < len(keys):
                twice = next(key for key in keys if keys.count(key) > 1)
                raise ValueError(f"{twice!r} is given twice; the last one counts")
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _reason(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    what = getattr(error, "problem", None) or (str(error) if isinstance(error, ValueError) else "")
    # The opening fence is line 1 of the file, and PyYAML counts from 0 below it.
    line = f"line {mark.line + 2}: " if mark is not None else ""
    return line + (what or type(error).__name__)
