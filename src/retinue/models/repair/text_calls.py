"""Finds calls in the text of a reply, and removes them from it.

Servers that do not know a model's call format pass its calls on as text. An example of a call must
not be taken for one: calls inside a code block or between backticks are ignored, unless the block
is the last thing in the message; and bare JSON counts only as the whole message.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from retinue.models.repair.call_formats import (
    FUNCTION_OPENING,
    Calls,
    TextCall,
    from_arg_pairs,
    from_cut_json,
    from_functions,
    from_gemma,
    from_json,
    from_name,
    from_name_and_object,
    from_python,
    from_tagged_name,
    from_values,
    parse_values,
)
from retinue.models.repair.lenient_json import parse_at
from retinue.models.repair.tool_index import ToolIndex


class FoundCalls(NamedTuple):
    """The calls, the text around them, and the name of their format."""

    calls: Calls
    rest: str
    format_name: str


class _Block(NamedTuple):
    calls: Calls
    end: int


_BAR = "[|｜]"
_LOW = "[▁_]"
_TAG = r"(?:tool_?calls?|tool_call_start|function_?calls?|tools?|tool_use)"
_PREFIX = r"(?:[\w-]+:|[|｜]\w+[|｜])?"
_OPEN = rf"<\|?{_PREFIX}{_TAG}\|?>"
_CLOSE = rf"</\|?{_PREFIX}{_TAG}\|?>|<\|/{_TAG}\|>|<{_TAG}\|>|<\|tool_call_end\|>"
_CONTROL = (
    r"<\|(?:im_end|eot_id|eom_id|end|call|return|endoftext|end_of_text)\|>|</s>"
    rf"|<{_BAR}end{_LOW}of{_LOW}sentence{_BAR}>"
)
_TAG_OPENING = re.compile(rf"(?:{_OPEN}\s*)+", re.I)
_TAG_END = re.compile(rf"{_CLOSE}|{_OPEN}", re.I)
_TOKEN_END = rf"<{_BAR}tool{_LOW}calls?{_LOW}(?:section{_LOW})?end{_BAR}>"
_BEHIND = re.compile(rf"(?:\s*(?:{_CLOSE}|{_CONTROL}|{_TOKEN_END}))*", re.I)
_TOKEN_OPENING = re.compile(
    rf"(?:<{_BAR}tool{_LOW}calls{_LOW}(?:section{_LOW})?begin{_BAR}>\s*)?"
    rf"<{_BAR}tool{_LOW}call{_LOW}begin{_BAR}>\s*"
)
_TOKEN_SEPARATOR = re.compile(
    rf"(?:<{_BAR}tool{_LOW}sep{_BAR}>|<{_BAR}tool{_LOW}call{_LOW}argument{_LOW}begin{_BAR}>)\s*"
)
_TOKEN_CLOSING = re.compile(rf"<{_BAR}tool{_LOW}call{_LOW}(?:end|begin){_BAR}>|\Z")
_MISTRAL_OPENING = re.compile(r"\[TOOL_CALLS?\]\s*")
_MISTRAL_NAME = re.compile(r"\s*([\w.:/-]+)\s*(?:\[CALL_ID\]\s*[\w-]*\s*)?(?:\[ARGS\]\s*)?(?=\{)")
_PYTHON_TAG = re.compile(r"<\|python_tag\|>\s*")
_PYTHON_TAG_END = re.compile(rf"{_CONTROL}|<\|python_tag\|>")
_HARMONY = re.compile(
    r"(?:<\|start\|>)?(?:assistant)?\s?(?:to=functions\.([\w.:-]+)\s*)?<\|channel\|>\s*"
    r"(analysis|commentary|final)(?:\s+to=functions\.([\w.:-]+))?"
    r"[^<]*(?:<\|constrain\|>[^<]*)?<\|message\|>"
    r"(.*?)(?=<\|(?:end|call|return|start|channel)\|>|\Z)(?:<\|(?:end|call|return)\|>)?",
    re.S,
)
_HARMONY_BARE = re.compile(
    r"(?:assistant)?(?:commentary\s*)?\bto=functions\.([\w.-]+)\s*(?:commentary\s*)?"
    r"(?:code|json)?\s*(?=\{)"
)
_REACT = re.compile(
    r"^[ \t]*\**Action\**:\**[ \t]*[`\"']?([\w.:/-]+)[`\"']?(?:\(\))?[ \t]*\n+"
    r"[ \t]*\**Action Input\**:\**[ \t]*",
    re.M,
)
_REACT_END = re.compile(r"\n[ \t]*\**(?:Observation|Thought|Action|Final Answer)\**:|\Z")
_OBSERVATION = re.compile(r"\s*\**Observation\**:")
_FENCE = re.compile(r"^[ \t]*(?:```+|~~~+)[ \t]*([\w-]*)", re.M)
_FENCE_KINDS = frozenset(
    {"", "json", "json5", "jsonc", "xml", "tool", "tool_call", "tool_calls", "tool_code"}
    | {"tool_use", "function_call", "toolcall", "text", "plaintext"}
)


def find_calls(text: str, index: ToolIndex) -> FoundCalls | None:
    """The calls of offered tools in `text`, or None if there are none."""
    for format_name, needle, reader in _READERS:
        found = reader(text, index) if needle in text else None
        if found is not None:
            return FoundCalls(found[0], found[1].strip(), format_name)
    return None


Reader = Callable[[str, ToolIndex], tuple[Calls, str] | None]
_BlockReader = Callable[[str, re.Match[str], ToolIndex], _Block | None]


def _blocks(opening: re.Pattern[str], block: _BlockReader) -> Reader:
    """A reader for formats whose calls begin with a marker, anywhere in the text."""

    def reader(text: str, index: ToolIndex) -> tuple[Calls, str] | None:
        calls: Calls = []
        kept: list[str] = []
        taken = at = looked = fences = 0
        while (mark := opening.search(text, at)) is not None:
            fences += len(_FENCE.findall(text, looked, mark.start()))
            looked = mark.start()
            found = None
            if fences % 2 == 0 and not _between_backticks(text, mark.start()):
                found = block(text, mark, index)
            if found is None or _in_a_sentence(text, mark.start(), found.end):
                at = mark.end()
                continue
            kept.append(text[taken : mark.start()])
            calls += found.calls
            taken = at = looked = found.end
        kept.append(text[taken:])
        return (calls, "".join(kept)) if calls else None

    return reader


def _between_backticks(text: str, at: int) -> bool:
    line = text.rfind("\n", 0, at) + 1
    return text.count("`", line, at) % 2 == 1


def _in_a_sentence(text: str, start: int, end: int) -> bool:
    """Whether a line has text before and after the call, so that it is only an example."""
    before = text[text.rfind("\n", 0, start) + 1 : start]
    line_end = text.find("\n", end)
    after = text[end : line_end if line_end >= 0 else len(text)]
    # Another mark is no text.
    return bool(before.strip() and after.strip() and after.lstrip()[0] not in "<[")


def _tagged(text: str, mark: re.Match[str], index: ToolIndex) -> _Block | None:
    # Decoded from here and not up to the next closing tag, which may stand inside a string.
    block = _json_block(text, mark.end(), index)
    if block is not None:
        return block
    closing = _TAG_END.search(text, mark.end())
    end = closing.start() if closing is not None else len(text)
    calls = _from_body(text[mark.end() : end], index)
    return _Block(calls, _behind(text, end)) if calls else None


def _json_block(text: str, at: int, index: ToolIndex) -> _Block | None:
    """Calls as JSON from `at` on, one or several."""
    calls: Calls = []
    for value, end in parse_values(text, at):
        more = from_values([value], index, exact=False)
        if more is None:
            break
        calls += more
        at = end
    return _Block(calls, _behind(text, at)) if calls else None


def _from_body(body: str, index: ToolIndex) -> Calls | None:
    """Parse any of the formats that are used between tags."""
    if FUNCTION_OPENING.search(body):
        found = from_functions(body, index)
        return found[0] if found is not None and not body[found[1] :].strip() else None
    if "<arg_key>" in body:
        return from_arg_pairs(body, index)
    return (
        from_json(body, index, exact=False)
        or from_gemma(body, index)
        or from_cut_json(body, index)
        or from_name_and_object(body, index)
        or from_name(body, index)
        or from_tagged_name(body, index)
        or from_python(body, index)
    )


def _function(text: str, mark: re.Match[str], index: ToolIndex) -> _Block | None:
    found = from_functions(text, index, mark.start())
    return None if found is None else _Block(found[0], _behind(text, found[1]))


def _token(text: str, mark: re.Match[str], index: ToolIndex) -> _Block | None:
    """DeepSeek's and Kimi's special tokens."""
    closing = _TOKEN_CLOSING.search(text, mark.end())
    assert closing is not None
    separator = _TOKEN_SEPARATOR.search(text, mark.end(), closing.start())
    if separator is None:
        return None
    head, body = text[mark.end() : separator.start()], text[separator.end() : closing.start()]
    if head.strip() == "function":
        # The older layout: the type, then the name and a code block.
        head, _, body = body.partition("\n")
    if index.find(head) is None:
        return None
    return _Block([TextCall(head, body.strip())], _behind(text, closing.start()))


def _mistral(text: str, mark: re.Match[str], index: ToolIndex) -> _Block | None:
    at = mark.end()
    calls: Calls = []
    while (name := _MISTRAL_NAME.match(text, at)) is not None and index.find(name[1]) is not None:
        whole = parse_at(text, name.end())
        end = whole[1] if whole is not None else _next_mistral(text, name.end())
        calls.append(TextCall(name[1], text[name.end() : end].strip()))
        at = end
    if calls:
        return _Block(calls, _behind(text, at))
    if parse_at(text, at) is not None:
        return _json_block(text, at, index)
    end = _next_mistral(text, at)
    found = from_json(text[at:end], index, exact=False) or from_cut_json(text[at:end], index)
    return _Block(found, end) if found else None


def _python_tag(text: str, mark: re.Match[str], index: ToolIndex) -> _Block | None:
    ends = _PYTHON_TAG_END.search(text, mark.end())
    body = text[mark.end() : ends.start() if ends is not None else len(text)]
    found = (
        from_json(body, index, exact=False)
        or from_python(body, index)
        or from_cut_json(body, index)
    )
    return _Block(found, _behind(text, mark.end() + len(body))) if found else None


def _react(text: str, mark: re.Match[str], index: ToolIndex) -> _Block | None:
    if index.find(mark[1]) is None:
        return None
    at = mark.end()
    whole = parse_at(text, at)
    closing = _REACT_END.search(text, at)
    end = whole[1] if whole is not None else closing.start() if closing is not None else len(text)
    call = TextCall(mark[1], text[at:end].strip())
    # Remove an observation that the model invented: the real one follows in the history.
    return _Block([call], len(text) if _OBSERVATION.match(text, end) else end)


def _bare_harmony(text: str, mark: re.Match[str], index: ToolIndex) -> _Block | None:
    if index.find(mark[1]) is None:
        return None
    whole = parse_at(text, mark.end())
    end = whole[1] if whole is not None else len(text)
    return _Block([TextCall(mark[1], text[mark.end() : end].strip())], _behind(text, end))


def _harmony(text: str, index: ToolIndex) -> tuple[Calls, str] | None:
    """Messages with channels: calls are commentary with a recipient, and analysis is thinking."""
    calls: Calls = []
    kept: list[str] = []
    at = 0
    for message in _HARMONY.finditer(text):
        kept.append(text[at : message.start()])
        at = message.end()
        recipient, channel, body = message[1] or message[3], message[2], message[4]
        if recipient and channel == "commentary":
            if index.find(recipient) is None:
                return None
            calls.append(TextCall(recipient, body.strip()))
        elif channel != "analysis":
            kept.append(body)
    kept.append(text[at:])
    return (calls, "".join(kept)) if calls else None


def _fenced(text: str, index: ToolIndex) -> tuple[Calls, str] | None:
    """Code blocks at the very end of the message."""
    calls: Calls = []
    rest = text.rstrip()
    while (found := _last_block(rest, index)) is not None:
        calls = found[0] + calls
        rest = rest[: found[1]].rstrip()
    return (calls, rest) if calls else None


def _last_block(text: str, index: ToolIndex) -> tuple[Calls, int] | None:
    end = len(text.rstrip("`~"))
    end = end if len(text) - end >= 3 else len(text)
    fences = list(_FENCE.finditer(text, 0, end))
    # A fence that opens a block has an even number of them before it.
    if len(fences) % 2 == 0 or (kind := fences[-1][1].lower()) not in _FENCE_KINDS:
        return None
    calls = _from_fence(kind, text[fences[-1].end() : end].strip(), index)
    return (calls, fences[-1].start()) if calls else None


def _from_fence(kind: str, body: str, index: ToolIndex) -> Calls | None:
    if body.startswith("<"):
        for reader in (_TAGGED, _FUNCTIONS):
            found = reader(body, index)
            if found is not None:
                return None if found[1].strip() else found[0]
        return None
    if body[:1] in ("{", "["):
        calls = from_json(body, index, exact=True)
        if calls:
            return calls
    if kind == "tool_code":
        return from_python(body, index)
    if "tool" in kind:
        return from_cut_json(body, index) or from_name_and_object(body, index)
    return None


def _bare(text: str, index: ToolIndex) -> tuple[Calls, str] | None:
    """The whole message is one call, or a list of them."""
    body = text.strip().removeprefix("functools")
    if body[:1] in ("{", "["):
        calls = from_json(body, index, exact=True) or from_cut_json(body, index)
    elif body.startswith("call:"):
        calls = from_gemma(body, index)
    else:
        calls = from_name_and_object(body, index, no_aliases=True)
    return (calls, "") if calls else None


def _behind(text: str, at: int) -> int:
    """Past the closing tags and control tokens that follow."""
    found = _BEHIND.match(text, at)
    return found.end() if found is not None else at


def _next_mistral(text: str, at: int) -> int:
    found = text.find("[TOOL_CALLS]", at)
    return found if found >= 0 else len(text)


_TAGGED = _blocks(_TAG_OPENING, _tagged)
_FUNCTIONS = _blocks(FUNCTION_OPENING, _function)
# Name of the format, a text that must occur in it, and its reader.
_READERS: tuple[tuple[str, str, Reader], ...] = (
    ("Harmony", "<|channel|>", _harmony),
    ("tags", "<", _TAGGED),
    ("XML", "<", _FUNCTIONS),
    ("special tokens", "begin", _blocks(_TOKEN_OPENING, _token)),
    ("[TOOL_CALLS]", "[TOOL_CALL", _blocks(_MISTRAL_OPENING, _mistral)),
    ("a Python tag", "<|python_tag|>", _blocks(_PYTHON_TAG, _python_tag)),
    ("Harmony without its tokens", "=functions.", _blocks(_HARMONY_BARE, _bare_harmony)),
    ("ReAct", "Action Input", _blocks(_REACT, _react)),
    ("bare JSON", "{", _bare),
    ("a code block", "", _fenced),
)
