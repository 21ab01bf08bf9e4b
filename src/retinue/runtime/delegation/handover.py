"""The context that a step gets from earlier steps: reports, and why an earlier attempt failed."""

from __future__ import annotations

from collections.abc import Mapping

from retinue.domain.framing import frame
from retinue.domain.messages import estimate_tokens
from retinue.domain.result import Result, cap

EVIDENCE_TOKENS = 1_000


def handover_context(
    purpose: str, reports: Mapping[str, str], *, max_tokens: int
) -> tuple[str, tuple[str, ...]]:
    """The purpose and the reports, each cut to an equal share; and a note for each cut."""
    purpose, _ = cap(purpose, max_tokens // 4)
    parts = [frame(purpose, kind="context", source="parent")]
    notes = []
    share = (max_tokens - estimate_tokens(purpose)) // max(1, len(reports))
    for source, report in reports.items():
        kept, cut = cap(report, share)
        parts.append(frame(kept, kind="report", source=source))
        if cut:
            notes.append(f"the report of {source} was cut to {share:,} tokens for it")
    return "\n\n".join(parts), tuple(notes)


def failure_report(result: Result) -> str:
    """Why a child failed, for the child that tries again."""
    lines = [f"{result.status}: {result.error}"]
    for check in result.checks:
        if not check.ok:
            lines += [f"{check}", check.output.strip()]
    lines += [f"conflict: {conflict}" for conflict in result.conflicts]
    if result.response.strip():
        lines += ["What it said last:", result.response.strip()]
    kept, _ = cap("\n".join(lines), EVIDENCE_TOKENS)
    return kept
