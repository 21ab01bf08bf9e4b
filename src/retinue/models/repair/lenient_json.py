"""JSON as weak models write it.

What can only be meant in one way is mended here; the rest is left to the library `json_repair`,
where it is installed, whose guesses are taken only if they lose nothing and add nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from enum import IntEnum, StrEnum
from typing import Any, NamedTuple

import msgspec

from retinue.extras import is_importable

# The library takes time that grows with the square of the text, and worse.
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
_FAULTS = {
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

SURROUNDED = frozenset({"text before it", "text after it"})
"""The faults of a text that is more than JSON."""

_loose = json.JSONDecoder(strict=False, parse_constant=lambda name: _refuse(name))


class Ending(StrEnum):
    """How a text that should be JSON stops."""

    WHOLE = "whole"
    OPEN = "open"
    """Brackets are not closed, but every string is."""
    IN_STRING = "in a string"


class Leeway(IntEnum):
    """How much may be put down to a slip."""

    NONE = 0
    """Nothing that is missing: what is not complete is not meant."""
    BRACKETS = 1
    """Closing brackets, if nothing else is missing."""
    STRINGS = 2
    """The end of a string, and a guess at what quotes belong where."""


class Read(NamedTuple):
    """A value, and what was wrong with the text; nothing if it was JSON."""

    value: Any
    faults: tuple[str, ...] = ()


def strict(text: str) -> Read | None:
    """The value of a text that is JSON."""
    try:
        return Read(msgspec.json.decode(text))
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None


def read(text: str, leeway: Leeway = Leeway.NONE) -> Read | None:
    """The value that `text` was meant to be, or None if that is not certain enough."""
    found = strict(text)
    if found is not None:
        return found
    if _nesting(text) > MAX_NESTING:
        return None
    core, faults = _core(text, leeway)
    if not core:
        return None
    for attempt in _attempts(core, leeway):
        if attempt is not None:
            return Read(attempt.value, faults + attempt.faults)
    return None


def read_from(text: str, at: int) -> tuple[Any, int] | None:
    """The JSON value that begins at `at`, and where it ends. Raw line breaks are allowed."""
    try:
        return _loose.raw_decode(text, at)
    except (ValueError, RecursionError):
        return None


def ending(text: str) -> Ending:
    """Whether a text that should be JSON was cut off, and where."""
    return _ending(_core(text, Leeway.NONE)[0])


def _ending(text: str) -> Ending:
    # Apostrophes in prose and in double-quoted strings are no quotes, so those go first.
    outside = _DOUBLES.sub("", text)
    if '"' in outside:
        return Ending.IN_STRING
    outside = _STRINGS.sub("", text)
    if "'" in outside:
        return Ending.IN_STRING
    return Ending.OPEN if _missing(outside) else Ending.WHOLE


def _attempts(core: str, leeway: Leeway) -> Iterator[Read | None]:
    yield _whole(core)
    tidy, faults = _tidied(core)
    yield _whole(tidy, faults)
    match _ending(core):
        case Ending.WHOLE:
            yield _guessed(core, exactly=leeway < Leeway.STRINGS)
        case Ending.OPEN if leeway is Leeway.STRINGS or (
            leeway is Leeway.BRACKETS and _seems_done(core, faults)
        ):
            closed = tidy.rstrip().rstrip(",") + _missing(_DOUBLES.sub("", tidy))
            yield _whole(closed, (*faults, "a missing closing bracket"))
        case Ending.IN_STRING if leeway is Leeway.STRINGS:
            # Before anything is tidied: what looks like a comment may be part of the string.
            closed = core.rstrip("\\") + '"'
            tidy, faults = _tidied(closed + _missing(_DOUBLES.sub("", closed)))
            yield _whole(tidy, (*faults, "a missing closing quote"))
        case _:
            pass


def _seems_done(core: str, faults: tuple[str, ...]) -> bool:
    """Whether a text whose brackets are open lacks nothing but them.

    Not if anything else is wrong with it, since two faults at once have many causes; nor after a
    comma; nor after two quotes, which may be the first of three.
    """
    if faults or core.rstrip().endswith((",", '""')):
        return False
    return strict(core + _missing(_DOUBLES.sub("", core))) is not None


def _core(text: str, leeway: Leeway) -> tuple[str, tuple[str, ...]]:
    """The part of `text` that should be JSON."""
    faults: list[str] = []
    core = text.strip().lstrip("\ufeff")
    if (fence := _FENCE.match(core)) is not None:
        core = core[fence.end() :].rstrip("`~ \t\r\n").lstrip()
        faults.append("a code fence")
    if _KEY_FIRST.match(core):
        core = "{" + core + ("}" if leeway and not core.endswith("}") else "")
        faults.append("missing braces")
    start = min((at for at in (core.find("{"), core.find("[")) if at >= 0), default=-1)
    if start < 0:
        return "", ()
    if start > 0:
        core = core[start:]
        faults.append("text before it")
    if _OVER_ESCAPED.match(core):
        # Escaped as if it stood inside a string.
        inner = strict(f'"{core}"')
        if inner is not None and isinstance(inner.value, str):
            core = inner.value
            faults.append("escaped quotes")
    return core, tuple(faults)


def _whole(core: str, faults: tuple[str, ...] = ()) -> Read | None:
    """JSON with raw line breaks in strings, and with something harmless behind it."""
    found = read_from(core, 0)
    if found is None:
        return None
    value, end = found
    rest = core[end:].strip()
    if not rest:
        return Read(value, faults if strict(core) else (*faults, "raw line breaks"))
    if not rest.strip("}])`;, \t\r\n"):
        return Read(value, (*faults, "something after it"))
    again = read_from(rest, 0)
    if again is not None and again[0] == value and not rest[again[1] :].strip():
        return Read(value, (*faults, "given twice"))
    if faults or any(mark in rest for mark in '{}[]"'):
        # A second value, or a quote in a string that was not escaped: what is meant is not known.
        return None
    return Read(value, (*faults, "text after it"))


def _tidied(core: str) -> tuple[str, tuple[str, ...]]:
    """Other notations turned into JSON's, outside of strings; and which ones there were."""
    met: dict[str, None] = {}

    def mend(token: re.Match[str]) -> str:
        kind, text = token.lastgroup, token[0]
        match kind:
            case "double":
                mended = '"' + _IN_STRING.sub(_escaped, text[1:-1]) + '"'
                # `\x1b` between JSON's own quotes may be a character, or code that has one: left.
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
    return tidy, tuple(_FAULTS[kind] for kind in met)


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


def _missing(outside: str) -> str:
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


def _guessed(core: str, *, exactly: bool) -> Read | None:
    if (
        len(core) > MAX_GUESSED_CHARS
        or _NOT_GUESSED.search(core)
        or not is_importable("json_repair")
    ):
        return None
    # Imported here: 25 ms that most runs never need.
    import json_repair

    try:
        value: Any = json_repair.loads(core, skip_json_loads=True)
    except Exception:
        # Whatever is wrong with the library, the model can still be told that its JSON is.
        return None
    return Read(value, ("quotes or commas",)) if value and _faithful(value, core, exactly) else None


def _faithful(value: Any, source: str, exactly: bool) -> bool:
    """Whether a guess has the words of its source, all of them, and each value unchanged.

    `exactly` wants all quotes and brackets of the source too, or a source without any quotes.
    """
    plain = _ESCAPE.sub(_unescaped, source)
    leaves = list(_leaves(value))
    if _words(" ".join(str(leaf) for leaf, _ in leaves)) != _words(plain):
        return False
    if exactly and _squeezed(_written(value), plain) != _squeezed(plain, plain):
        return False
    return all(_KEY.fullmatch(leaf) if is_key else _stands(leaf, plain) for leaf, is_key in leaves)


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
    """What remains without white space, commas and colons; and without quotes if there are none."""
    quotes = "" if any(quote in source for quote in "\"'“") else '"'
    return "".join(char for char in text if not (char.isspace() or char in ",:" + quotes)).lower()


def _words(text: str) -> list[str]:
    return ["null" if word == "none" else word for word in _WORDS.findall(text.lower())]


def _leaves(value: Any) -> Iterator[tuple[Any, bool]]:
    """Keys and values in order, and whether each is a key."""
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


def _stands(value: Any, source: str) -> bool:
    """Whether it is there as a value: behind a colon or the like, with its quotes if it has any."""
    text = re.escape(str(value))
    quoted = rf"\"{text}\"|'{text}'|“{text}”"
    form = quoted if value == "" else rf"{quoted}|{text}"
    # True for true is no change; a text has to be the same.
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
