"""Parses calls that a model wrote as text: in JSON, in XML tags, in Python.

Each function takes a piece of text and returns the calls in it, or None if the text is in another
format. All calls must be of offered tools: one unknown tool makes the result None.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import msgspec

from retinue.models.repair.aliases import ARGUMENT_FIELDS, NAME_FIELDS
from retinue.models.repair.lenient_json import (
    SURROUNDING_TEXT,
    parse_at,
    parse_lenient,
    parse_strict,
)
from retinue.models.repair.tool_index import IndexedTool, ToolIndex


class TextCall(NamedTuple):
    """A call found in text. `arguments` are unparsed, like those of a native call."""

    name: str
    arguments: str


Calls = list[TextCall]

_BESIDE = frozenset({"id", "type", "index", "call_id", "tool_call_id", "jsonrpc"})
_LISTS = ("tool_calls", "tool_uses", "calls", "function_calls")

_NAME_IN_CUT = re.compile(
    r"""["'](?:name|tool_name|function_name|tool|function|action)["']\s*:\s*["']([\w.:/-]+)["']"""
)
_ARGUMENTS_IN_CUT = re.compile(
    r"""["'](?:arguments|parameters|input|args|params|tool_input|action_input)["']\s*:\s*(?=[{"'])"""
)
_NAME_THEN_OBJECT = re.compile(
    r"([\w.:/-]++)(?:\(\))?\s*+(?::\s*+)?(?:```+\w*+\s*+)?(\{.*)\Z", re.S
)
_ONLY_NAME = re.compile(r"[\w.:/-]+(?:\(\))?\Z")
_PREFIX = r"(?:[\w-]+:|[|｜]+[\w▁]+[|｜]+)?"
_FUNCTION_NAME = (
    rf"<{_PREFIX}(?:function\s*=\s*[\"']?([\w.:/-]++)[\"']?\s*"
    rf"|(?:invoke|function)\s+name\s*=\s*[\"']?([\w.:/-]++)[^<>]*+)>"
)
FUNCTION_OPENING = re.compile(_FUNCTION_NAME)
_FUNCTION_END = re.compile(rf"(</{_PREFIX}(?:function|invoke)>)|(?={_FUNCTION_NAME})")
_PARAMETER = re.compile(
    rf"<{_PREFIX}parameter(?:\s*=\s*[\"']?([\w.-]++)[\"']?\s*|\s+name\s*=\s*[\"']?([\w.-]++)[^<>]*+)>"
    rf"(.*?)(?:(</{_PREFIX}parameter>)|(?=<{_PREFIX}parameter[\s=])|(\Z))",
    re.S,
)
_ARG_PAIR = re.compile(
    r"(?:<arg_key>\s*)++([^<>]*+)(?:</arg_key>\s*)++(?:<arg_value>)?"
    r"(.*?)(?:(</arg_value>)|(?=<arg_key>)|(\Z))",
    re.S,
)
_TAGGED_NAME = re.compile(r"\s*<(name|tool_name|function)>\s*([\w.:/-]+)\s*</\1>\s*(.*)\Z", re.S)
_TAGGED_ARGUMENTS = re.compile(r"<(arguments|parameters|input|args)>(.*?)(?:</\1>\s*)?\Z", re.S)
_GEMMA = re.compile(r"\s*call:([\w.:/-]+?)\s*([{(])(.*)\Z", re.S)
_GEMMA_QUOTE = '<|"|>'
_SEPARATORS = " \t\r\n,;"
_VALUE_BEGIN = re.compile(f"[^{_SEPARATORS}]")
_encode = msgspec.json.Encoder().encode


def from_json(text: str, index: ToolIndex, *, exact: bool) -> Calls | None:
    """Calls as JSON: one object, a list, or several objects one after the other.

    `exact` wants the shape of a call and nothing else; without it, the mark around the text has
    said already that this is a call, and arguments may stand beside the name.
    """
    found = list(parse_values(text))
    if found and not text[found[-1][1] :].strip(_SEPARATORS):
        return from_values([value for value, _ in found], index, exact=exact)
    lenient = parse_lenient(text)
    if lenient is None or (exact and SURROUNDING_TEXT.intersection(lenient.defects)):
        return None
    return from_values([lenient.value], index, exact=exact)


def from_values(values: Iterable[Any], index: ToolIndex, *, exact: bool) -> Calls | None:
    calls: Calls = []
    for value in values:
        if isinstance(value, list):
            more = from_values(value, index, exact=exact)
        elif isinstance(value, dict):
            more = _from_object(value, index, exact)
        else:
            more = None
        if not more:
            return None
        calls += more
    return calls or None


def from_cut_json(text: str, index: ToolIndex) -> Calls | None:
    """One call whose JSON cannot be read: the name, and what there is of the arguments."""
    name = _NAME_IN_CUT.search(text)
    arguments = _ARGUMENTS_IN_CUT.search(text)
    if name is None or arguments is None or index.find(name[1]) is None:
        return None
    if parse_lenient(text) is not None:
        return None
    if text.lstrip("[ \n\t")[:1] != "{" or _NAME_IN_CUT.search(text, name.end(), arguments.start()):
        return None
    return [TextCall(name[1], text[arguments.end() :].strip())]


def from_name_and_object(text: str, index: ToolIndex, *, no_aliases: bool = False) -> Calls | None:
    """`read_file {"path": "a"}`, the name on the same line or on the one before."""
    found = _NAME_THEN_OBJECT.match(text.strip())
    if found is None or index.find(found[1], no_aliases=no_aliases) is None:
        return None
    return [TextCall(found[1], found[2].strip())]


def from_name(text: str, index: ToolIndex) -> Calls | None:
    """A name alone, of a tool without required fields."""
    name = text.strip()
    tool = index.find(name, no_aliases=True) if _ONLY_NAME.match(name) else None
    return None if tool is None or tool.required else [TextCall(name, "{}")]


def from_functions(text: str, index: ToolIndex, at: int = 0) -> tuple[Calls, int] | None:
    """`<function=…><parameter=…>`, or the same with `name="…"`; and where they end."""
    calls: Calls = []
    end = at
    while (opening := FUNCTION_OPENING.search(text, end)) is not None:
        if text[end : opening.start()].strip():
            break
        tool = index.find(opening[1] or opening[2])
        closing = _FUNCTION_END.search(text, opening.end())
        body = text[opening.end() : closing.start() if closing is not None else len(text)]
        arguments = _function_arguments(body, tool, cut=closing is None) if tool else None
        if tool is None or arguments is None:
            break
        calls.append(TextCall(tool.name, arguments))
        end = closing.end() if closing is not None else len(text)
    return (calls, end) if calls else None


def _function_arguments(body: str, tool: IndexedTool, *, cut: bool) -> str | None:
    if body.lstrip()[:1] == "{":
        return body.strip()
    pairs = [
        (found[1] or found[2], found[3], bool(found[4]), found[5] is not None)
        for found in _PARAMETER.finditer(body)
    ]
    if not pairs and body.strip():
        return None
    # A parameter that ends with the tag of its function is whole, even without its own end tag.
    return _object(tool, pairs, cut=cut)


def from_arg_pairs(text: str, index: ToolIndex) -> Calls | None:
    """`name<arg_key>k</arg_key><arg_value>v</arg_value>`."""
    name = text.split("<arg_key>", 1)[0].strip()
    tool = index.find(name)
    if tool is None or not _ONLY_NAME.match(name):
        return None
    pairs = [(p[1].strip(), p[2], bool(p[3]), p[4] is not None) for p in _ARG_PAIR.finditer(text)]
    return [TextCall(tool.name, _object(tool, pairs, cut=True))]


def from_tagged_name(text: str, index: ToolIndex) -> Calls | None:
    """`<name>read_file</name><arguments>{…}</arguments>`."""
    found = _TAGGED_NAME.match(text)
    if found is None or index.find(found[2]) is None:
        return None
    arguments = _TAGGED_ARGUMENTS.match(found[3])
    return None if arguments is None else [TextCall(found[2], arguments[2].strip())]


def from_gemma(text: str, index: ToolIndex) -> Calls | None:
    """`call:name{key:<|"|>value<|"|>}`, also with round brackets."""
    found = _GEMMA.match(text)
    if found is None or index.find(found[1]) is None:
        return None
    body = found[3].rstrip()
    if body.endswith(")") and found[2] == "(":
        body = body[:-1] + "}"
    parts = body.split(_GEMMA_QUOTE)
    # Every second part stood between two of its quotes.
    parts[1::2] = [_encode(part).decode() for part in parts[1::2]]
    if len(parts) % 2 == 0:
        parts[-1] = parts[-1].removesuffix('"')
    return [TextCall(found[1], "{" + "".join(parts))]


def from_python(text: str, index: ToolIndex) -> Calls | None:
    """`read_file(path="a")`, several of them, or a list of them; values must be literals."""
    try:
        with warnings.catch_warnings():
            # About escapes in strings that are not ours.
            warnings.simplefilter("ignore")
            tree = ast.parse(text.strip())
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    calls: Calls = []
    for statement in tree.body:
        value = getattr(statement, "value", None)
        for node in value.elts if isinstance(value, ast.List | ast.Tuple) else [value]:
            call = _from_node(node, index)
            if call is None:
                return None
            calls.append(call)
    return calls or None


def _from_node(node: Any, index: ToolIndex) -> TextCall | None:
    if not isinstance(node, ast.Call):
        return None
    name = ast.unparse(node.func)
    if name == "print" and len(node.args) == 1 and not node.keywords:
        return _from_node(node.args[0], index)
    tool = index.find(name.removesuffix(".call"))
    if tool is None or len(node.args) > len(tool.field_order):
        return None
    try:
        values = {
            field: ast.literal_eval(argument)
            for field, argument in zip(tool.field_order, node.args, strict=False)
        }
        for keyword in node.keywords:
            if keyword.arg is None:
                return None
            values[keyword.arg] = ast.literal_eval(keyword.value)
        return TextCall(tool.name, _encode(values).decode())
    except (ValueError, TypeError, RecursionError, OverflowError):
        return None


def parse_values(text: str, at: int = 0) -> Iterator[tuple[Any, int]]:
    """Parse JSON values from `at` on until something else follows. Each comes with its end."""
    while (begin := _VALUE_BEGIN.search(text, at)) is not None:
        found = parse_at(text, begin.start())
        if found is None:
            return
        yield found
        at = found[1]


def _from_object(value: dict[str, Any], index: ToolIndex, exact: bool) -> Calls | None:
    for key in _LISTS:
        if isinstance(value.get(key), list) and value.keys() <= {key, "content", "role"}:
            return from_values(value[key], index, exact=exact)
    function = value.get("function")
    if isinstance(function, dict) and value.keys() - _BESIDE == {"function"}:
        return _from_object(function, index, exact)
    names = [key for key in (*NAME_FIELDS, "function") if isinstance(value.get(key), str)]
    if not names:
        return None if exact else _from_single_key(value, index)
    name_key = names[0]
    tool = index.find(value[name_key])
    if tool is None:
        return None
    holders = [key for key in ARGUMENT_FIELDS if key in value and key != name_key]
    others = value.keys() - _BESIDE - {name_key, *holders[:1]}
    if holders and not others:
        return _call(tool, value[holders[0]])
    if exact or holders:
        return None
    rest = {key: item for key, item in value.items() if key in others}
    return None if not rest and tool.required else _call(tool, rest)


def _from_single_key(value: dict[str, Any], index: ToolIndex) -> Calls | None:
    """`{"read_file": {"path": "a"}}`."""
    if len(value) != 1:
        return None
    ((name, arguments),) = value.items()
    tool = index.find(name, no_aliases=True)
    if tool is None or not isinstance(arguments, dict):
        return None
    return _call(tool, arguments)


def _call(tool: IndexedTool, arguments: Any) -> Calls | None:
    if isinstance(arguments, str):
        return [TextCall(tool.name, arguments)]
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        return None
    try:
        return [TextCall(tool.name, _encode(arguments).decode())]
    except (UnicodeEncodeError, RecursionError):
        return None


def _object(tool: IndexedTool, pairs: list[tuple[str, str, bool, bool]], *, cut: bool) -> str:
    """Pairs of (field, text, closed by its own tag, at the very end) as a JSON object.

    If the text was `cut` off in the last of them, so is the JSON: then the value is not taken for a
    whole one.
    """
    values: dict[str, Any] = {}
    open_ended = False
    for field, text, closed, at_end in pairs:
        open_ended = cut and at_end and not closed
        # Between a value and its tags are line breaks.
        text = text.removeprefix("\n").removesuffix("\n") if closed else text.strip()
        values[field] = text if open_ended else _typed(tool, field, text)
    encoded = _encode(values).decode()
    return encoded.removesuffix("}").removesuffix('"') if open_ended else encoded


def _typed(tool: IndexedTool, field: str, text: str) -> Any:
    kind = tool.field_types.get(field)
    if kind is None or kind == "string":
        # An unknown field may be a text too: only fields of other types are decoded.
        return text
    found = parse_strict(text.strip())
    if found is None and text.strip() in ("True", "False"):
        return text.strip() == "True"
    return text if found is None else found.value
