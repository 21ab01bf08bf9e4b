"""Errors of requests to a run: as text on their way to the host, which raises them again."""

from __future__ import annotations

from retinue.errors import (
    ApprovalNeeded,
    RunError,
    RunSuspended,
    StoreError,
    ToolFailure,
    UsageError,
    WorkspaceError,
)

_KINDS: tuple[type[Exception], ...] = (
    ApprovalNeeded, RunSuspended, StoreError, ToolFailure, UsageError, WorkspaceError, RunError,
)  # fmt: skip


def describe_error(error: BaseException) -> str:
    """The error as a host raises it again."""
    kind = next((kind for kind in _KINDS if isinstance(error, kind)), RunError)
    return f"{kind.__name__}: {error}"


def error_from(text: str, run_id: str) -> Exception:
    """The error that was described."""
    name, _, message = text.partition(": ")
    kind = next((kind for kind in _KINDS if kind.__name__ == name), RunError)
    return RunSuspended(message, run_id=run_id) if kind is RunSuspended else kind(message)
