"""The contract: everything a child may do, in one frozen value.

It is written by the parent before the child exists, stored as `sub_agents.context_json`, and cannot
be changed afterwards. Equal contracts have equal bytes, so that a contract can be hashed: fields
stand in the order of their declaration, sets are sorted tuples, times are whole milliseconds.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from retinue.domain.budget import Budget
from retinue.domain.grant import Grant
from retinue.errors import ContractError

REPORT_PATH_PATTERN = ".retinue/step-<idx>-result.md"
RESULT_CAP_TOKENS = 2_000


class WorkspaceKind(StrEnum):
    """Whose files an agent works on.

    SHARED are its parent's own, one writer at a time. WORKTREE is a copy, which is merged into the
    parent's. READONLY are the parent's, of which it changes nothing.
    """

    SHARED = "shared"
    WORKTREE = "worktree"
    READONLY = "readonly"


class OnConflict(StrEnum):
    """What becomes of a child whose work contradicts a sibling's: it fails, or another resolves."""

    FAIL = "fail"
    RESOLVE = "resolve"


class Parent(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Where the work comes from. Nothing here widens what the child may do."""

    run_id: str
    agent_id: str | None
    step_idx: int
    task_prompt: str
    goal_summary: str = ""


class Step(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The work itself."""

    title: str
    description: str
    success_criteria: tuple[str, ...] = ()
    scope: tuple[str, ...] = ()
    """The paths to keep to; for writing they are binding."""
    context: str = ""
    """What the parent gives along, already framed as data."""

    def __post_init__(self) -> None:
        # A list would stay changeable, and unequal to the tuple that its bytes decode to.
        msgspec.structs.force_setattr(self, "success_criteria", tuple(self.success_criteria))


class Execution(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """How it is carried out, and the limits of that."""

    role: str
    instructions: str
    model: str
    attempt_timeout_ms: int
    max_retries: int
    max_tool_calls: int
    max_turns: int
    max_tokens: int | None
    max_context_tokens: int
    max_cost_usd: float | None = None
    working_directory: str = "."
    workspace: WorkspaceKind = WorkspaceKind.READONLY
    silence_ms: int = 120_000
    """How long it may give no sign of life before it is noticed; it is stopped after twice that."""
    close_on_completion: bool = True

    @property
    def budget(self) -> Budget:
        return Budget(
            max_tool_calls=self.max_tool_calls,
            max_turns=self.max_turns,
            max_tokens=self.max_tokens,
            max_context_tokens=self.max_context_tokens,
            timeout_s=self.attempt_timeout_ms / 1000,
            max_cost_usd=self.max_cost_usd,
            max_retries=self.max_retries,
        )


class Outputs(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What comes back, and where it is written."""

    report_format: str = "markdown"
    report_path_pattern: str = REPORT_PATH_PATTERN
    result_cap_tokens: int = RESULT_CAP_TOKENS
    output_schema: str | None = None
    """A JSON schema, as text with sorted keys, that the answer must fit."""
    checks: tuple[str, ...] = ()
    """Commands that must succeed on what it has made, before that is integrated."""
    on_conflict: OnConflict = OnConflict.FAIL


class Contract(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    parent: Parent
    step: Step
    permissions: Grant
    execution: Execution
    outputs: Outputs = Outputs()
    version: int = 1

    def __post_init__(self) -> None:
        if not self.step.description.strip():
            raise ContractError("The task is empty; say what the agent should do.")
        # Builds, and so checks, the budget: a contract with a senseless limit must not exist.
        budget = self.execution.budget
        # An int and the equal float would be two byte strings for one value.
        execution = msgspec.structs.replace(
            self.execution,
            attempt_timeout_ms=round(self.execution.attempt_timeout_ms),
            max_cost_usd=budget.max_cost_usd,
        )
        msgspec.structs.force_setattr(self, "execution", execution)
        if self.outputs.result_cap_tokens <= 0:
            raise ContractError(
                f"result_cap_tokens must be positive, not {self.outputs.result_cap_tokens}."
            )

    def canonical(self) -> bytes:
        """The one byte string of this value."""
        return _encoder.encode(self)


_encoder = msgspec.json.Encoder(order="deterministic")
_decoder = msgspec.json.Decoder(Contract)


def decode_contract(data: bytes | str) -> Contract:
    return _decoder.decode(data)


def execution_limits(budget: Budget) -> dict[str, int | float | None]:
    """A budget, spelled as the fields of Execution."""
    return {
        "attempt_timeout_ms": round(budget.timeout_s * 1000),
        "max_retries": budget.max_retries,
        "max_tool_calls": budget.max_tool_calls,
        "max_turns": budget.max_turns,
        "max_tokens": budget.max_tokens,
        "max_context_tokens": budget.max_context_tokens,
        "max_cost_usd": budget.max_cost_usd,
    }


def title_of(task: str, width: int = 72) -> str:
    """The first line of a task, short enough for one row of a tree."""
    line = next((line.strip() for line in task.splitlines() if line.strip()), "")
    return line if len(line) <= width else line[: width - 1].rstrip() + "…"
