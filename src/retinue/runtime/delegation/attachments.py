"""What a child gets with its task, framed as data: text, files, reports of earlier steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from retinue.domain.framing import frame
from retinue.domain.messages import estimate_tokens
from retinue.domain.result import Result, cap
from retinue.errors import ToolFailure, UsageError
from retinue.ports.workspace import Workspace
from retinue.runtime.agent.prompts import read_file_fast

MAX_FILES = 20
MAX_BYTES = 1024 * 1024
EVIDENCE_TOKENS = 1_000


async def attach(
    workspace: Workspace, *, context: str, files: Sequence[str], max_tokens: int
) -> tuple[str, list[str]]:
    """The framed text, within `max_tokens`, and a note for each part that is cut or left out."""
    parts: list[str] = []
    notes: list[str] = []
    room = max_tokens
    if context.strip():
        kept, cut = cap(context, room)
        if cut:
            notes.append(f"context was cut to {room:,} tokens")
        parts.append(frame(kept, kind="context", source="parent"))
        room -= estimate_tokens(kept)
    for number, name in enumerate(dict.fromkeys(files)):
        try:
            if number >= MAX_FILES:
                raise ToolFailure(f"more than {MAX_FILES} files")
            text = await _text(workspace, name, room)
        except ToolFailure as failure:
            notes.append(f"skipped {name}: {failure}")
            continue
        parts.append(frame(text, kind="file", source=name))
        room -= estimate_tokens(text)
    return "\n\n".join(parts), notes


async def attach_all(
    workspace: Workspace, *, context: str, files: Sequence[str], max_tokens: int
) -> tuple[str, list[str]]:
    """Like `attach`, but raise UsageError if not everything fits and there are files."""
    text, notes = await attach(workspace, context=context, files=files, max_tokens=max_tokens)
    if notes and files:
        raise UsageError("; ".join(notes) + ".")
    return text, notes


async def _text(workspace: Workspace, name: str, max_tokens: int) -> str:
    data = await read_file_fast(workspace, name, MAX_BYTES)
    if b"\0" in data:
        raise ToolFailure("it is not text")
    text = data.decode("utf-8", "replace")
    if estimate_tokens(text) > max_tokens:
        raise ToolFailure(
            f"its {estimate_tokens(text):,} tokens do not fit the {max(max_tokens, 0):,}"
            " that are left; read it with read_file"
        )
    return text


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
