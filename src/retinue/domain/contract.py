"""The contract: everything an agent may do, in one frozen value.

It is drafted before the agent exists, stored as `sub_agents.context_json`, and never changed. Equal
contracts have equal bytes, so that a contract can be hashed: fields are in the order of their
declaration, sets are sorted tuples, times are whole milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

import msgspec

from retinue.domain.budget import Budget
from retinue.domain.grant import Grant
from retinue.domain.sampling import Sampling
from retinue.errors import ContractError

REPORT_PATH_PATTERN = ".retinue/step-<idx>-result.md"
RESULT_CAP_TOKENS = 2_000
SILENCE_MS = 120_000


class WorkspaceKind(StrEnum):
    """Which files an agent works on.

    SHARED: its parent's own files, one writer at a time. WORKTREE: a copy that is merged into the
    parent's files. READONLY: the parent's files, without writing.

    ```python
    task = retinue.Task("executor", "Fix it.", workspace=retinue.WorkspaceKind.WORKTREE)
    ```
    """

    SHARED = "shared"
    WORKTREE = "worktree"
    READONLY = "readonly"


class OnConflict(StrEnum):
    """What happens on a conflict with a sibling: the child fails, or another child resolves it.

    ```python
    task = retinue.Task("executor", "Rename it.", on_conflict=retinue.OnConflict.RESOLVE)
    ```
    """

    FAIL = "fail"
    RESOLVE = "resolve"


class Parent(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Where the task comes from. These fields grant no rights."""

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
    """Paths to keep to; writing outside of them is denied."""
    context: str = ""
    """Text that the parent adds, already framed as data."""
    images: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    """SHA-256 of each image that comes with the task; the event of the agent's creation has them.

    Not encoded if there are none, as in contracts of versions without it."""

    def __post_init__(self) -> None:
        # A list could be changed, and would differ from the tuple that its bytes decode to.
        msgspec.structs.force_setattr(self, "success_criteria", tuple(self.success_criteria))


class Execution(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """How the work is done, and its limits.

    The limits are those of `budget`, in the names and the order in which contracts store them.
    """

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
    silence_ms: int = SILENCE_MS
    """Time without a sign of life after which the agent is reported; twice that stops it."""
    close_on_completion: bool = True
    sampling: Sampling | msgspec.UnsetType = msgspec.UNSET
    """Not encoded if nothing is set, as in contracts of versions without it."""
    max_billed_tokens: int | msgspec.UnsetType = msgspec.UNSET

    @property
    def budget(self) -> Budget:
        return _budget(
            max_tool_calls=self.max_tool_calls,
            max_turns=self.max_turns,
            max_tokens=self.max_tokens,
            max_billed_tokens=self.max_billed_tokens or None,
            max_context_tokens=self.max_context_tokens,
            timeout_s=self.attempt_timeout_ms / 1000,
            max_cost_usd=self.max_cost_usd,
            max_retries=self.max_retries,
        )


# Siblings have the same limits, and each asks for its budget three times. `typed`, because True
# counts as equal to 1.
_budget = lru_cache(maxsize=64, typed=True)(Budget)


class Outputs(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What the agent returns, and where its report is written."""

    report_format: str = "markdown"
    report_path_pattern: str = REPORT_PATH_PATTERN
    result_cap_tokens: int = RESULT_CAP_TOKENS
    output_schema: str | None = None
    """JSON schema of the answer, as text with sorted keys."""
    checks: tuple[str, ...] = ()
    """Commands that must succeed on the work before it is merged."""
    on_conflict: OnConflict = OnConflict.FAIL


class Contract(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Everything that one agent may do and use, and its task. Raises ContractError if invalid."""

    parent: Parent
    step: Step
    permissions: Grant
    execution: Execution
    outputs: Outputs = Outputs()
    version: int = 1

    def __post_init__(self) -> None:
        if not self.step.description.strip():
            raise ContractError("The task is empty; say what the agent should do.")
        # Building the budget checks it: no contract may have an invalid limit.
        budget = self.execution.budget
        # An int and the equal float would be different bytes for the same value.
        execution = msgspec.structs.replace(
            self.execution,
            attempt_timeout_ms=round(self.execution.attempt_timeout_ms),
            max_cost_usd=budget.max_cost_usd,
        )
        if execution.sampling:
            execution.sampling.check()
        msgspec.structs.force_setattr(self, "execution", execution)
        if self.outputs.result_cap_tokens <= 0:
            raise ContractError(
                f"result_cap_tokens must be positive, not {self.outputs.result_cap_tokens}."
            )

    def encode(self) -> EncodedContract:
        encode = _encoder.encode
        return EncodedContract(
            encode(self.parent),
            encode(self.step),
            encode(self.permissions),
            encode(self.execution),
            encode(self.outputs),
            self.version,
        )


class EncodedContract(NamedTuple):
    """The parts of a contract as JSON: its row, its hash and its cache key use the same bytes."""

    parent: bytes
    step: bytes
    permissions: bytes
    execution: bytes
    outputs: bytes
    version: int

    @property
    def canonical(self) -> bytes:
        """The whole contract: the bytes that are stored and hashed."""
        return (
            b'{"parent":%b,"step":%b,"permissions":%b,"execution":%b,"outputs":%b,"version":%d}'
            % self
        )

    @property
    def without_parent(self) -> bytes:
        """The contract without its parent: equal for the same work of different parents."""
        return b"%b,%b,%b,%b" % (self.step, self.permissions, self.execution, self.outputs)


_encoder = msgspec.json.Encoder(order="deterministic")
decode_contract: Callable[[bytes | str], Contract] = msgspec.json.Decoder(Contract).decode


def title_of(task: str, width: int = 72) -> str:
    """The first line of a task, short enough for one row of a tree."""
    line = next((line.strip() for line in task.splitlines() if line.strip()), "")
    return line if len(line) <= width else line[: width - 1].rstrip() + "…"
