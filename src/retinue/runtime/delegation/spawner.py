"""From an order to a child: its contract, the place where it works, and its birth."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from retinue.domain.contract import Contract, WorkspaceKind
from retinue.domain.drafting import AgentSpec, Authority, ContractDrafter
from retinue.errors import ContractError, WorkspaceError
from retinue.runtime.agent.agent import Agent
from retinue.runtime.agent.approvals import agree
from retinue.runtime.agent.baseline import Baseline
from retinue.runtime.agent.prompts import Prompts, listed_profiles
from retinue.runtime.delegation.registry import AgentRegistry
from retinue.runtime.integration.checks import NO_SANDBOX, Checks
from retinue.runtime.integration.merge_queue import MergeQueue
from retinue.runtime.services import Services


class Spawner:
    """How the children of one run are made. One at a time, in the order of asking."""

    def __init__(
        self,
        roster: AgentRegistry,
        around: Services,
        checks: Checks,
        join_of: Callable[[Agent], MergeQueue],
    ) -> None:
        self._roster = roster
        self._around = around
        self._checks = checks
        self._join_of = join_of
        directory = roster.root.contract.execution.working_directory
        self._prompts = Prompts(around.file_tree.workspace(directory))
        self._drafting = ContractDrafter(around.tools.effects)
        self._lock = asyncio.Lock()

    async def agree(self, spec: AgentSpec, by: Agent) -> None:
        """Have a person agree to an order that a stranger may stand behind. Raises UsageError."""
        around = self._around
        if by.heard_untrusted:
            await agree(spec, by, around.tools.effects, around.policy.rules, around.person.approve)

    async def create(
        self,
        spec: AgentSpec,
        by: Agent,
        round: Baseline | None = None,
        *,
        origin_key: str = "",
        background: bool = False,
    ) -> Agent:
        """Write the contract for `spec` and bring its child into being. Raises UsageError.

        Children of one round begin from the same files; one without begins from what is there.
        """
        async with self._lock:  # In the order of asking, whatever has to be read for it first.
            round = round or Baseline()
            child = await self._written(spec, by, round, origin_key, background)
            if child.contract.execution.workspace is not WorkspaceKind.READONLY:
                child.seat = self._join_of(by).enter(child, round)
            return child

    async def stand_in(self, spec: AgentSpec, by: Agent) -> Agent:
        """A child that works where another one has, and so needs no seat. Raises UsageError."""
        async with self._lock:
            return await self._written(spec, by, None)

    async def _written(
        self,
        spec: AgentSpec,
        by: Agent,
        round: Baseline | None,
        origin_key: str = "",
        background: bool = False,
    ) -> Agent:
        role = spec.role
        instructions, left_out = await self._prompts.assemble(role, spec.extra_instructions)
        spec = msgspec.structs.replace(spec, instructions=instructions)
        authority = Authority.of(by.contract, by.id, by.account)
        # The step's number is the parent's next; it is taken only when the contract stands.
        drafted = self._drafting.draft(spec, authority, step_idx=by.steps)
        contract, notes = self._told_of_profiles(drafted.contract), drafted.notes
        if contract.execution.workspace is not WorkspaceKind.READONLY:
            try:
                contract, notes = await self._placed(contract, notes, by, round)
            except WorkspaceError as error:
                raise ContractError(str(error)) from error
        elif spec.checks:
            await self._checkable(spec.checks)
        self._around.models.get(contract.execution.model)  # Unknown models fail here.
        child = self._roster.make(contract, by.next_path(spec.name or role.name), by)
        child.origin_key, child.background = origin_key, background
        child.heard_untrusted = by.heard_untrusted  # A stranger's words may be in its task.
        child.cache_key = self._around.cache.key(contract) if spec.cache else None
        window = contract.execution.max_context_tokens
        hidden = self._around.tools.omitted_tool_notes(contract.permissions, window=window)
        self._roster.enter(child, (*left_out, *notes, *hidden))
        return child

    async def _placed(
        self, contract: Contract, notes: tuple[str, ...], by: Agent, round: Baseline | None
    ) -> tuple[Contract, tuple[str, ...]]:
        """The contract of one that writes, with a place where that can be done and checked."""
        checks, execution = contract.outputs.checks, contract.execution
        if checks:
            await self._checkable(checks)
        if execution.workspace is WorkspaceKind.SHARED:
            return contract, notes
        why_not = await by.file_tree.why_no_copies()
        if not why_not:
            if round is not None:
                await self._join_of(by).pin(round)
            return contract, notes
        shared = msgspec.structs.replace(execution, workspace=WorkspaceKind.SHARED)
        note = f"works in the project itself, one writer at a time: {why_not}"
        return msgspec.structs.replace(contract, execution=shared), (*notes, note)

    async def _checkable(self, checks: Sequence[str]) -> None:
        if not await self._checks.possible():
            raise ContractError(NO_SANDBOX.format(checks=", ".join(checks)))

    def _told_of_profiles(self, contract: Contract) -> Contract:
        """`contract` with instructions that list the profiles it may employ, if there are any."""
        roles = self._around.roles
        profiles = listed_profiles(roles[name] for name in contract.permissions.spawn_roles)
        if not profiles:
            return contract
        execution = contract.execution
        instructions = "\n\n".join(filter(None, (execution.instructions, profiles)))
        return msgspec.structs.replace(
            contract, execution=msgspec.structs.replace(execution, instructions=instructions)
        )
