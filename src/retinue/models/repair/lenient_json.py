"""Parses JSON as weak models write it.

Text with only one possible meaning is repaired here. The rest is left to the library `json_repair`,
where it is installed, and its result is used only if it loses nothing and adds nothing.

The library alone does not do: it always returns something. Of `{"a": "b"}{"a": "c"}` it takes the
second object and of `{"cmd": "a" "b"}` the first string, it cuts texts in triple quotes, and it
completes a command that was cut off, which must never be run. It also needs 600 ms for 128 kB with
unescaped quotes, where this module needs 17.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from enum import IntEnum, StrEnum
from typing import Any, NamedTuple

import msgspec

from retinue.extras import is_importable

# The library takes 20 ms for so much text, and more than its share for longer ones.
MAX_LIBRARY_CHARS = 4_000
MAX_NESTING = 100

# Quantifiers are possessive (`++`) where a broken text would make them try every division of it.
_FENCE = re.compile(r"(?:```+|~~~+)[ \t]*+[\w-]*+")
_KEY_FIRST = re.compile(r"(?:\"[\w -]+\"|'[\w -]+')\s*:|[A-Za-z_]\w*\s*:(?!//|\s*[{\[])")
_OVER_ESCAPED = re.compile(r"[{\[]\s*\\+\"")
_DOUBLE = r'"(?:[^"\\]++|\\.)*+"'
_SINGLE = r"'(?:[^'\\]++|\\.)*+'"
_COMMENT = r"//[^\n]*|/\*.*?\*/|\#[^\n]*"
_TOKEN = re.compile(
    rf"""
      (?P<triple>\"\"\"[^\\]*?\"\"\"|'''[^\\]*?''')
    | (?P<double>{_DOUBLE})
    | (?P<single>{_SINGLE})
    | (?P<curly>“[^“”\\]*”|‘[^‘’\\]*’)
    | (?P<tick>`[^`\\]*`)
    | (?P<comment>{_COMMENT})
    | (?P<comma>,(?=\s*(?:(?:{_COMMENT})\s*)*[}}\]]))
    | (?<![\w$])(?P<key>[A-Za-z_$][\w$]*+)(?=\s*:)
    | (?P<literal>\b(?:True|False|None|undefined)\b)
    """,
    re.X | re.S,
)
_IN_STRING = re.compile(r"""\\(?:(["\\/bfnrt]|u[0-9a-fA-F]{4})|(.))|\"""", re.S)
_IN_PYTHON = re.compile(r"(\\\\)|\\(?:x([0-9a-fA-F]{2})|U(000[0-9a-fA-F]{5}|0010[0-9a-fA-F]{4}))")
_LITERALS = {"True": "true", "False": "false", "None": "null", "undefined": "null"}
_DEFECTS = {
    "triple": "triple quotes",
    "single": "single quotes",
    "curly": "curly quotes",
    "tick": "backticks for quotes",
    "comment": "a comment",
    "comma": "a trailing comma",
    "key": "a key without quotes",
    "literal": "Python literals",
    "escape": "an invalid escape",
}
_STRINGS = re.compile(rf"{_DOUBLE}|{_SINGLE}|“[^“”]*”", re.S)
_DOUBLES = re.compile(_DOUBLE, re.S)
_KEY = re.compile(r"[\w -]+")
# Quotes that the library does not know, and would look for others inside of; and what it may
# take for an escape.
_NOT_GUESSED = re.compile(r"\"\"\"|'''|[:,\[]\s*`|\\[xU][0-9a-fA-F]")
_WORDS = re.compile(r"[^\W_]+")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.S)
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f"}
_PAIRS = {"{": "}", "[": "]"}

SURROUNDING_TEXT = frozenset({"text before it", "text after it"})
"""Defects of a text that is more than JSON."""

_loose = json.JSONDecoder(strict=False, parse_constant=lambda name: _refuse(name))


class Truncation(StrEnum):
    """Whether and where a text that should be JSON was cut off."""

    NONE = "none"
    IN_BRACKETS = "in brackets"
    """Brackets are not closed, but every string is."""
    IN_STRING = "in a string"


class Tolerance(IntEnum):
    """How much of a text may be missing."""

    NONE = 0
    """Nothing: an incomplete text is not parsed."""
    BRACKETS = 1
    """Closing brackets, if nothing else is missing."""
    STRINGS = 2
    """The end of a string; also, quotes may be guessed."""


class ParsedJson(NamedTuple):
    """A value, and the defects of its text; none if the text was JSON."""

    value: Any
    defects: tuple[str, ...] = ()


def parse_strict(text: str) -> ParsedJson | None:
    """Parse JSON. None if `text` is not JSON."""
    try:
        return ParsedJson(msgspec.json.decode(text))
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None


def parse_lenient(text: str, tolerance: Tolerance = Tolerance.NONE) -> ParsedJson | None:
    """Parse what `text` was meant to be, or return None if that is not certain enough."""
    found = parse_strict(text)
    if found is not None:
        return found
    if _nesting(text) > MAX_NESTING:
        return None
    core, defects = _extract_json(text, tolerance)
    if not core:
        return None
    for attempt in _attempts(core, tolerance):
        if attempt is not None:
            return ParsedJson(attempt.value, defects + attempt.defects)
    return None


def parse_at(text: str, at: int) -> tuple[Any, int] | None:
    """Parse the JSON value that begins at `at`. Returns it and its end; allows raw line breaks."""
    try:
        return _loose.raw_decode(text, at)
    except (ValueError, RecursionError):
        return None


def truncation_of(text: str) -> Truncation:
    """Where a text that should be JSON was cut off."""
    return _truncation_of(_extract_json(text, Tolerance.NONE)[0])


def _truncation_of(text: str) -> Truncation:
    # Apostrophes inside double-quoted strings are no quotes, so those strings go first.
    outside = _DOUBLES.sub("", text)
    if '"' in outside:
        return Truncation.IN_STRING
    outside = _STRINGS.sub("", text)
    if "'" in outside:
        return Truncation.IN_STRING
    return Truncation.IN_BRACKETS if _missing_brackets(outside) else Truncation.NONE


def _attempts(core: str, tolerance: Tolerance) -> Iterator[ParsedJson | None]:
    yield _parse_whole(core)
    tidy, defects = _normalize(core)
    yield _parse_whole(tidy, defects)
    match _truncation_of(core):
        case Truncation.NONE:
            yield _guess(core, exact=tolerance < Tolerance.STRINGS)
        case Truncation.IN_BRACKETS if tolerance is Tolerance.STRINGS or (
            tolerance is Tolerance.BRACKETS and _lacks_only_brackets(core, defects)
        ):
            closed = tidy.rstrip().rstrip(",") + _missing_brackets(_DOUBLES.sub("", tidy))
            yield _parse_whole(closed, (*defects, "a missing closing bracket"))
        case Truncation.IN_STRING if tolerance is Tolerance.STRINGS:
            # Before anything is normalized: what looks like a comment may be part of the string.
            closed = core.rstrip("\\") + '"'
            tidy, defects = _normalize(closed + _missing_brackets(_DOUBLES.sub("", closed)))
            yield _parse_whole(tidy, (*defects, "a missing closing quote"))
        case _:
            pass


def _lacks_only_brackets(core: str, defects: tuple[str, ...]) -> bool:
    """Whether a text whose brackets are open lacks nothing but them.

    Not if anything else is wrong with it, since two faults at once have many causes; nor after a
    comma; nor after two quotes, which may be the first of three.
    """
    if defects or core.rstrip().endswith((",", '""')):
        return False
    return parse_strict(core + _missing_brackets(_DOUBLES.sub("", core))) is not None


def _extract_json(text: str, tolerance: Tolerance) -> tuple[str, tuple[str, ...]]:
    """The part of `text` that should be JSON."""
    defects: list[str] = []
    core = text.strip().lstrip("\ufeff")
    if (fence := _FENCE.match(core)) is not None:
        core = core[fence.end() :].rstrip("`~ \t\r\n").lstrip()
        defects.append("a code fence")
    if _KEY_FIRST.match(core):
        core = "{" + core + ("}" if tolerance and not core.endswith("}") else "")
        defects.append("missing braces")
    start = min((at for at in (core.find("{"), core.find("[")) if at >= 0), default=-1)
    if start < 0:
        return "", ()
    if start > 0:
        core = core[start:]
        defects.append("text before it")
    if _OVER_ESCAPED.match(core):
        # Escaped as if it stood inside a string.
        inner = parse_strict(f'"{core}"')
        if inner is not None and isinstance(inner.value, str):
            core = inner.value
            defects.append("escaped quotes")
    return core, tuple(defects)


def _parse_whole(core: str, defects: tuple[str, ...] = ()) -> ParsedJson | None:
    """JSON with raw line breaks in strings, and with something harmless behind it."""
    found = parse_at(core, 0)
    if found is None:
        return None
    value, end = found
    rest = core[end:].strip()
    if not rest:
        return ParsedJson(value, defects if parse_strict(core) else (*defects, "raw line breaks"))
    if not rest.strip("}])`;, \t\r\n"):
        return ParsedJson(value, (*defects, "something after it"))
    again = parse_at(rest, 0)
    if again is not None and again[0] == value and not rest[again[1] :].strip():
        return ParsedJson(value, (*defects, "given twice"))
    if defects or any(mark in rest for mark in '{}[]"'):
        # A second value, or a quote in a string that was not escaped: what is meant is not known.
        return None
    return ParsedJson(value, (*defects, "text after it"))


def _normalize(core: str) -> tuple[str, tuple[str, ...]]:
    """Turn other notations into JSON, outside of strings. Also returns their names."""
    met: dict[str, None] = {}

    def mend(token: re.Match[str]) -> str:
        kind, text = token.lastgroup, token[0]
        match kind:
            case "double":
                mended = '"' + _IN_STRING.sub(_escaped, text[1:-1]) + '"'
                # `\x1b` in double quotes may be a character or code that contains one: left alone.
                if mended == text or _IN_PYTHON.sub(_json_escape, text) != text:
                    return text
                kind = "escape"
            case "single":
                mended = _IN_PYTHON.sub(_json_escape, text)
                mended = '"' + _IN_STRING.sub(_escaped, mended[1:-1]) + '"'
            case "triple":
                mended = json.dumps(text[3:-3])
            case "curly" | "tick":
                mended = json.dumps(text[1:-1])
            case "comment" | "comma":
                mended = ""
            case "key":
                mended = f'"{text}"'
            case _:
                mended = _LITERALS[text]
        met[kind or ""] = None
        return mended

    tidy = _TOKEN.sub(mend, core)
    return tidy, tuple(_DEFECTS[kind] for kind in met)


def _escaped(found: re.Match[str]) -> str:
    if found[1]:
        return found[0]
    if not found[2]:
        return '\\"'
    # An apostrophe needs no escape in JSON; any other backslash was meant as one, as in `\d`.
    return "'" if found[2] == "'" else "\\" + found[0]


def _json_escape(found: re.Match[str]) -> str:
    """An escape that only Python has, as JSON writes it."""
    return found[1] or json.dumps(chr(int(found[2] or found[3], 16)))[1:-1]


def _missing_brackets(outside: str) -> str:
    """The closing brackets that a text without its strings lacks."""
    stack: list[str] = []
    for char in outside:
        if char in _PAIRS:
            stack.append(_PAIRS[char])
        elif stack and char == stack[-1]:
            stack.pop()
    return "".join(reversed(stack))


def _nesting(text: str) -> int:
    depth = deepest = 0
    for char in _DOUBLES.sub("", text):
        if char in "{[":
            depth += 1
            deepest = max(deepest, depth)
        elif char in "}]":
            depth -= 1
    return deepest


def _guess(core: str, *, exact: bool) -> ParsedJson | None:
    if (
        len(core) > MAX_LIBRARY_CHARS
        or _NOT_GUESSED.search(core)
        or not is_importable("json_repair")
    ):
        return None
    # Imported here: 25 ms that most runs never need.
    import json_repair

    try:
        value: Any = json_repair.loads(core, skip_json_loads=True)
    except Exception:
        # Whatever the library raises, the tool still tells the model that its JSON is broken.
        return None
    return (
        ParsedJson(value, ("quotes or commas",))
        if value and _is_faithful(value, core, exact)
        else None
    )


def _is_faithful(value: Any, source: str, exact: bool) -> bool:
    """Whether a guess has all words of its source, and each value unchanged.

    With `exact`, also all quotes and brackets of the source, unless it has no quotes at all.
    """
    plain = _ESCAPE.sub(_unescaped, source)
    leaves = list(_leaves(value))
    if _words(" ".join(str(leaf) for leaf, _ in leaves)) != _words(plain):
        return False
    if exact and _squeezed(_written(value), plain) != _squeezed(plain, plain):
        return False
    return all(
        _KEY.fullmatch(leaf) if is_key else _occurs_as_value(leaf, plain) for leaf, is_key in leaves
    )


def _written(value: Any) -> str:
    """The value as JSON, but with nothing escaped."""
    match value:
        case dict():
            return "{" + "".join(f'"{key}"{_written(item)}' for key, item in value.items()) + "}"
        case list():
            return "[" + "".join(map(_written, value)) + "]"
        case str():
            return f'"{value}"'
        case _:
            return "null" if value is None else str(value)


def _squeezed(text: str, source: str) -> str:
    """`text` without white space, commas and colons; and without quotes if `source` has none."""
    quotes = "" if any(quote in source for quote in "\"'“") else '"'
    return "".join(char for char in text if not (char.isspace() or char in ",:" + quotes)).lower()


def _words(text: str) -> list[str]:
    return ["null" if word == "none" else word for word in _WORDS.findall(text.lower())]


def _leaves(value: Any) -> Iterator[tuple[Any, bool]]:
    """All keys and values in order, each with whether it is a key."""
    match value:
        case dict() | list() if not value:
            yield str(value), False
        case dict():
            for key, item in value.items():
                yield key, True
                yield from _leaves(item)
        case list():
            for item in value:
                yield from _leaves(item)
        case None:
            yield "null", False
        case _:
            yield value, False


def _occurs_as_value(value: Any, source: str) -> bool:
    """Whether `value` is in the source as a value: after a colon, comma or bracket, in quotes."""
    text = re.escape(str(value))
    quoted = rf"\"{text}\"|'{text}'|“{text}”"
    form = quoted if value == "" else rf"{quoted}|{text}"
    # `True` for `true` is no change; a text has to be the same.
    flags = 0 if isinstance(value, str) else re.I
    place = rf"(?:[:,\[]|[\"'”]\s)\s*(?:{form})\s*[,}}\]\"'“]"
    return re.search(place, source, flags) is not None


def _unescaped(found: re.Match[str]) -> str:
    escape = found[1]
    if len(escape) == 5:
        return chr(int(escape[1:], 16))
    return _CONTROLS.get(escape, escape if escape in "\"'\\/" else found[0])


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
