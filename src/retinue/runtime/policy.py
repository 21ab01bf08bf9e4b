"""What the user allows a runtime as a whole."""

from __future__ import annotations

import msgspec

from retinue.domain.budget import Budget
from retinue.domain.contract import OnConflict
from retinue.domain.grant import Mode
from retinue.domain.role import Role


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """Settings, flags and the project's own wishes have become this."""

    model: str
    mode: Mode
    budget: Budget
    lead: Role
    max_depth: int
    directory: str
    silence_s: float
    delegation: bool = True
    notes: tuple[str, ...] = ()
    """What the user should know about them; each run begins with it."""
    checks: tuple[str, ...] = ()
    on_conflict: OnConflict = OnConflict.FAIL
