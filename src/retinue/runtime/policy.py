"""`Policy`: the user's permissions and limits for a runtime as a whole."""

from __future__ import annotations

import msgspec

from retinue.domain.agent_spec import Authority
from retinue.domain.approval import Rules
from retinue.domain.budget import Budget
from retinue.domain.contract import OnConflict, title_of
from retinue.domain.grant import Mode
from retinue.domain.permissions import RACE_AGENTS, Approvals, Effects, root_grant
from retinue.domain.result import OnChildFailure
from retinue.domain.role import Role
from retinue.domain.sampling import Sampling
from retinue.errors import UsageError


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
    sampling: Sampling
    """For agents with `model`."""
    max_depth: int
    """Generations of children below a root."""
    max_concurrent: int
    """Children of one parent that run at a time."""
    silence_s: float
    """How long an agent may show no sign of life before the watchdog reports it."""
    breaker: Breaker
    rules: Rules
    attended: bool
    """Whether a person can be asked to approve something."""
    lead: Role
    """Role of the root that a model leads."""
    delegation: bool
    """Whether that root may have children."""
    checks: tuple[str, ...]
    """Commands that the work of every agent must pass before it is merged."""
    test: str
    """The project's test command, or ""."""
    on_conflict: OnConflict
    on_child_failure: OnChildFailure
    report_path_pattern: str
    web_hosts: tuple[str, ...] = ()
    """Hosts that agents may fetch from."""
    notes: tuple[str, ...] = ()
    """Notes for the user about this policy, recorded at the start of each run."""

    @property
    def approvals(self) -> Approvals:
        return Approvals(self.attended, self.rules)

    def concurrency(self, max_concurrent: int | None) -> int:
        """How many children of a program run at a time, if it asks for `max_concurrent`."""
        most = self.max_concurrent if max_concurrent is None else max_concurrent
        if most < 1:
            raise UsageError(f"max_concurrent must be at least 1, not {most}.")
        return most

    def authority(
        self,
        run_id: str,
        task: str,
        effects: Effects,
        roles: tuple[str, ...],
        *,
        mode: Mode | None = None,
        budget: Budget | None = None,
    ) -> Authority:
        """The user's authority for the root of a run; the root may spawn children with `roles`."""
        budget = budget or self.budget
        if not self.checks:  # Checks decide a race.
            effects = {name: effects[name] for name in effects if name != RACE_AGENTS}
        return Authority(
            run_id=run_id,
            agent_id=None,
            task_prompt=task,
            goal_summary=title_of(task),
            grant=root_grant(
                mode or self.mode,
                effects,
                roles=roles,
                depth=self.max_depth,
                web_hosts=self.web_hosts,
            ),
            budget=budget,
            remaining=budget.resources(),
            model=self.model,
            working_directory=self.directory,
            sampling=self.sampling,
            silence_ms=round(self.silence_s * 1000),
            report_path_pattern=self.report_path_pattern,
            checks=self.checks,
            on_conflict=self.on_conflict,
        )
