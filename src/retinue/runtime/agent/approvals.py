"""Ask the user: to approve a tool call, or a child of an agent that has read untrusted text."""

from __future__ import annotations

from collections.abc import Mapping

from retinue.domain.agent_spec import AgentSpec
from retinue.domain.approval import Answer, ApprovalReason, ApprovalRequest, Rule, Rules
from retinue.domain.events import ApprovalDecided, Fact
from retinue.domain.grant import Access, Grant
from retinue.domain.messages import Effect
from retinue.domain.permissions import NO_APPROVAL_EFFECTS
from retinue.errors import ApprovalNeeded, ContractError
from retinue.ports.person import Approve
from retinue.runtime.agent.agent import Agent

SPAWN = "spawn_agent"


def decision(
    request: ApprovalRequest, answer: Answer, rule: Rule | None = None, call_id: str = ""
) -> Fact:
    """The event of a decision; `rule` is None if a person decided."""
    return ApprovalDecided(
        tool=request.tool,
        wanted=request.detail,
        why=request.why,
        answer=answer,
        rule="" if rule is None else str(rule),
        scope=request.scope,
        call_id=call_id,
    )


async def ask_user(
    agent: Agent, request: ApprovalRequest, approve: Approve, call_id: str = ""
) -> bool:
    """Ask the user, and record the answer. Raises ApprovalNeeded if no person can be asked."""
    try:
        with agent.waiting():
            answer = await approve(request)
    except ApprovalNeeded:
        agent.record(decision(request, Answer.NO_PERSON, call_id=call_id))
        raise
    rule = answer if isinstance(answer, Rule) else None
    agent.record(decision(request, Answer.YES if answer else Answer.NO, rule, call_id))
    return bool(answer)


async def approve_child(
    spec: AgentSpec,
    grant: Grant,
    parent: Agent,
    effects: Mapping[str, Effect],
    rules: Rules,
    approve: Approve,
) -> None:
    """Ask whether `parent` may have a child with `grant`. Raises ContractError for a no.

    Untrusted text may have asked for the child. A child that only reads does no harm.
    """
    acting = [name for name in grant.allowed_tools if effects.get(name) not in NO_APPROVAL_EFFECTS]
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
    if rule := request.covered_by(rules):
        parent.record(decision(request, Answer.YES, rule))
        return
    try:
        approved = await ask_user(parent, request, approve)
    except ApprovalNeeded:
        if parent.parent is None:
            raise
        approved = False
    if not approved:
        raise ContractError(
            f"A child that has {acting[0]} needs the user's approval, because you have read"
            " untrusted text, and the user has not approved it. Go on without the child, or spawn"
            " one that only reads."
        )
