"""Show the diff of a child to the user before it is merged into the user's files."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from retinue.domain.approval import Answer, ApprovalReason, ApprovalRequest, ChildTerms, Rules
from retinue.domain.contract import Contract, WorkspaceKind
from retinue.domain.grant import Access, Network
from retinue.domain.permissions import NO_APPROVAL_EFFECTS, Effects
from retinue.errors import ApprovalNeeded
from retinue.ports.file_tree import FileTree
from retinue.ports.person import Approve
from retinue.runtime.agent.agent import Agent
from retinue.runtime.agent.approvals import ask_user, decision
from retinue.runtime.agent.run_hooks import RunHooks

SPAWN = "spawn_agent"
REFUSED = "the user refused its change"
NO_PERSON = (
    "its change needs your approval, but no person can be asked; to merge it: retinue redo"
    " {run_id} {agent_id}"
)


def acting_tools(contract: Contract, effects: Effects) -> list[str]:
    """Tools that write, run commands or act outside, and that the agent may use without asking."""
    allowed = contract.permissions.allowed_tools
    return [name for name in allowed if effects.get(name) not in NO_APPROVAL_EFFECTS]


def child_terms(contract: Contract, acting: Sequence[str], files: str = "") -> ChildTerms:
    """A contract in words, for the person who approves it."""
    grant, execution = contract.permissions, contract.execution
    access = Access(
        root=execution.working_directory, write_scope=grant.write_scope, network=grant.network
    )
    limits = [f"{execution.max_tool_calls:,} tool calls"]
    if execution.max_tokens is not None:
        limits.append(f"{execution.max_tokens:,} tokens")
    if execution.max_cost_usd is not None:
        limits.append(f"${execution.max_cost_usd:g}")
    limits.append(f"{execution.attempt_timeout_ms / 1000:g} s")
    return ChildTerms(
        role=execution.role,
        task=contract.step.description,
        tools=tuple(acting),
        access=str(access),
        network=grant.network is not Network.NONE,
        budget=", ".join(limits),
        files=files,
    )


class DiffReview:
    """Asks the user about the changes of children whose contracts they have approved."""

    def __init__(
        self, project: FileTree, effects: Effects, rules: Rules, approve: Approve, hooks: RunHooks
    ) -> None:
        """`project` is the tree of the user's files; merges into other trees need no approval."""
        self._project = project
        self._effects = effects
        self._rules = rules
        self._approve = approve
        self._hooks = hooks

    async def refusal(self, agent: Agent, file_tree: FileTree, base: str, commit: str) -> str:
        """Why the change from `base` to `commit` must not be merged, or ""."""
        contract, parent = agent.contract, agent.parent
        if (
            parent is None
            or parent.contract.permissions.mode.autonomous
            or contract.execution.workspace is not WorkspaceKind.WORKTREE
            or file_tree is not self._project
        ):
            return ""
        acting = acting_tools(contract, self._effects)
        if not acting:  # The user or a rule has approved each call.
            return ""
        approved = parent.state.answers.get(agent.state.origin_key)
        if approved is not None and approved.rule:
            return ""  # The user chose "yes to all like this" for the contract.
        diff = await file_tree.diff(base, commit)
        key = hashlib.sha256(diff.encode()).hexdigest()
        decided = agent.state.answers.get(key)
        if decided is None:
            files = ", ".join(map(str, agent.state.files_modified.values()))
            request = ApprovalRequest(
                path=agent.path,
                tool=SPAWN,
                arguments=f"merge {files}",
                why=ApprovalReason.MERGE,
                children=(child_terms(contract, acting),),
                diff=diff,
            )
            if rule := request.covered_by(self._rules):
                agent.record(decision(request, Answer.YES, rule, keys=(key,)))
                return ""
            try:
                approve = self._hooks.notifying(agent, self._approve)
                decided = await ask_user(agent, request, approve, keys=(key,))
            except ApprovalNeeded:
                return NO_PERSON.format(run_id=contract.parent.run_id, agent_id=agent.id)
            # The answer is on record before the files change.
            await agent.durable()
        if decided.allowed:
            return ""
        return f"{REFUSED}: {decided.reason}" if decided.reason else REFUSED
