"""The texts in which the results of children reach their parent, and people."""

from __future__ import annotations

from collections.abc import Sequence

from retinue.domain.contract import Contract
from retinue.domain.framing import defused, frame, one_line
from retinue.domain.plural import plural
from retinue.domain.result import Result, cap

SHOWN_FILES = 20
SHOWN_NOTES = 20
MAX_REASON_CHARS = 1_000
MAX_ID_CHARS = 40
HEADING_TOKENS = 64  # for the lines around a report


def report_cap(parent: Contract, room_tokens: int) -> int:
    """The tokens of a report that its parent is given, if there is room for `room_tokens`."""
    return max(0, min(parent.outputs.result_cap_tokens, room_tokens - HEADING_TOKENS))


def outcome_text(result: Result, *, cap_tokens: int) -> str:
    """The result of a child for its parent: status, usage, then the report as data."""
    used = _used(result)
    head = f"[completed] {used}" if result.ok else f"[ERROR] {_reason(result)}\n({used})"
    return "\n".join([head, *_work(result, cap_tokens)])


def stopped_text(result: Result, *, cap_tokens: int) -> str:
    """The result of a child for the parent that has stopped it: no failure."""
    return "\n".join(
        [f"{result.agent_id} is stopped.", f"({_used(result)})", *_work(result, cap_tokens)]
    )


def _used(result: Result) -> str:
    usage = result.usage
    return (
        f"{result.agent_id} {result.role}: {plural(usage.turns, 'turn')},"
        f" {plural(usage.tool_calls, 'tool call')}, {usage.tokens:,} tokens,"
        f" {usage.duration_s:.1f}s{', cached' if result.cached else ''}"
    )


def _work(result: Result, cap_tokens: int) -> list[str]:
    """Notes, files, evidence and the report itself."""
    lines = [*note_lines(result.notes), *_files(result), *_evidence(result)]
    if result.response:
        kept, rest = _capped(result, cap_tokens)
        lines.append(frame(kept, kind="report", source=result.agent_id))
        if rest:
            lines.append(rest)
    elif not result.ok:
        lines.append("It returned no text.")
    return lines


def _files(result: Result) -> list[str]:
    """A line with the files that it read, and one with those that it modified."""
    return [
        f"Files {what}: {one_line(', '.join(map(str, paths[:SHOWN_FILES])))}"
        + (f" and {rest:,} more" if (rest := len(paths) - SHOWN_FILES) > 0 else "")
        for what, paths in (("read", result.files_read), ("modified", result.files_modified))
        if paths
    ]


def note_lines(notes: Sequence[str]) -> list[str]:
    """How the contract was narrowed, one line each, up to `SHOWN_NOTES`."""
    lines = [f"note: {one_line(note)}" for note in notes[:SHOWN_NOTES]]
    rest = len(notes) - SHOWN_NOTES
    return lines + ([f"note: {rest:,} more notes"] if rest > 0 else [])


def _reason(result: Result) -> str:
    """Status and error in one short line: a server may have sent a whole page as its error."""
    words = one_line((result.error or "").strip())
    if len(words) > MAX_REASON_CHARS:
        words = f"{words[:MAX_REASON_CHARS]}… ({len(words):,} characters)"
    return f"{result.status}: {words}"


def _evidence(result: Result) -> list[str]:
    """What was checked, and what is claimed without evidence."""
    lines = [f"check: {one_line(str(check))}" for check in result.checks]
    if result.kept:
        lines.append("Its changes were not integrated; they are kept for the user.")
    if result.unverified:
        lines.append(f"unverified: {result.unverified!r} (no check and no command shows it)")
    return lines


def job_block(result: Result, *, cap_tokens: int) -> str:
    """The result of a background child: `[id: OK]` or `[id: ERROR]`, and the report.

    Our own lines stand in brackets. Lines of the report that look like ours are defused.
    """
    kept, rest = _capped(result, cap_tokens)
    report = defused(kept) + (f"\n{rest}" if rest else "")
    evidence = "".join(f"\n[{line}]" for line in (*_files(result), *_evidence(result)))
    if result.ok:
        return f"[{result.agent_id}: OK]\n{report}{evidence}"
    had = f"\nWhat it had:\n{report}" if result.response else ""
    return f"[{result.agent_id}: ERROR]\n{_reason(result)}{evidence}{had}"


def not_found(job_id: str) -> str:
    return f"[{one_line(job_id[:MAX_ID_CHARS])}: NOT FOUND]"


def markdown(result: Result, contract: Contract, path: str) -> str:
    """The report file of an agent, for people."""
    usage = result.usage
    lines = [
        f"# {contract.step.title}",
        "",
        f"- Agent: {result.agent_id} ({path}), {result.role}, run {result.run_id}",
        f"- Status: {result.status}" + (f" ({result.error})" if result.error else ""),
        f"- Used: {plural(usage.turns, 'turn')}, {plural(usage.tool_calls, 'tool call')},"
        f" {usage.tokens:,} tokens, {usage.duration_s:.1f} s, {plural(result.attempts, 'attempt')}"
        f"{', cached' if result.cached else ''}",
    ]
    if result.files_modified:
        lines += ["- Files:", *(f"  - {change}" for change in result.files_modified)]
    lines += [f"- {line[0].upper()}{line[1:]}" for line in _evidence(result)]
    if contract.step.success_criteria:
        lines += ["- Done when:", *(f"  - {item}" for item in contract.step.success_criteria)]
    lines += [f"- Note: {note}" for note in result.notes]
    lines += ["", "## Task", "", contract.step.description]
    lines += ["", "## Result", "", result.response or "(nothing)", ""]
    return "\n".join(lines)


def _capped(result: Result, cap_tokens: int) -> tuple[str, str]:
    """The report for the parent, and a line about what is missing in it; "" if nothing is."""
    kept, cut = cap(result.response, cap_tokens)
    if not cut:
        return kept, ""
    if (
        not result.response.startswith(result.summary)
        and cap(result.summary, cap_tokens)[1] is False
    ):
        return result.summary, (
            f"[condensed by {result.agent_id}; agent_result"
            f' {{"id": "{result.agent_id}"}} has all {len(result.response):,} characters]'
        )
    return kept, (
        f"[cut after {len(kept):,} of {len(result.response):,} characters; agent_result"
        f' {{"id": "{result.agent_id}", "start": {len(kept)}}} reads on]'
    )
