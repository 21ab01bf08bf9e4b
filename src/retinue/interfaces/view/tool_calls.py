"""Tool calls as text: a short summary, the full call for an approval, its edit and its output."""

from __future__ import annotations

from typing import Any

import msgspec

from retinue.domain.approval import ApprovalRequest, ChildTerms, Refusal, Rule
from retinue.interfaces.view.formatting import (
    one_line,
    plural,
    printable_lines,
    replace_control_chars,
)
from retinue.interfaces.view.styled_text import Line, Span, Tone, hard_wrap, wrap

# The first of these arguments that a call has is the one that a summary shows. The list covers our
# own tools and usual names in other people's tools.
SUMMARY_ARGUMENTS = (
    "command", "path", "file_path", "pattern", "query", "url", "task", "plan", "question", "text",
    "job_ids", "id", "name",
)  # fmt: skip
MAX_LINE_CHARS = 200
MAX_APPROVAL_LINES = 40
MAX_EDIT_LINES = 40
PATCH_TONES = {"+": Tone.ADDED, "-": Tone.REMOVED, "@": Tone.CODE}
YES, ALWAYS, NO = ("y", "yes"), ("a", "all", "always"), ("n", "no")


def read_answer(text: str, request: ApprovalRequest) -> bool | Rule | Refusal | None:
    """The answer to an approval that a person has typed; None if it is no answer.

    A no may have a reason after it: `n use another file`.
    """
    word, _, reason = text.strip().partition(" ")
    word, reason = word.rstrip(",:;.").lower(), reason.strip()
    if word in NO:
        return Refusal(reason) if reason else False
    if reason:
        return None
    if word in ALWAYS:
        return request.rule
    return True if word in YES else None


def call_text(tool: str, arguments: str) -> str:
    """Summary of a call: `read_file src/a.py`. Shows all arguments if none is in the list."""
    decoded = _decode_object(arguments)
    if decoded is None:
        return one_line(f"{tool} {arguments[:MAX_LINE_CHARS]}")
    summary = next((decoded[name] for name in SUMMARY_ARGUMENTS if decoded.get(name)), None)
    if summary is None:
        summary = ", ".join(f"{name}={_shortened(value)}" for name, value in decoded.items())
    return one_line(f"{tool} {_shortened(summary)}")


def approval_lines(request: ApprovalRequest, max_lines: int = MAX_APPROVAL_LINES) -> list[str]:
    """The agent and its full call or its children, so that a person sees what they allow.

    Line breaks of a command are kept, since each line is another command. A call that is too long
    keeps its beginning and its end, and a line between them counts what is not shown.
    """
    if request.children:
        lines = children_lines(request)
    else:
        text = f"{request.path} requests {request.tool}: {request.detail}"
        lines = text.expandtabs(4).replace("\r\n", "\n").split("\n")
        head, *rest = map(replace_control_chars, lines)
        lines = [head, *(f"  {line}" for line in rest)]
    shown = [chunk for line in lines for chunk in _chunks(line)]
    # A person sees each child that they approve.
    if len(shown) <= max_lines or request.children:
        return lines
    half = max_lines // 2
    return [*shown[:half], f"  [… {len(shown) - 2 * half:,} lines not shown …]", *shown[-half:]]


def children_lines(request: ApprovalRequest) -> list[str]:
    """Children that an agent wants to spawn. Terms that several children share stand once."""
    groups: dict[ChildTerms, list[ChildTerms]] = {}
    for child in request.children:
        shared = msgspec.structs.replace(child, task="", access="")
        groups.setdefault(shared, []).append(child)
    count = len(request.children)
    what = "a child that writes or runs commands" if count == 1 else f"{count:,} such children"
    lines = [f"{request.path} wants to spawn {what}:"]
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


def diff_request_lines(request: ApprovalRequest, width: int) -> list[Line]:
    """The change of a child that is about to be merged."""
    (child,) = request.children
    title = f"{request.path} is done: {one_line(child.task)}"
    return [
        *wrap([Span(title, Tone.STRONG)], width, rest="    "),
        *patch_lines(request.diff, width),
    ]


def patch_lines(patch: str, width: int) -> list[Line]:
    """A unified diff in colours."""
    lines: list[Line] = []
    for line in printable_lines(patch):
        if line.startswith(("diff --git ", "index ")):
            continue  # The --- and +++ lines name the files again.
        header = line.startswith(("+++ ", "--- "))
        tone = Tone.DIM if header else PATCH_TONES.get(line[:1], Tone.PLAIN)
        lines += hard_wrap(line, width, indent="  ", tone=tone)
    return lines


def permanent_rule_hint(rule: Rule) -> str:
    """The line for the settings file that grants `rule` in every run."""
    quoted = msgspec.json.encode(str(rule)).decode()
    # TOML shares JSON's escapes, but not for every unprintable character; \\U works in TOML.
    shown = "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in quoted)
    return f"To allow it in every run, add to your settings: allow = [{shown}]"


def edit_lines(tool: str, arguments: str, width: int, limit: int = MAX_EDIT_LINES) -> list[Line]:
    """Removed and added lines of a call that edits a file; empty for other calls."""
    if tool not in ("edit_file", "write_file"):
        return []
    decoded = _decode_object(arguments)
    if decoded is None:
        return []
    lines: list[Line] = []
    for name, sign, tone in (
        ("old_text", "- ", Tone.REMOVED),
        ("new_text", "+ ", Tone.ADDED),
        ("content", "+ ", Tone.ADDED),
    ):
        for line in printable_lines(str(decoded.get(name) or "")):
            lines += hard_wrap(sign + line, width, indent="  ", tone=tone)
    if decoded.get("content") == "":
        lines.append((Span("  (empty file)", Tone.DIM),))
    if len(lines) > limit:
        more = plural(len(lines) - limit, "more line")
        lines = [*lines[:limit], (Span(f"  … {more}", Tone.DIM),)]
    return lines


def output_lines(
    output: str, width: int, *, limit: int | None = None, tone: Tone = Tone.DIM
) -> list[Line]:
    """Output of a call, indented. With a limit, a last line counts the lines left out."""
    lines = printable_lines(output)
    shown = [
        part for line in lines[:limit] for part in hard_wrap(line, width, indent="    ", tone=tone)
    ]
    if limit is not None and len(lines) > limit:
        more = plural(len(lines) - limit, "more line")
        shown.append((Span(f"    … {more}", Tone.DIM),))
    return shown


def _chunks(line: str) -> list[str]:
    starts = range(0, len(line), MAX_LINE_CHARS)
    return [line[start : start + MAX_LINE_CHARS] for start in starts] or [line]


def _decode_object(arguments: str) -> dict[str, Any] | None:
    try:
        decoded = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        return None
    return decoded if isinstance(decoded, dict) else None


def _shortened(value: Any) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text[:MAX_LINE_CHARS]
