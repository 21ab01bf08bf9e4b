"""Spawn children: draft the contract, choose the workspace, record the agent."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from retinue.domain.agent_spec import AgentSpec, Authority
from retinue.domain.approval import Answer, ApprovalReason, ApprovalRequest
from retinue.domain.contract import Contract, WorkspaceKind
from retinue.domain.drafting import ContractDrafter
from retinue.domain.grant import Access
from retinue.domain.permissions import NO_APPROVAL_EFFECTS
from retinue.domain.resume_point import ResumePoint
from retinue.errors import ApprovalNeeded, ContractError, WorkspaceError
from retinue.runtime.agent.agent import Agent
from retinue.runtime.agent.approvals import ask_user, decision
from retinue.runtime.agent.prompts import Prompts, profile_list
from retinue.runtime.delegation.registry import AgentRegistry
from retinue.runtime.integration.baseline import BACKGROUND, FOREGROUND, Baseline
from retinue.runtime.integration.checks import NO_SANDBOX, Checks
from retinue.runtime.integration.integrator import Integrator
from retinue.runtime.services import Services

SPAWN = "spawn_agent"
NO_APPROVAL = (
    "A child that has {tool} needs the user's approval, because you have read untrusted text, and"
    " the user has not approved it. Go on without the child, or spawn one that only reads."
)


class Spawner:
    """Makes all children of one run, one at a time, in the order of the calls."""

    def __init__(
        self,
        services: Services,
        registry: AgentRegistry,
        integrator: Integrator,
        checks: Checks,
        directory: str,
    ) -> None:
        self._services = services
        self._registry = registry
        self._integrator = integrator
        self._checks = checks
        self._prompts = Prompts(services.file_tree.workspace(directory))
        self._drafter = ContractDrafter(services.tools.effects)
        self._lock = asyncio.Lock()

    async def approve(self, spec: AgentSpec, parent: Agent) -> None:
        """Ask the user about a child that untrusted text may have asked for.

        A child that only reads does no harm. Raises ContractError for a no.
        """
        if not parent.state.read_untrusted:
            return
        services = self._services
        authority = Authority.of_agent(parent.contract, parent.id, parent.account)
        grant = self._drafter.preview(spec, authority)
        effects = services.tools.effects
        acting = [n for n in grant.allowed_tools if effects.get(n) not in NO_APPROVAL_EFFECTS]
        if not acting:
            return
        access = Access(
            root=spec.permissions.directory or parent.contract.execution.working_directory,
            write_scope=grant.write_scope,
            network=grant.network,
        )
        request = ApprovalRequest(
            path=parent.path,
            tool=SPAWN,
            arguments=f"{spec.role.name}: {spec.task}",
            why=ApprovalReason.UNTRUSTED_TEXT,
            scope=f"it would have {', '.join(acting)}; {access}",
        )
        if rule := request.covered_by(services.policy.rules):
            parent.record(decision(request, Answer.YES, rule))
            return
        try:
            approved = await ask_user(parent, request, services.person.approve)
        except ApprovalNeeded:
            if parent.parent is None:
                raise
            approved = False
        if not approved:
            raise ContractError(NO_APPROVAL.format(tool=acting[0]))

    async def create(
        self,
        spec: AgentSpec,
        parent: Agent,
        baseline: Baseline | None,
        *,
        origin_key: str = "",
        background: bool = False,
    ) -> Agent:
        """Make the child for `spec`. Raises UsageError.

        Children with the same baseline start from the same files. A child without one has no merge
        slot: it works on the copy of another child.
        """
        async with self._lock:  # Children are created in the order of the calls.
            contract, notes = await self._draft(spec, parent, baseline)
            child = self._registry.create(
                contract,
                parent.next_child_path(spec.step.name or spec.role.name),
                parent,
                notes=notes,
                origin_key=origin_key,
                background=background,
                use_cache=spec.cache,
            )
            if baseline is not None:
                self._integrator.enter(child, parent, baseline)
            return child

    def restore_children(
        self, parent: Agent, resume_point: ResumePoint, *, separate_queues: bool = False
    ) -> list[Agent]:
        """Children of an attempt that an earlier process began; open ones get their merge slots.

        With `separate_queues`, each child has a queue of its own, as the steps of a plan do.
        """
        children = [self._registry.restored[agent_id] for agent_id in resume_point.children]
        for child in children:
            if child.result is None and child.resume_point is not None:
                child.files.tree = parent.files.tree
                queue = BACKGROUND if child.state.background else FOREGROUND
                baseline = Baseline(queue=child.state.origin_key if separate_queues else queue)
                self._integrator.enter(child, parent, baseline, child.resume_point)
        return children

    async def _draft(
        self, spec: AgentSpec, parent: Agent, baseline: Baseline | None
    ) -> tuple[Contract, tuple[str, ...]]:
        """The contract of a child, and notes about what differs from its spec."""
        services = self._services
        instructions, omitted = await self._prompts.assemble(spec.role, spec.system_prompt)
        authority = Authority.of_agent(parent.contract, parent.id, parent.account)
        drafted = self._drafter.draft(
            spec, authority, step_idx=parent.state.next_step, instructions=instructions
        )
        contract, notes = self._with_profiles(drafted.contract), drafted.notes
        if contract.execution.workspace is not WorkspaceKind.READONLY:
            try:
                contract, notes = await self._with_workspace(contract, notes, parent, baseline)
            except WorkspaceError as error:
                raise ContractError(str(error)) from error
        elif spec.output.checks:
            await self._require_sandbox(spec.output.checks)
        services.models.get(contract.execution.model)  # Raises for an unknown model.
        window = contract.execution.max_context_tokens
        hidden = services.tools.omitted_tool_notes(contract.permissions, window=window)
        return contract, (*omitted, *notes, *hidden)

    async def _with_workspace(
        self, contract: Contract, notes: tuple[str, ...], parent: Agent, baseline: Baseline | None
    ) -> tuple[Contract, tuple[str, ...]]:
        """The contract of a writing child, with a workspace that exists and can be checked."""
        checks, execution = contract.outputs.checks, contract.execution
        if checks:
            await self._require_sandbox(checks)
        if execution.workspace is WorkspaceKind.SHARED:
            return contract, notes
        why_not = await parent.files.tree.why_no_copies()
        if not why_not:
            if baseline is not None:
                await self._integrator.queue_of(parent).pin(baseline)
            return contract, notes
        shared = msgspec.structs.replace(execution, workspace=WorkspaceKind.SHARED)
        note = f"works in the project itself, one writer at a time: {why_not}"
        return msgspec.structs.replace(contract, execution=shared), (*notes, note)

    async def _require_sandbox(self, checks: Sequence[str]) -> None:
        if not await self._checks.are_possible():
            raise ContractError(NO_SANDBOX.format(checks=", ".join(checks)))

    def _with_profiles(self, contract: Contract) -> Contract:
        """`contract` with instructions that list the user's profiles that the child may spawn."""
        roles = self._services.roles
        profiles = profile_list(roles[name] for name in contract.permissions.spawn_roles)
        if not profiles:
            return contract
        execution = contract.execution
        instructions = "\n\n".join(filter(None, (execution.instructions, profiles)))
        return msgspec.structs.replace(
            contract, execution=msgspec.structs.replace(execution, instructions=instructions)
        )
