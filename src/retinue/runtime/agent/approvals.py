"""A person's word on what is ordered by a model that has heard from strangers."""

from __future__ import annotations

from collections.abc import Mapping

from retinue.domain.approval import Answer, ApprovalRequest, Rule, Rules, Why
from retinue.domain.drafting import NO_APPROVAL_EFFECTS, AgentSpec, Authority, draft
from retinue.domain.events import ApprovalDecided, Fact
from retinue.domain.messages import Effect
from retinue.domain.reach import Reach
from retinue.errors import ApprovalNeeded, ContractError
from retinue.ports.person import Approve
from retinue.runtime.agent.agent import Agent

SPAWN = "spawn_agent"


def decided(
    wish: ApprovalRequest, answer: Answer, rule: Rule | None = None, call_id: str = ""
) -> Fact:
    """For the journal: what was answered, and by which rule, unless a person did."""
    return ApprovalDecided(
        tool=wish.tool,
        wanted=wish.detail,
        why=wish.why,
        answer=answer,
        rule="" if rule is None else str(rule),
        scope=wish.scope,
        call_id=call_id,
    )


async def ask(by: Agent, wish: ApprovalRequest, approve: Approve, call_id: str = "") -> bool:
    """Ask a person, and write down what they said. ApprovalNeeded if nobody is there."""
    try:
        with by.waiting():
            told = await approve(wish)
    except ApprovalNeeded:
        by.record(decided(wish, Answer.NOBODY, call_id=call_id))
        raise
    rule = told if isinstance(told, Rule) else None
    by.record(decided(wish, Answer.YES if told else Answer.NO, rule, call_id))
    return bool(told)


async def agree(
    spec: AgentSpec, by: Agent, effects: Mapping[str, Effect], rules: Rules, approve: Approve
) -> None:
    """Ask whether `by` may have this child. Raises ContractError for a no.

    The child could be doing a stranger's bidding. One that only reads does no harm by it.
    """
    authority = Authority.of(by.contract, by.id, by.account)
    contract = draft(spec, authority, step_idx=by.steps, effects=effects).contract
    grant = contract.permissions
    acting = [name for name in grant.allowed_tools if effects.get(name) not in NO_APPROVAL_EFFECTS]
    if not acting:
        return
    reach = Reach(
        root=contract.execution.working_directory,
        write_scope=grant.write_scope,
        network=grant.network,
    )
    wish = ApprovalRequest(
        path=by.path,
        tool=SPAWN,
        arguments=f"{spec.role.name}: {spec.task}",
        why=Why.STRANGERS,
        scope=f"it would have {', '.join(acting)}; {reach}",
    )
    if rule := wish.covered_by(rules):
        by.record(decided(wish, Answer.YES, rule))
        return
    try:
        agreed = await ask(by, wish, approve)
    except ApprovalNeeded:
        if by.parent is None:
            raise
        agreed = False
    if not agreed:
        raise ContractError(
            f"A child that has {acting[0]} needs the user's yes, since you have heard words that"
            " nobody vouches for, and there is none. Go on without it, or with one that only reads."
        )
