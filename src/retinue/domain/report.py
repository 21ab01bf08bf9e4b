"""What a parent is told of its children, word for word."""

from __future__ import annotations

from retinue.domain.contract import Contract
from retinue.domain.framing import defused, frame
from retinue.domain.result import Result, cap


def outcome_text(result: Result, *, cap_tokens: int) -> str:
    """A child's end for its parent: status first, the bill, then its words as data."""
    bill = _bill(result)
    if result.ok:
        lines = [f"[completed] {bill}"]
    else:
        lines = [f"[ERROR] {result.status}: {defused(result.error or '')}", f"({bill})"]
    return "\n".join(lines + _work(result, cap_tokens))


def stopped_text(result: Result, *, cap_tokens: int) -> str:
    """The end of a child for the parent that has stopped it, for whom it is no failure."""
    return "\n".join(
        [f"{result.agent_id} is stopped.", f"({_bill(result)})", *_work(result, cap_tokens)]
    )


def _bill(result: Result) -> str:
    usage = result.usage
    return (
        f"{result.agent_id} {result.role}: {_count(usage.turns, 'turn')},"
        f" {_count(usage.tool_calls, 'tool call')}, {usage.tokens:,} tokens,"
        f" {usage.duration_s:.1f}s{', cached' if result.cached else ''}"
    )


def _work(result: Result, cap_tokens: int) -> list[str]:
    """What came of it: notes, files, words."""
    lines = [f"note: {note}" for note in result.notes]
    if result.files_modified:
        lines.append("Files modified: " + ", ".join(map(str, result.files_modified)))
    lines += _evidence(result)
    if result.response:
        kept, cut = cap(result.response, cap_tokens)
        lines.append(frame(kept, kind="report", source=result.agent_id))
        if cut:
            lines.append(_cut(result, kept))
    elif not result.ok:
        lines.append("It had nothing to show for it.")
    return lines


def _evidence(result: Result) -> list[str]:
    """What was checked, and what is only claimed."""
    lines = [f"check: {check}" for check in result.checks]
    if result.kept:
        lines.append("Its changes were not integrated; they are kept for the user.")
    if result.unverified:
        lines.append(
            f"unverified: {defused(result.unverified)!r} (no check and no command shows it)"
        )
    return lines


def job_block(result: Result, *, cap_tokens: int) -> str:
    """`[id: OK]` or `[id: ERROR]`, and the text. Lines in it that look so too are defused."""
    evidence = "".join(f"\n{line}" for line in _evidence(result))
    if result.ok:
        kept, cut = cap(result.response, cap_tokens)
        more = f"\n{_cut(result, kept)}" if cut else ""
        return f"[{result.agent_id}: OK]\n{defused(kept)}{more}{evidence}"
    text = f"[{result.agent_id}: ERROR]\n{result.status}: {defused(result.error or '')}{evidence}"
    if result.response:
        kept, cut = cap(result.response, cap_tokens)
        text += f"\nWhat it had:\n{defused(kept)}" + (f"\n{_cut(result, kept)}" if cut else "")
    return text


def not_found(job_id: str) -> str:
    return f"[{job_id}: NOT FOUND]"


def markdown(result: Result, contract: Contract, path: str) -> str:
    """The report of a step, for people."""
    usage = result.usage
    lines = [
        f"# {contract.step.title}",
        "",
        f"- Agent: {result.agent_id} ({path}), {result.role}, run {result.run_id}",
        f"- Status: {result.status}" + (f" ({result.error})" if result.error else ""),
        f"- Used: {_count(usage.turns, 'turn')}, {_count(usage.tool_calls, 'tool call')},"
        f" {usage.tokens:,} tokens, {usage.duration_s:.1f} s, {_count(result.attempts, 'attempt')}"
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


def _cut(result: Result, kept: str) -> str:
    return (
        f"[cut after {len(kept):,} of {len(result.response):,} characters; agent_result"
        f' {{"id": "{result.agent_id}", "start": {len(kept)}}} reads on]'
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
