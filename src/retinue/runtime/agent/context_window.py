"""Limit the context of agents to the window that the server of their model reports."""

from __future__ import annotations

import msgspec

from retinue.domain.budget import Budget
from retinue.domain.role import Role
from retinue.domain.server_info import ServedModel


def fit_role(role: Role, served: ServedModel | None) -> Role:
    """`role` with a context no larger than the window of its model."""
    budget = fit_budget(role.budget, served)
    return role if budget is role.budget else msgspec.structs.replace(role, budget=budget)


def fit_budget(budget: Budget, served: ServedModel | None) -> Budget:
    window = None if served is None else served.window
    if window is None or budget.max_context_tokens <= window:
        return budget
    return msgspec.structs.replace(budget, max_context_tokens=window)


def server_notes(served: ServedModel | None) -> tuple[str, ...]:
    return () if served is None else served.notes
