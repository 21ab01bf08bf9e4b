"""Parses JSON as weak models write it.

Only text with one possible meaning is repaired. The library `json_repair` always returns something:
of `{"a": "b"}{"a": "c"}` it takes the second object and of `{"cmd": "a" "b"}` the first string, it
cuts texts in triple quotes, and it completes a command that was cut off, which must never be run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from enum import IntEnum
from typing import Any, NamedTuple

import msgspec

# Guessing takes time that grows with the square of the length.
MAX_GUESSED_CHARS = 4_000
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
# Separators that are missing: a colon behind a key, a comma before one.
_NO_SEPARATOR = re.compile(
    rf"(?P<key>[{{,]\s*{_DOUBLE})\s+(?=[\"\d{{\[tfn-])"
    rf"|(?P<value>{_DOUBLE}|[\w\]}}])\s+(?={_DOUBLE}\s*:)|{_DOUBLE}",
    re.S,
)
# A value without quotes that holds nothing but its own text.
_BARE_VALUE = re.compile(
    rf"{_DOUBLE}|(?<=:)(\s*)([^\s\"'{{}}\[\],:][^\"'{{}}\[\],:\n]*?)(?=\s*[,}}])", re.S
)
# A value with quotes inside. A quote before one of these characters would be its end.
_INNER_QUOTES = re.compile(
    r"(?<=:)(\s*\")((?:[^\"\\]++|\\.|\"(?!\s*[,:}\]\"]))*+)(?=\"\s*[,}])", re.S
)
_QUOTE = re.compile(r"(\\.)|\"", re.S)
_PAIRS = {"{": "}", "[": "]"}

SURROUNDING_TEXT = frozenset({"text before it", "text after it"})
"""Defects of a text that is more than JSON."""

_loose = json.JSONDecoder(strict=False, parse_constant=lambda name: _refuse(name))


class Truncation(IntEnum):
    """How much of the end of a text is missing, or may be missing."""

    NONE = 0
    BRACKETS = 1
    """Closing brackets; every string is complete."""
    STRING = 2
    """The end of a string. A caller that tolerates it also lets quotes be guessed."""


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


def parse_lenient(text: str, tolerance: Truncation = Truncation.NONE) -> ParsedJson | None:
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
    return _truncation_of(_extract_json(text, Truncation.NONE)[0])


def _truncation_of(text: str) -> Truncation:
    # Apostrophes inside double-quoted strings are no quotes, so those strings go first.
    outside = _DOUBLES.sub("", text)
    if '"' in outside:
        return Truncation.STRING
    outside = _STRINGS.sub("", text)
    if "'" in outside:
        return Truncation.STRING
    return Truncation.BRACKETS if _missing_brackets(outside) else Truncation.NONE


def _attempts(core: str, tolerance: Truncation) -> Iterator[ParsedJson | None]:
    yield _parse_whole(core)
    tidy, defects = _normalize(core)
    yield _parse_whole(tidy, defects)
    match _truncation_of(core):
        case Truncation.NONE if len(core) <= MAX_GUESSED_CHARS:
            escaped, defects_left = _normalize(_INNER_QUOTES.sub(_with_escapes, core))
            yield _parse_whole(escaped, (*defects_left, "quotes inside a string"))
            yield _parse_whole(
                _NO_SEPARATOR.sub(_with_separator, tidy), (*defects, "a missing comma or colon")
            )
            # Beside quoted texts, a value without quotes may be half of one; and what was taken for
            # a comment or a literal may be part of it.
            certain = tolerance is Truncation.STRING or '"' not in core
            if certain and {*defects} <= {_DEFECTS["key"]}:
                yield _parse_whole(
                    _BARE_VALUE.sub(_quoted, tidy), (*defects, "a value without quotes")
                )
        case Truncation.BRACKETS if tolerance is Truncation.STRING or (
            tolerance is Truncation.BRACKETS and _lacks_only_brackets(core, defects)
        ):
            closed = tidy.rstrip().rstrip(",") + _missing_brackets(_DOUBLES.sub("", tidy))
            yield _parse_whole(closed, (*defects, "a missing closing bracket"))
        case Truncation.STRING if tolerance is Truncation.STRING:
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


def _extract_json(text: str, tolerance: Truncation) -> tuple[str, tuple[str, ...]]:
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


def _with_escapes(found: re.Match[str]) -> str:
    return found[1] + _QUOTE.sub(lambda quote: quote[1] or '\\"', found[2])


def _with_separator(found: re.Match[str]) -> str:
    if found["key"]:
        return found["key"] + ": "
    return found["value"] + ", " if found["value"] else found[0]


def _quoted(found: re.Match[str]) -> str:
    value = found[2]
    if value is None or parse_strict(value) is not None:
        return found[0]
    return found[1] + json.dumps(value)


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
