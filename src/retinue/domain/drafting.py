"""Drafts contracts from the spec of an agent and the authority of its creator.

A draft never exceeds the creator's authority. Its notes say what was taken away, and why.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from retinue.domain.account import MICROUSD_PER_USD
from retinue.domain.agent_spec import AgentSpec, Authority, RequestedPermissions
from retinue.domain.budget import Budget
from retinue.domain.contract import Contract, Execution, Outputs, Parent, Step, title_of
from retinue.domain.grant import Grant
from retinue.domain.images import Image
from retinue.domain.permissions import (
    Approvals,
    Effects,
    Permissions,
    child_permissions,
    root_permissions,
)
from retinue.domain.role import Role
from retinue.domain.sampling import NO_SAMPLING, Sampling
from retinue.errors import OutOfBudget


class DraftedContract(msgspec.Struct, frozen=True, gc=False):
    contract: Contract
    notes: tuple[str, ...]
    images: tuple[Image, ...] = ()


_DecidedFrom = tuple[Grant, Role, RequestedPermissions]


class ContractDrafter:
    """Drafts the contracts of one run. Siblings share what they may do.

    Deciding that takes 60 µs, and a fan-out would do so ten thousand times.
    """

    def __init__(self, effects: Effects, approvals: Approvals = Approvals()) -> None:  # noqa: B008
        self._effects = effects
        self._approvals = approvals
        self._permissions: dict[str, tuple[_DecidedFrom, Permissions]] = {}
        """The latest permissions of each role, with the inputs that they were computed from."""

    def draft_root(self, spec: AgentSpec, user: Authority, *, instructions: str) -> DraftedContract:
        """The contract of a run's root, which gets all that the user gives."""
        permissions = root_permissions(user.grant, self._effects)
        return _draft(spec, user, permissions, user.budget, spec.notes, 0, instructions)

    def draft(
        self, spec: AgentSpec, parent: Authority, *, step_idx: int, instructions: str | None = None
    ) -> DraftedContract:
        """The contract of a child. Raises ContractError if nothing useful can be given.

        `instructions` are by default those of the role.
        """
        permissions = self._child_permissions(spec, parent.grant)
        notes = [*spec.notes, *permissions.notes]
        budget = _child_budget(spec, parent, notes)
        if instructions is None:
            instructions = spec.role.instructions
        return _draft(spec, parent, permissions, budget, notes, step_idx, instructions)

    def preview(self, spec: AgentSpec, parent: Authority) -> Grant:
        """The grant that a child would get. Raises ContractError as `draft` does."""
        grant = self._child_permissions(spec, parent.grant).grant
        _child_budget(spec, parent, [])
        return grant

    def _child_permissions(self, spec: AgentSpec, parent: Grant) -> Permissions:
        role, requested = spec.role, spec.permissions
        known = self._permissions.get(role.name)
        if known is None or known[0] != (parent, role, requested):
            permissions = child_permissions(role, requested, parent, self._effects, self._approvals)
            known = self._permissions[role.name] = (parent, role, requested), permissions
        return known[1]


def _draft(
    spec: AgentSpec,
    authority: Authority,
    permissions: Permissions,
    budget: Budget,
    notes: Sequence[str],
    step_idx: int,
    instructions: str,
) -> DraftedContract:
    step, output = spec.step, spec.output
    model = spec.model or spec.role.model or authority.model
    contract = Contract(
        parent=Parent(
            run_id=authority.run_id,
            agent_id=authority.agent_id,
            step_idx=step_idx if step.number is None else step.number,
            task_prompt=authority.task_prompt,
            goal_summary=step.goal_summary or authority.goal_summary,
        ),
        step=Step(
            title=step.title or title_of(spec.task),
            description=spec.task,
            success_criteria=output.success_criteria,
            scope=spec.permissions.scope,
            context=spec.context,
            images=tuple(image.sha256 for image in spec.images) or msgspec.UNSET,
        ),
        permissions=permissions.grant,
        execution=Execution(
            role=spec.role.name,
            instructions=instructions,
            model=model,
            attempt_timeout_ms=round(budget.timeout_s * 1000),
            max_retries=budget.max_retries,
            max_tool_calls=budget.max_tool_calls,
            max_turns=budget.max_turns,
            max_tokens=budget.max_tokens,
            max_context_tokens=budget.context_tokens,
            max_cost_usd=budget.max_cost_usd,
            max_billed_tokens=budget.max_billed_tokens or msgspec.UNSET,
            working_directory=spec.permissions.directory or authority.working_directory,
            workspace=permissions.workspace,
            silence_ms=authority.silence_ms,
            sampling=_sampling(spec, authority, model),
        ),
        outputs=Outputs(
            output_schema=output.schema,
            report_path_pattern=authority.report_path_pattern,
            # A child's work must pass whatever its parent's must pass.
            checks=tuple(dict.fromkeys((*authority.checks, *output.checks))),
            on_conflict=output.on_conflict or authority.on_conflict,
        ),
    )
    return DraftedContract(contract, tuple(notes), spec.images)


def _sampling(spec: AgentSpec, authority: Authority, model: str) -> Sampling | msgspec.UnsetType:
    """The settings of the spec, then of the role, then of a creator that has the same model."""
    inherited = authority.sampling if model == authority.model else NO_SAMPLING
    sampling = spec.sampling.over(spec.role.sampling.over(inherited))
    return msgspec.UNSET if sampling == NO_SAMPLING else sampling


_CLAMPED_SILENTLY = ("max_tool_calls", "max_turns", "timeout_s")


def _child_budget(spec: AgentSpec, parent: Authority, notes: list[str]) -> Budget:
    """The role's budget with the limits of the spec, clamped to what the parent has left."""
    most, remaining = parent.budget, parent.remaining
    # A requested limit must be valid before it is clamped.
    asked, explicit = spec.limits.applied_to(spec.role.budget), spec.limits.given()
    limits: dict[str, float] = {name: getattr(most, name) for name in _CLAMPED_SILENTLY}
    if remaining.tokens <= 0:
        raise OutOfBudget("No tokens are left for a child; finish with what there is.")
    if most.max_tokens is not None or remaining.tokens < (asked.max_tokens or 0):
        limits["max_tokens"] = remaining.tokens
    if most.max_billed_tokens is not None:
        if remaining.billed_tokens <= 0:
            raise OutOfBudget("No billed tokens are left for a child; finish with what there is.")
        limits["max_billed_tokens"] = remaining.billed_tokens
    if most.max_cost_usd is not None:
        if remaining.cost_microusd <= 0:
            raise OutOfBudget("No money is left for a child; finish with what there is.")
        limits["max_cost_usd"] = remaining.cost_microusd / MICROUSD_PER_USD
    clamped = {}
    for name, limit in limits.items():
        value = getattr(asked, name)
        if value is None or value > limit:
            clamped[name] = limit
            if value is not None and (name in explicit or name not in _CLAMPED_SILENTLY):
                notes.append(
                    f"{name} {_shown(value)} became {_shown(limit)}: the parent has no more"
                )
    return msgspec.structs.replace(asked, **clamped) if clamped else asked


def _shown(value: float) -> str:
    # Not `g` for both: that would show a million tokens as 1e+06.
    return str(value) if isinstance(value, int) else f"{value:g}"
