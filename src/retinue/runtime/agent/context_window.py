"""Keeping agents inside the windows that their models really have."""

from __future__ import annotations

import msgspec

from retinue.domain.budget import Budget
from retinue.domain.role import Role
from retinue.domain.server_info import ServedModel


def fitted(role: Role, served: ServedModel | None) -> Role:
    """`role`, with a context that is no larger than the window of the model that plays it."""
    budget = within(role.budget, served)
    return role if budget is role.budget else msgspec.structs.replace(role, budget=budget)


def within(budget: Budget, served: ServedModel | None) -> Budget:
    window = None if served is None else served.window
    if window is None or budget.max_context_tokens <= window:
        return budget
    return msgspec.structs.replace(budget, max_context_tokens=window)


def notes_on(served: ServedModel | None) -> tuple[str, ...]:
    return () if served is None else served.notes
