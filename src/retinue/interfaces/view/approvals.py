"""Approvals on the screen: what an agent asks for, and how a person answers."""

from __future__ import annotations

import msgspec

from retinue.domain.approval import (
    ApprovalReason,
    ApprovalRequest,
    ChildTerms,
    Refusal,
    Rule,
    agent_label,
    parse_rule,
)
from retinue.errors import ConfigError
from retinue.interfaces.view.file_diff import patch_lines
from retinue.interfaces.view.formatting import one_line, replace_control_chars
from retinue.interfaces.view.styled_text import Line, Tone, hard_wrap, styled, wrap
from retinue.interfaces.view.tool_calls import call_text, decode_object

YES, ALWAYS, NO = ("y", "yes"), ("a", "all", "always"), ("n", "no")


def read_answer(text: str, request: ApprovalRequest) -> bool | Rule | Refusal | None:
    """The answer to an approval that a person has typed; None if it is no answer.

    A no may have a reason after it (`no, use another file`), and an always another rule than the
    one that is proposed (`always run_command(git *)`).
    """
    word, _, reason = text.strip().partition(" ")
    word, reason = word.rstrip(",:;.!").lower(), reason.strip()
    if word in NO:
        return Refusal(reason) if reason else False
    if word in ALWAYS:
        return _edited_rule(reason) if reason else request.rule
    if reason:
        return None
    return True if word in YES else None


def _edited_rule(text: str) -> Rule | None:
    try:
        return parse_rule(text)
    except ConfigError:
        return None


def request_lines(request: ApprovalRequest, width: int) -> list[Line]:
    """All that a person allows with a yes: the change, the command, the children or the call."""
    if request.diff:
        task = one_line(request.children[0].task)
        title = f"{agent_label(request.path)} has finished {task!r}. Its change:"
        return [*_title(title, width), *patch_lines(request.diff, width)]
    if request.children:
        head, *rest = children_lines(request)
        lines = _title(head, width)
        for text in rest:
            indent = " " * (len(text) - len(text.lstrip()))
            lines += wrap(styled(text.strip()), width, first=indent, rest=f"{indent}  ")
        return lines
    if request.preview:
        title = f"{agent_label(request.path)} asks to change a file:"
        return [*_title(title, width), *patch_lines(request.preview, width)]
    if request.subject:
        lines = _title(f"{agent_label(request.path)} asks to run a command:", width)
        for index, text in enumerate(_code_lines(request.subject)):
            sign = "  $ " if not index else "    "
            for part in hard_wrap(styled((text, Tone.CODE)), width - 4):
                lines.append(styled((sign, Tone.DIM), part))
                sign = "    "
        return lines
    if request.why is ApprovalReason.CALLS:
        return _title(f"{agent_label(request.path)} asks to continue: {request.arguments}", width)
    lines = _title(f"{agent_label(request.path)} asks to call {request.tool}:", width)
    for text in _argument_lines(request):
        lines += [styled("  ", part) for part in hard_wrap(styled(text), width - 2)]
    return lines


def explanation_lines(request: ApprovalRequest, width: int) -> list[Line]:
    """Why the agent asks, where the call runs, and what it can touch."""
    where = f"in {one_line(request.directory)}" if request.directory else ""
    text = "; ".join(filter(None, (where, request.explanation)))
    return wrap(styled((text, Tone.DIM)), width, first="  ", rest="  ") if text else []


def request_title(request: ApprovalRequest) -> str:
    """The request in a few words, for a notification."""
    if request.diff:
        return f"{agent_label(request.path)} has a change to merge"
    if request.children:
        return f"{agent_label(request.path)} asks to spawn children"
    return f"{agent_label(request.path)} asks for {call_text(request.tool, request.arguments)}"


def always_text(request: ApprovalRequest) -> str:
    """Text after the choice "always": what that answer allows."""
    if request.children:
        return "for all like this"
    if request.why is ApprovalReason.CALLS:
        return "continue"
    if request.subject and request.rule.pattern == request.subject:
        return "for exactly this command"
    return one_line(str(request.rule))


def children_lines(request: ApprovalRequest) -> list[str]:
    """Children that an agent wants to spawn. Terms that several children share stand once."""
    groups: dict[ChildTerms, list[ChildTerms]] = {}
    for child in request.children:
        shared = msgspec.structs.replace(child, task="", access="")
        groups.setdefault(shared, []).append(child)
    count = len(request.children)
    what = "a child" if count == 1 else f"{count:,} children"
    lines = [f"{agent_label(request.path)} asks to spawn {what} that can change things:"]
    for terms, children in groups.items():
        places = {one_line(child.access) for child in children}
        role = one_line(terms.role)
        if len(children) == 1:
            lines.append(f"  {role}: {one_line(children[0].task)}")
        else:
            lines.append(f"  {len(children):,} × {role}:")
        for child in children if len(children) > 1 else ():
            place = f" ({one_line(child.access)})" if len(places) > 1 else ""
            lines.append(f"    - {one_line(child.task)}{place}")
        lines.append(f"    tools: {one_line(', '.join(terms.tools))}")
        lines += [f"    {place}" for place in places if len(places) == 1]
        lines += [f"    budget: {terms.budget}", f"    {one_line(terms.files)}"]
    return lines


def permanent_rule_hint(rule: Rule) -> str:
    """The line for the settings file that grants `rule` in every run."""
    quoted = msgspec.json.encode(str(rule)).decode()
    # TOML shares JSON's escapes, but not for every unprintable character; \\U works in TOML.
    shown = "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in quoted)
    return f"To allow it in every run, add to your settings: allow = [{shown}]"


def _title(text: str, width: int) -> list[Line]:
    return wrap(styled((text, Tone.STRONG)), width, rest="  ")


def _argument_lines(request: ApprovalRequest) -> list[str]:
    decoded = decode_object(request.arguments)
    if decoded is None:
        return _code_lines(request.arguments)
    lines = []
    for name, value in decoded.items():
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        first, *rest = _code_lines(text)
        lines += [f"{name}: {first}", *(f"  {line}" for line in rest)]
    return lines or ["(without arguments)"]


def _code_lines(text: str) -> list[str]:
    """Every line, since each line of a command is another command."""
    lines = text.expandtabs(4).replace("\r\n", "\n").split("\n")
    return [replace_control_chars(line) for line in lines]
