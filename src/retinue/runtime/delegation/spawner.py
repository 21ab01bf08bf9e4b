"""Spawn children: draft the contract, choose the workspace, record the agent."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import msgspec

from retinue.domain.agent_spec import AgentSpec, Authority
from retinue.domain.approval import Answer, ApprovalReason, ApprovalRequest, ChildTerms
from retinue.domain.contract import Contract, WorkspaceKind
from retinue.domain.drafting import ContractDrafter
from retinue.domain.permissions import COULD_NOT_WRITE
from retinue.domain.plan.forecast import Forecast
from retinue.domain.result import ChildFailure, OnChildFailure
from retinue.domain.resume_point import ResumePoint
from retinue.domain.role import GENERAL, Role
from retinue.errors import ApprovalNeeded, ContractError, UsageError, WorkspaceError
from retinue.runtime.agent.agent import Agent
from retinue.runtime.agent.approvals import ask_user, decision
from retinue.runtime.agent.prompts import Prompts, profile_list
from retinue.runtime.agent.run_hooks import RunHooks
from retinue.runtime.delegation.registry import AgentRegistry
from retinue.runtime.integration.baseline import BACKGROUND, FOREGROUND, Baseline
from retinue.runtime.integration.checks import NO_SANDBOX, Checks
from retinue.runtime.integration.integrator import Integrator
from retinue.runtime.integration.review import SPAWN, acting_tools, child_terms
from retinue.runtime.services import Services

NO_APPROVAL = "This child needs the user's approval, because {why}, and {answer}."
ADVICE = "Go on without the child, or spawn one that only reads."
IN_COPY = "works in a copy; you see the change before it is merged"
IN_PARENT_COPY = "works in a copy of the files of {path}"
IN_PLACE = "works in your files directly: {why}"
READS = "cannot change files"


class Spawner:
    """Makes all children of one run, one at a time, in the order of the calls."""

    def __init__(
        self,
        services: Services,
        registry: AgentRegistry,
        integrator: Integrator,
        checks: Checks,
        hooks: RunHooks,
        directory: str,
    ) -> None:
        self._hooks = hooks
        self._services = services
        self._registry = registry
        self._integrator = integrator
        self._checks = checks
        self._prompts = Prompts(services.file_tree.workspace(directory))
        self._drafter = ContractDrafter(services.tools.effects, services.policy.approvals)
        self._lock = asyncio.Lock()

    def may_ask(self, parent: Agent) -> bool:
        """Whether a child of `parent` that writes or runs commands needs the user's approval."""
        if parent.state.read_untrusted:
            return True
        mode = parent.contract.permissions.mode
        return self._services.policy.attended and not mode.autonomous

    async def approve(
        self,
        wanted: Mapping[str, AgentSpec],
        parent: Agent,
        *,
        typed: bool = False,
        forecast: Forecast | None = None,
    ) -> None:
        """Ask the user once about all children that would write or run commands.

        `wanted` has their specs by origin key, `forecast` is what they will likely use. The answer
        is recorded; `create` acts on it. Children that were `typed` by the user are approved,
        unless they work without a copy.
        """
        if not self.may_ask(parent):
            return
        asked: dict[str, ChildTerms] = {}
        for origin_key, spec in wanted.items():
            if origin_key not in parent.state.answers:
                terms, in_place = await self._terms(spec, parent)
                if terms is not None and (in_place or not typed):
                    asked[origin_key] = terms
        if not asked:
            return
        read_untrusted = parent.state.read_untrusted
        why = ApprovalReason.UNTRUSTED_TEXT if read_untrusted else ApprovalReason.CONTRACT
        request = ApprovalRequest(
            path=parent.path,
            tool=SPAWN,
            arguments="\n".join(f"{terms.role}: {terms.task}" for terms in asked.values()),
            why=why,
            scope="" if forecast is None else f"forecast: {forecast}",
            children=tuple(asked.values()),
        )
        services, keys = self._services, tuple(asked)
        if rule := request.covered_by(services.policy.rules):
            parent.record(decision(request, Answer.YES, rule, keys=keys))
            return
        try:
            approve = self._hooks.notifying(parent, services.person.approve)
            await ask_user(parent, request, approve, keys=keys)
        except ApprovalNeeded:
            if parent.parent is None:
                raise

    async def _terms(self, spec: AgentSpec, parent: Agent) -> tuple[ChildTerms | None, bool]:
        """The terms to ask about, and whether the child would work without a copy.

        The terms are None for a child without acting tools, and for one that `create` will refuse.
        """
        try:
            contract = self.preview(spec, parent)
            why = await parent.files.tree.why_no_copies()
        except (UsageError, WorkspaceError):
            return None, False
        acting = acting_tools(contract, self._services.tools.effects)
        if not acting:
            return None, False
        files, in_place = READS, False
        if contract.execution.workspace is not WorkspaceKind.READONLY:
            if contract.execution.workspace is WorkspaceKind.SHARED:
                why = "the task asks for it"
            in_place = bool(why)
            in_copy = IN_COPY if parent.depth == 0 else IN_PARENT_COPY.format(path=parent.path)
            files = IN_PLACE.format(why=why) if in_place else in_copy
        return child_terms(contract, acting, files), in_place

    def preview(self, spec: AgentSpec, parent: Agent) -> Contract:
        """The contract that `create` would begin with. Raises ContractError."""
        authority = Authority.of_agent(parent.contract, parent.id, parent.account)
        return self._drafter.draft(spec, authority, step_idx=0).contract

    def reportable_failures(self) -> list[ChildFailure]:
        """Failed children of the root that the root should settle before it ends."""
        if self._services.policy.on_child_failure is OnChildFailure.IGNORE:
            return []
        failures = self._registry.failures.values()
        return [failure for failure in failures if failure.error != COULD_NOT_WRITE]

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
        answer = parent.state.answers.get(origin_key)
        if answer is not None and not answer.allowed:
            said = "nobody could be asked"
            if answer.answer is Answer.NO:
                said = f"the user said no{f': {answer.reason}' if answer.reason else ''}"
            tainted = answer.why == ApprovalReason.UNTRUSTED_TEXT
            why = "you have read untrusted text" if tainted else "it would write or run commands"
            refused = NO_APPROVAL.format(why=why, answer=said)
            raise ContractError(f"{refused} {ADVICE}", shown=refused)
        async with self._lock:  # Children are created in the order of the calls.
            contract, notes = await self._draft(spec, parent, baseline)
            if refused := await self._hooks.contract_drafted(parent, contract):
                raise ContractError(refused)
            child = self._registry.create(
                contract,
                parent.next_child_path(spec.step.name or spec.role.name),
                parent,
                notes=notes,
                images=spec.images,
                origin_key=origin_key,
                background=background,
                replaces=spec.replaces,
                continues=spec.continues,
                use_cache=spec.cache and spec.continues is None,
                race="" if baseline is None else baseline.race,
            )
            child.convert_output = spec.output.convert
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
            restored = self._integrator.slot_of(child) is not None
            if child.result is None and child.resume_point is not None and not restored:
                child.files.tree = parent.files.tree
                queue, race = BACKGROUND if child.state.background else FOREGROUND, child.state.race
                if separate_queues or race:
                    queue = child.state.origin_key
                baseline = Baseline(queue=queue, race=race)
                self._integrator.enter(child, parent, baseline, child.resume_point)
        return children

    async def _draft(
        self, spec: AgentSpec, parent: Agent, baseline: Baseline | None
    ) -> tuple[Contract, tuple[str, ...]]:
        """The contract of a child, and notes about what differs from its spec."""
        services = self._services
        instructions, omitted = await self._instructions(spec, parent)
        authority = Authority.of_agent(parent.contract, parent.id, parent.account)
        drafted = self._drafter.draft(
            spec, authority, step_idx=parent.state.next_step, instructions=instructions
        )
        contract, notes = drafted.contract, drafted.notes
        if spec.continues is None or not spec.continues.instructions:
            contract = self._with_profiles(contract)
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

    async def _instructions(self, spec: AgentSpec, parent: Agent) -> tuple[str, Sequence[str]]:
        """The system prompt of a child, and notes about files that are missing from it."""
        if spec.continues is not None and spec.continues.instructions:
            # The bytes of the conversation that it continues, for the server's prefix cache.
            added = (spec.continues.instructions, spec.system_prompt)
            return "\n\n".join(filter(None, added)), ()
        return await self._prompts.assemble(
            self._prompted_role(spec.role, parent), spec.system_prompt
        )

    def _prompted_role(self, role: Role, parent: Agent) -> Role:
        """The role whose system prompt a child gets: its own, or for `general` its parent's."""
        if role.name != GENERAL or role.instructions:
            return role
        lead = self._services.policy.lead
        parents = self._services.roles.get(parent.contract.execution.role, lead)
        return msgspec.structs.replace(parents, budget=role.budget)

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
