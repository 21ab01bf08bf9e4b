"""What the user allows and limits for a runtime as a whole."""

from __future__ import annotations

import msgspec

from retinue.domain.approval import Rules
from retinue.domain.budget import Budget
from retinue.domain.contract import OnConflict
from retinue.domain.grant import Mode
from retinue.domain.role import Role


class Breaker(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Circuit breaker of a root: thresholds in tool calls, below the limit `max_tool_calls`."""

    warn_at: int
    pause_at: int


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """Made from settings, command line and arguments of `retinue.open`."""

    directory: str
    model: str
    mode: Mode
    budget: Budget
    """Limits of each run as a whole."""
    max_depth: int
    """Generations of children below a root."""
    max_concurrent: int
    """Children of one parent that run at a time."""
    silence_s: float
    """How long an agent may show no sign of life before the watchdog reports it."""
    breaker: Breaker
    rules: Rules
    lead: Role
    """Role of the root that a model leads."""
    delegation: bool
    """Whether that root may have children."""
    checks: tuple[str, ...]
    """Commands that the work of every agent must pass before it is merged."""
    on_conflict: OnConflict
    report_path_pattern: str
    notes: tuple[str, ...] = ()
    """What the user should know about the above; each run starts with them."""
