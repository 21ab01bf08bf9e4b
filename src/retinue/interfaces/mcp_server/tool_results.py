"""Results of the MCP server's tools: a text for the model, and the same as data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from retinue.domain.plan.outcome import PlanResult
from retinue.domain.report import outcome_text
from retinue.domain.result import Result, Spent, cap
from retinue.runtime.history.undo import ChangePatch, UndoResult

REPORT_TOKENS = 2_000
FAN_OUT_TOKENS = 8_000
"""For the reports of a fan-out together; a report gets at least `MIN_REPORT_TOKENS`."""
MIN_REPORT_TOKENS = 200
DIFF_TOKENS = 1_000
CHANGES_TOKENS = 6_000


class ToolResult(msgspec.Struct, frozen=True):
    text: str
    data: dict[str, Any]
    is_error: bool = False

    @property
    def content(self) -> dict[str, Any]:
        """As `tools/call` returns it."""
        text = [{"type": "text", "text": self.text}]
        error = {"isError": True} if self.is_error else {}
        return {"content": text, "structuredContent": self.data, **error}


def failed(text: str) -> ToolResult:
    """Why nothing was done, for the caller's model."""
    return ToolResult(text, {"error": text}, True)


def child_result(
    result: Result, patches: Sequence[ChangePatch], cap_tokens: int = REPORT_TOKENS
) -> ToolResult:
    """The report of one child, with its diff, checks and cost."""
    answer, cut = cap(result.response, cap_tokens)
    lines = [outcome_text(msgspec.structs.replace(result, response=answer), cap_tokens=cap_tokens)]
    if cut:
        lines.append(
            f"[cut after {len(answer):,} of {len(result.response):,} characters; result"
            f' {{"agent": "{result.agent_id}", "start": {len(answer)}}} reads on]'
        )
    diff, _ = _diff(patches, DIFF_TOKENS)
    if diff:
        lines += ["Changes:", diff]
    data = {
        "agent": result.agent_id,
        "run": result.run_id,
        "role": result.role,
        "status": str(result.status),
        "answer": answer,
        "answer_characters": len(result.response),
        "files": [str(change) for change in result.files_modified],
        "checks": [{"command": check.command, "ok": check.ok} for check in result.checks],
        "usage": usage(result.usage),
    }
    optional = {
        "data": result.data,
        "error": result.error,
        "diff": diff,
        "unverified": result.unverified,
        "notes": list(result.notes),
    }
    data |= {name: value for name, value in optional.items() if value}
    return ToolResult("\n".join(lines), msgspec.to_builtins(data), not result.ok)


def fan_out_result(children: Sequence[ToolResult]) -> ToolResult:
    """The results of several children, in the order of their tasks."""
    failures = sum(child.is_error for child in children)
    head = f"{len(children) - failures} of {len(children)} tasks are done."
    return ToolResult(
        "\n\n".join([head, *(child.text for child in children)]),
        {"results": [child.data for child in children], "failed": failures},
        failures == len(children),
    )


def plan_result(result: PlanResult) -> ToolResult:
    """The report of a plan that was run."""
    text, _ = cap(result.report, FAN_OUT_TOKENS)
    data = {
        "run": result.run_id,
        "status": str(result.status),
        "steps": {outcome.step.name: str(outcome.state) for outcome in result.steps},
        "usage": usage(result.total),
    }
    return ToolResult(text, data | ({"error": result.error} if result.error else {}), not result.ok)


def changes_result(patches: Sequence[ChangePatch], run_id: str) -> ToolResult:
    """The diff of the agents' changes, and their titles."""
    diff, cut = _diff(patches, CHANGES_TOKENS)
    changes = [
        {"agent": patch.agent_id, "state": patch.state, "title": patch.title} for patch in patches
    ]
    if cut:
        diff += f"\n[cut; `retinue diff {run_id}` shows all of it]"
    return ToolResult(
        diff or "No files were changed.", {"run": run_id, "changes": changes, "diff": diff}
    )


def undo_result(result: UndoResult, run_id: str) -> ToolResult:
    """Which files an undo has changed, or why it changed none."""
    if result.refused:
        reasons = "; ".join(result.refused)
        return ToolResult(f"Nothing was undone: {reasons}.", {"run": run_id, "files": []}, True)
    files = [str(change) for change in result.files]
    return ToolResult(f"Undone: {', '.join(files)}", {"run": run_id, "files": files})


def usage(spent: Spent) -> dict[str, Any]:
    return {
        "turns": spent.turns,
        "tool_calls": spent.tool_calls,
        "tokens": spent.tokens,
        "billed_tokens": spent.billed_tokens,
        "cost_usd": round(spent.cost_usd, 6),
        "duration_s": round(spent.duration_s, 3),
    }


def _diff(patches: Sequence[ChangePatch], cap_tokens: int) -> tuple[str, bool]:
    """The patches as one diff, and whether it is cut."""
    return cap("\n".join(patch.patch.rstrip("\n") for patch in patches), cap_tokens)
