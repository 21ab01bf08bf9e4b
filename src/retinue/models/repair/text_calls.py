"""Calls in the text of a reply: where they are, and what is left when they are taken out.

Servers that do not know a model's notation hand its calls over as text. An explanation that shows a
call must not be taken for one, so a call inside a code block or between backticks is none, unless
the block is the last thing in the message; and bare JSON counts only as the whole message.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from retinue.models.repair.call_formats import (
    FUNCTION_OPENING,
    Calls,
    WrittenCall,
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
)
from retinue.models.repair.lenient_json import read_from
from retinue.models.repair.tool_index import Offer


class Found(NamedTuple):
    """The calls, the text around them, and the notation they were in."""

    calls: Calls
    rest: str
    notation: str


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
_MARK = re.compile(r"<(?:[|｜]|tool|function|invoke|[\w-]+:)", re.I)
_BARE = re.compile(r"\s*(?:[\[{]|functools\[|call:|[\w.:/-]++[ \t]*+\n?[ \t]*+\{)")
_TAG_OPENING = re.compile(rf"(?:{_OPEN}\s*)+", re.I)
_TAG_END = re.compile(rf"{_CLOSE}|{_OPEN}", re.I)
_BEHIND = re.compile(rf"(?:\s*(?:{_CLOSE}|{_CONTROL}))*", re.I)
_TOKEN_OPENING = re.compile(
    rf"(?:<{_BAR}tool{_LOW}calls{_LOW}(?:section{_LOW})?begin{_BAR}>\s*)?"
    rf"<{_BAR}tool{_LOW}call{_LOW}begin{_BAR}>\s*"
)
_TOKEN_SEPARATOR = re.compile(
    rf"(?:<{_BAR}tool{_LOW}sep{_BAR}>|<{_BAR}tool{_LOW}call{_LOW}argument{_LOW}begin{_BAR}>)\s*"
)
_TOKEN_CLOSING = re.compile(rf"<{_BAR}tool{_LOW}call{_LOW}(?:end|begin){_BAR}>|\Z")
_TOKEN_BEHIND = re.compile(
    rf"\s*(?:<{_BAR}tool{_LOW}call{_LOW}end{_BAR}>)?"
    rf"(?:\s*<{_BAR}tool{_LOW}calls{_LOW}(?:section{_LOW})?end{_BAR}>)?(?:\s*(?:{_CONTROL}))*"
)
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


def may_hold_calls(text: str) -> bool:
    """A quick look: False means that there is certainly no call in it."""
    return (
        "```" in text
        or "~~~" in text
        or ("<" in text and _MARK.search(text) is not None)
        or "[TOOL_CALL" in text
        or "Action Input" in text
        or "=functions." in text
        or _BARE.match(text) is not None
    )


def calls_in(text: str, offer: Offer) -> Found | None:
    """The calls of offered tools that `text` makes, or None if it makes none."""
    for notation, needle, reader in _READERS:
        found = reader(text, offer) if needle in text else None
        if found is not None:
            return Found(found[0], found[1].strip(), notation)
    return None


Reader = Callable[[str, Offer], tuple[Calls, str] | None]
_BlockReader = Callable[[str, re.Match[str], Offer], _Block | None]


def _blocks(opening: re.Pattern[str], block: _BlockReader) -> Reader:
    """A reader for calls that begin with a mark of their own, anywhere in the text."""

    def reader(text: str, offer: Offer) -> tuple[Calls, str] | None:
        calls: Calls = []
        kept: list[str] = []
        taken = at = looked = fences = 0
        while (mark := opening.search(text, at)) is not None:
            fences += len(_FENCE.findall(text, looked, mark.start()))
            looked = mark.start()
            found = None
            if fences % 2 == 0 and not _between_backticks(text, mark.start()):
                found = block(text, mark, offer)
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
    """Whether there is text on both sides of it in its line: then it is only mentioned."""
    before = text[text.rfind("\n", 0, start) + 1 : start]
    line_end = text.find("\n", end)
    after = text[end : line_end if line_end >= 0 else len(text)]
    # Another mark is no text.
    return bool(before.strip() and after.strip() and after.lstrip()[0] not in "<[")


def _tagged(text: str, mark: re.Match[str], offer: Offer) -> _Block | None:
    start = mark.end()
    # Decoded from here and not up to the next closing tag, which may stand inside a string.
    whole = read_from(text, start) if text[start : start + 1] in ("{", "[") else None
    if whole is not None:
        calls = from_values([whole[0]], offer, exactly=False)
        end = whole[1]
        while calls and (more := read_from(text, _skipped(text, end))) is not None:
            further = from_values([more[0]], offer, exactly=False)
            if further is None:
                break
            calls, end = calls + further, more[1]
        if calls:
            return _Block(calls, _behind(text, end))
    closing = _TAG_END.search(text, start)
    end = closing.start() if closing is not None else len(text)
    calls = _from_body(text[start:end], offer)
    return _Block(calls, _behind(text, end)) if calls else None


def _from_body(body: str, offer: Offer) -> Calls | None:
    """One of the notations that stand between tags."""
    if FUNCTION_OPENING.search(body):
        found = from_functions(body, offer)
        return found[0] if found is not None and not body[found[1] :].strip() else None
    if "<arg_key>" in body:
        return from_arg_pairs(body, offer)
    return (
        from_json(body, offer, exactly=False)
        or from_gemma(body, offer)
        or from_cut_json(body, offer)
        or from_name_and_object(body, offer)
        or from_name(body, offer)
        or from_tagged_name(body, offer)
        or from_python(body, offer)
    )


def _function(text: str, mark: re.Match[str], offer: Offer) -> _Block | None:
    found = from_functions(text, offer, mark.start())
    return None if found is None else _Block(found[0], _behind(text, found[1]))


def _token(text: str, mark: re.Match[str], offer: Offer) -> _Block | None:
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
    if offer.named(head) is None:
        return None
    end = closing.start()
    behind = _TOKEN_BEHIND.match(text, end)
    return _Block([WrittenCall(head, body.strip())], behind.end() if behind else end)


def _mistral(text: str, mark: re.Match[str], offer: Offer) -> _Block | None:
    at = mark.end()
    calls: Calls = []
    while (name := _MISTRAL_NAME.match(text, at)) is not None and offer.named(name[1]) is not None:
        whole = read_from(text, name.end())
        end = whole[1] if whole is not None else _next(text, "[TOOL_CALLS]", name.end())
        calls.append(WrittenCall(name[1], text[name.end() : end].strip()))
        at = end
    if calls:
        return _Block(calls, _behind(text, at))
    whole = read_from(text, at)
    if whole is not None:
        found = from_values([whole[0]], offer, exactly=False)
        return _Block(found, _behind(text, whole[1])) if found else None
    end = _next(text, "[TOOL_CALLS]", at)
    found = from_json(text[at:end], offer, exactly=False) or from_cut_json(text[at:end], offer)
    return _Block(found, end) if found else None


def _python_tag(text: str, mark: re.Match[str], offer: Offer) -> _Block | None:
    ends = _PYTHON_TAG_END.search(text, mark.end())
    body = text[mark.end() : ends.start() if ends is not None else len(text)]
    found = (
        from_json(body, offer, exactly=False)
        or from_python(body, offer)
        or from_cut_json(body, offer)
    )
    return _Block(found, _behind(text, mark.end() + len(body))) if found else None


def _react(text: str, mark: re.Match[str], offer: Offer) -> _Block | None:
    if offer.named(mark[1]) is None:
        return None
    at = mark.end()
    whole = read_from(text, at)
    closing = _REACT_END.search(text, at)
    end = whole[1] if whole is not None else closing.start() if closing is not None else len(text)
    call = WrittenCall(mark[1], text[at:end].strip())
    # An observation that the model made up must not stand in the history beside the real one.
    return _Block([call], len(text) if _OBSERVATION.match(text, end) else end)


def _bare_harmony(text: str, mark: re.Match[str], offer: Offer) -> _Block | None:
    if offer.named(mark[1]) is None:
        return None
    whole = read_from(text, mark.end())
    end = whole[1] if whole is not None else len(text)
    return _Block([WrittenCall(mark[1], text[mark.end() : end].strip())], _behind(text, end))


def _harmony(text: str, offer: Offer) -> tuple[Calls, str] | None:
    """Messages with channels: calls are commentary with a recipient, and analysis is thinking."""
    calls: Calls = []
    kept: list[str] = []
    at = 0
    for message in _HARMONY.finditer(text):
        kept.append(text[at : message.start()])
        at = message.end()
        recipient, channel, body = message[1] or message[3], message[2], message[4]
        if recipient and channel == "commentary":
            if offer.named(recipient) is None:
                return None
            calls.append(WrittenCall(recipient, body.strip()))
        elif channel != "analysis":
            kept.append(body)
    kept.append(text[at:])
    return (calls, "".join(kept)) if calls else None


def _fenced(text: str, offer: Offer) -> tuple[Calls, str] | None:
    """Code blocks at the very end of the message."""
    calls: Calls = []
    rest = text.rstrip()
    while (found := _last_block(rest, offer)) is not None:
        calls = found[0] + calls
        rest = rest[: found[1]].rstrip()
    return (calls, rest) if calls else None


def _last_block(text: str, offer: Offer) -> tuple[Calls, int] | None:
    end = len(text.rstrip("`~"))
    end = end if len(text) - end >= 3 else len(text)
    fences = list(_FENCE.finditer(text, 0, end))
    # A fence that opens a block has an even number of them before it.
    if len(fences) % 2 == 0 or (kind := fences[-1][1].lower()) not in _FENCE_KINDS:
        return None
    calls = _from_fence(kind, text[fences[-1].end() : end].strip(), offer)
    return (calls, fences[-1].start()) if calls else None


def _from_fence(kind: str, body: str, offer: Offer) -> Calls | None:
    if body.startswith("<"):
        for reader in (_TAGGED, _FUNCTIONS):
            found = reader(body, offer)
            if found is not None:
                return None if found[1].strip() else found[0]
        return None
    if body[:1] in ("{", "["):
        calls = from_json(body, offer, exactly=True)
        if calls:
            return calls
    if kind == "tool_code":
        return from_python(body, offer)
    if "tool" in kind:
        return from_cut_json(body, offer) or from_name_and_object(body, offer)
    return None


def _bare(text: str, offer: Offer) -> tuple[Calls, str] | None:
    """The whole message is one call, or a list of them."""
    body = text.strip().removeprefix("functools")
    if body[:1] in ("{", "["):
        calls = from_json(body, offer, exactly=True) or from_cut_json(body, offer)
    elif body.startswith("call:"):
        calls = from_gemma(body, offer)
    else:
        calls = from_name_and_object(body, offer, strictly=True)
    return (calls, "") if calls else None


def _skipped(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n,;":
        at += 1
    return at


def _behind(text: str, at: int) -> int:
    """Past the closing tags and control tokens that follow."""
    found = _BEHIND.match(text, at)
    return found.end() if found is not None else at


def _next(text: str, mark: str, at: int) -> int:
    found = text.find(mark, at)
    return found if found >= 0 else len(text)


_TAGGED = _blocks(_TAG_OPENING, _tagged)
_FUNCTIONS = _blocks(FUNCTION_OPENING, _function)
# Each with a piece of text without which it finds nothing.
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
