"""The exit codes of `retinue`, and which one a command's results lead to."""

from __future__ import annotations

from collections.abc import Sequence

from retinue.domain.result import Status

EXIT_CODES = {
    0: "done",
    1: "failed, or suspended because a model server is gone; then `retinue resume` continues it",
    2: "wrong command line or setting; nothing was started",
    3: "stopped by a budget or a timeout; the partial result is printed",
    4: "needed an approval, but no person could be asked",
    130: "interrupted or cancelled; every agent was closed",
}


_OF_STATUS = {
    Status.COMPLETED: 0,
    Status.CANCELLED: 130,
    Status.REJECTED: 4,
    Status.BUDGET_EXCEEDED: 3,
    Status.TIMEOUT: 3,
}


def exit_code(statuses: Sequence[Status]) -> int:
    """0 if all are completed; else the highest code of a failure: 130, 4, 3, 1."""
    return max((_OF_STATUS.get(status, 1) for status in statuses), default=0)
