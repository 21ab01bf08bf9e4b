"""The exit codes of `retinue`, and which one a command's results lead to."""

from __future__ import annotations

from collections.abc import Sequence

from retinue.domain.result import Status

EXIT_CODES = {
    0: "done",
    1: "failed",
    2: "wrong command line or setting; nothing was started",
    3: "stopped by a budget or a timeout; the partial result is printed",
    4: "needed an approval, but no person could be asked",
    130: "interrupted or cancelled; every agent was closed",
}


def exit_code(statuses: Sequence[Status]) -> int:
    """0 if all are completed; else the code that all failures share, or 1 if they differ."""
    failures = [status for status in statuses if status is not Status.COMPLETED]
    if not failures:
        return 0
    if all(status is Status.CANCELLED for status in failures):
        return 130
    if all(status is Status.REJECTED for status in failures):
        return 4
    if all(status in (Status.BUDGET_EXCEEDED, Status.TIMEOUT) for status in failures):
        return 3
    return 1
